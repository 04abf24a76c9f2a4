"""`tailrace migrate` with realistic configurations: the result works behind nginx."""

import grp
import os
import pwd
import re
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest
from frameworks.process import Process
from harness.addresses import free_address
from harness.encrypted import authority
from harness.fronts import nginx_with
from harness.toml import parse_toml
from harness.tools import need_tool
from tailrace_tools.migrate import main

SOURCES = Path(__file__).resolve().parent / "data" / "migrate"
# What each configuration gives, among other settings.
EXPECTED = {
    "Dockerfile": {"app": "shop:create_app()", "bind": None, "workers": None, "threads": 4},
    "cmd_args.cmd": {
        "bind": ["127.0.0.1:9000"],
        "workers": 3,
        "preload": True,
        "request_timeout": 60,
        "threads": 1,
        "trusted_proxies": ["unix", "10.0.0.1", "10.0.0.2"],
    },
    "docker_flask.cmd": {"app": "shop:create_app()", "threads": 4, "workers": 2, "access_log": "-"},
    "gunicorn_container.py": {"bind": None, "workers": 2, "threads": 4, "hang_timeout": 120, "trusted_proxies": ["*"]},
    "gunicorn_django_nginx.py": {
        "workers": "auto",
        "request_timeout": 60,
        "bind": ["unix:/run/shop/gunicorn.sock?mode=770"],
        "max_requests": 1000,
    },
    "gunicorn_environments.py": {"bind": ["127.0.0.1:5000"], "log_level": "info", "threads": 8},
    "gunicorn_hooks.py": {"app": "shop.wsgi:application", "bind": ["127.0.0.1:8000"], "statsd": "127.0.0.1:8125"},
    "gunicorn_paths.py": {"bind": ["http://127.0.0.1:8000?proxy=any"], "workers": "auto", "hang_timeout": 0},
    "gunicorn_tls.py": {"bind": ["https://0.0.0.0:443"], "workers": 4, "log": "syslog:/dev/log?facility=user"},
    "heroku_django.cmd": {"app": "shop.wsgi", "workers": 3},
    "newrelic.cmd": {"gevent": True, "max_greenlets": 1000, "workers": "auto", "max_requests": 5000},
    "shop.service": {
        "app": "shop.wsgi:application",
        "workers": 3,
        "bind": ["unix:/run/shop/app.sock?mode=777"],
        "access_log_format": "%(h)s %(s)s",
    },
    "systemd.cmd": {"app": "shop.wsgi:application", "bind": ["unix:/run/shop/app.sock?mode=770"]},
    "tls_port.cmd": {"app": "shop:app", "bind": None, "tls_min": "1.2"},
    "umask.cmd": {
        "bind": ["unix:/run/shop/app.sock?mode=770", "127.0.0.1:8000"],
        "group": grp.getgrgid(os.getgid()).gr_name,
    },
    "unix_socket.cmd": {"bind": ["unix:/run/shop/app.sock?mode=777"], "workers": 3},
    "uwsgi_ci.cmd": {"app": "shop.wsgi:application", "bind": [":8000"], "workers": 4, "threads": 2},
    "uwsgi_django.ini": {
        "app": "shop.wsgi:application",
        "bind": ["uwsgi+unix:/run/shop/shop.sock?mode=660"],
        "request_timeout": 60,
        "threads": 1,
    },
    "uwsgi_emperor.yaml": {"app": "shop.wsgi", "bind": ["uwsgi+unix:@shop"]},
    "uwsgi_environments.ini": {"app": "shop:app"},
    "uwsgi_flask.ini": {"bind": [":9090"], "workers": 4, "threads": 2, "status": "127.0.0.1:9191"},
    "uwsgi_gevent.ini": {
        "app": "shop.wsgi:application",
        "root_path": "/shop",
        "gevent": True,
        "workers": "auto",
        "max_body": "10MiB",
        "bind": ["uwsgi://127.0.0.1:3031?backlog=1024"],
    },
    "uwsgi_production.ini": {"max_rss": "2GiB", "max_lifetime": 3600, "graceful_timeout": 60, "workers": 16},
    "uwsgi_site.json": {"keepalive_timeout": 30, "workers": 3},
    "uwsgi_site.xml": {"bind": ["127.0.0.1:3031"], "umask": "0o022", "graceful_timeout": 8},
}
# What stands in the comments of some, or must not.
SAID = {
    "gunicorn_hooks.py": ["worker_exit(worker)", "def pre_fork()", "SECRET_KEY", "!not-to-be-shown"],
    "Dockerfile": ["!THREADS = "],
    "gunicorn_container.py": ["0.0.0.0:${PORT:-8080}"],
    "shop.service": ["every local user may connect", "!DJANGO_SETTINGS_MODULE"],
    "tls_port.cmd": ["https://0.0.0.0:$PORT"],
    "unix_socket.cmd": ["every local user may connect"],
    "gunicorn_tls.py": ["speaks TLS at addresses", "ASGI"],
    "gunicorn_environments.py": ["conditionally", "import *"],
    "gunicorn_django_nginx.py": ["cpu_count() * 2 + 1"],
    "heroku_django.cmd": ["$PORT", "manage.py migrate"],
    "newrelic.cmd": ["newrelic-admin run-program tailrace"],
    "uwsgi_environments.ini": ["if-env = DEBUG", "$PORT"],
    "uwsgi_production.ini": ["systemd timer", "DJANGO_SETTINGS_MODULE"],
}
UWSGI = "include /etc/nginx/uwsgi_params;"
STAND_IN = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"migrated"]

