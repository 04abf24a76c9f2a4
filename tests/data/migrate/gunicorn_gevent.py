from gevent import monkey

monkey.patch_all()

from psycogreen.gevent import patch_psycopg  # noqa: E402

bind = ["127.0.0.1:8000", "unix:/run/shop/gunicorn.sock"]
backlog = 2048
worker_class = "gevent"
worker_connections = 500
workers = 3
preload_app = True
timeout = 30


def post_fork(server, worker):
    patch_psycopg()
    worker.log.info("patched")
