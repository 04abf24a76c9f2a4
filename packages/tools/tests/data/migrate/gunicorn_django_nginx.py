"""Django behind nginx on one machine."""

import multiprocessing

bind = "unix:/run/shop/gunicorn.sock"
workers = multiprocessing.cpu_count() * 2 + 1
timeout = 60
keepalive = 5
user = "www-data"
group = "www-data"
umask = 0o007
pidfile = "/run/shop/gunicorn.pid"
accesslog = "/var/log/shop/access.log"
errorlog = "/var/log/shop/error.log"
loglevel = "warning"
proc_name = "shop"
max_requests = 1000
max_requests_jitter = 50
