import os

# Set by the platform.
port = os.environ.get("PORT", "8080")
bind = f"0.0.0.0:{port}"

workers = int(os.environ.get("WEB_CONCURRENCY", 2))
threads = int(os.environ.get("PYTHON_MAX_THREADS", 4))
worker_class = "gthread"
worker_tmp_dir = "/dev/shm"

timeout = int(os.getenv("GUNICORN_TIMEOUT", "120"))
graceful_timeout = 25

accesslog = "-"
errorlog = "-"
access_log_format = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s" %(D)s'
forwarded_allow_ips = "*"
secure_scheme_headers = {"X-FORWARDED-PROTO": "https"}
