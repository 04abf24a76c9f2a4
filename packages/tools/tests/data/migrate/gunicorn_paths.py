import os
from os.path import abspath, dirname, join

BASE_DIR = dirname(dirname(abspath(__file__)))
chdir = BASE_DIR
pythonpath = join(BASE_DIR, "src")
bind = "%s:%d" % ("127.0.0.1", 8000)
accesslog = join(BASE_DIR, "logs", "access.log")
workers = (os.cpu_count() or 1) + 1
keepalive = 0
worker_class = "sync"
timeout = 0
initgroups = True
proxy_protocol = True
proxy_allow_ips = "10.0.0.0/8"
header_map = "drop"
