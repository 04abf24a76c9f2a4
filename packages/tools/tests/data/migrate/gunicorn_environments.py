import os

ENVIRONMENT = os.environ.get("ENVIRONMENT", "production")
DEBUG = os.environ.get("DEBUG", "0") == "1"

bind = "127.0.0.1:5000"
workers = 2 if ENVIRONMENT == "production" else 1
threads = 8
reload = DEBUG
limit_request_line = 8190
limit_request_fields = 200
limit_request_field_size = 16380
loglevel = "debug" if DEBUG else "info"

if ENVIRONMENT == "production":
    bind = "unix:/run/shop/app.sock"
    certfile = None
else:
    reload_extra_files = ["templates/index.html"]

try:
    from local_settings import *
except ImportError:
    pass
