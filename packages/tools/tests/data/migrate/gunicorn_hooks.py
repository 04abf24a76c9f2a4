import logging
import multiprocessing
import os
import sys

from prometheus_client import multiprocess

chdir = "/srv/site"
wsgi_app = "shop.wsgi:application"
bind = "127.0.0.1:" + os.getenv("PORT", "8000")
workers = min(multiprocessing.cpu_count(), 4)
threads = 2
statsd_host = "127.0.0.1:8125"
statsd_prefix = "shop"
logconfig_dict = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler", "stream": sys.stdout}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
raw_env = ["DJANGO_SETTINGS_MODULE=shop.settings", "SECRET_KEY=not-to-be-shown"]


def on_starting(server):
    logging.info("starting")


def when_ready(server):
    open("/tmp/app-initialized", "w").close()


def pre_fork(server, worker):
    pass


def post_worker_init(worker):
    pass


def child_exit(server, worker):
    multiprocess.mark_process_dead(worker.pid)


def worker_abort(worker):
    pass


pre_request = lambda worker, req: worker.log.debug("%s %s", req.method, req.path)