app = application

def create_app():
    return application
"""


@pytest.fixture
def site():
    """A site with the modules that the configurations name, and what the system has for it; everybody may enter it."""
    root = Path(tempfile.mkdtemp(prefix="pst-"))
    root.chmod(0o755)
    for folder in ("srv/site/static", "srv/site/media", "srv/site/public", "srv/spool", "run/shop", "var/log/shop"):
        (root / folder).mkdir(parents=True)
    yield root
    shutil.rmtree(root)


def test_every_configuration_is_tested():
    assert {path.name for path in SOURCES.iterdir()} == EXPECTED.keys()
    assert len(EXPECTED) >= 20


@pytest.mark.nightly(gate=7)
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_migrated_configuration_serves(name, site, monkeypatch):
    text = (SOURCES / name).read_text()
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    text = re.sub(r"""(g(?:roup|id)["']? ?=? ?["']?)www-data""", rf"\g<1>{group}", text).replace("www-data", user)
    text = re.sub(r"(?<![\w/])/(srv|run|var)/", rf"{site}/\1/", text)
    text = text.replace("/etc/ssl/shop.pem", str(authority().chain)).replace("/etc/ssl/shop.key", str(authority().key))
    directory = site / "srv" / "site"
    monkeypatch.chdir(directory)
    if name.endswith(".cmd"):
        source = text
    else:
        source = str(directory / name)
        Path(source).write_text(text)
    written, _ = main.run(source)
    settings = parse_toml(written)
    found = parse_toml(written.replace(str(site), ""))
    assert {key: found.get(key) for key in EXPECTED[name]} == EXPECTED[name], written
    for said in SAID.get(name, ()):
        assert (said.removeprefix("!") in written) is not said.startswith("!"), written
    module = directory / "shop"
    if "wsgi" in settings.get("app", "shop.wsgi"):
        module.mkdir()
        (module / "__init__.py").touch()
        module = module / "wsgi"
    module.with_suffix(".py").write_text(STAND_IN)
    (directory / "tailrace.toml").write_text(written)
    # The addresses may be taken, one worker is enough, and there may be no syslog.
    arguments = ["--workers", "1", "--log", "stderr"]
    if settings.get("access_log", "").startswith("syslog"):
        arguments += ["--access-log", "stdout"]
    if "status" in settings:
        arguments += ["--status", f"unix:{site}/status"]
    port = free_address().port
    binds = [re.sub(r":\d+(?=$|\?)", f":{port}", each) for each in settings.get("bind", ())]
    # nginx reaches neither of these.
    binds = [f"unix:{site}/abstract?mode=666" if "unix:@" in each else each.partition("?proxy")[0] for each in binds]
    if name == "tls_port.cmd":
        # As the result says; its shell has replaced the variable.
        binds = [f"https://0.0.0.0:{port}"]
    arguments += [part for each in binds for part in ("--bind", each)]
    upstream = binds[0] if binds else f"0.0.0.0:{port}"
    command = (sys.executable, "-m", "tailrace", *arguments)
    if "app" not in settings:
        command += ("shop.wsgi",)
    ready = free_address()
    command += ("--haproxy-agent", ready.bind)
    # If not every user may connect to the socket, nginx is in its group.
    is_secret = re.search(r"mode=\d\d0", upstream) is not None
    with (
        Process(*command, address=ready, cwd=directory, environment={"PORT": str(port)}) as server,
        front(upstream.partition("?")[0], "root" if is_secret else "www-data") as proxy,
    ):
        with urllib.request.urlopen(proxy.url + settings.get("root_path", "") + "/", timeout=30) as response:
            assert (response.status, response.read()) == (200, b"migrated"), server.log
        assert "warning: the variable" not in server.log


def front(bind: str, user: str) -> Process:
    """nginx before this address. user: that of its workers."""
    listen = free_address()
    protocol, _, at = bind.rpartition("+") if "unix:" in bind else bind.rpartition("://")
    at = re.sub(r"^(0\.0\.0\.0)?:", "127.0.0.1:", at)
    pass_to = f"uwsgi_pass {at}; {UWSGI}" if protocol == "uwsgi" else f"proxy_pass {protocol or 'http'}://{at};"
    nginx = nginx_with(f"server {{ listen {listen.bind}; location / {{ {pass_to} }} }}", user)
    return Process(need_tool(nginx.executable), *nginx.arguments, address=listen, files=nginx.files)
