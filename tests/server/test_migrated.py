"""`tailrace migrate` with configurations such as projects have: the result serves."""

import grp
import os
import pwd
import re
from dataclasses import replace
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.encrypted import authority
from harness.server import Server
from harness.toml import parse_toml

from tailrace.migrate import main

SOURCES = Path(__file__).resolve().parent.parent / "data" / "migrate"
# What each configuration gives, among other settings.
EXPECTED = {
    "cmd_args.cmd": {
        "bind": ["127.0.0.1:9000"],
        "workers": 3,
        "preload": True,
        "request_timeout": 60,
        "threads": 1,
        "trusted_proxies": ["unix", "10.0.0.1", "10.0.0.2"],
    },
    "docker_flask.cmd": {"app": "shop:create_app()", "threads": 4, "workers": 2, "access_log": "-"},
    "gunicorn_container.py": {
        "bind": ["0.0.0.0:8080"],
        "workers": 2,
        "threads": 4,
        "hang_timeout": 120,
        "trusted_proxies": ["*"],
    },
    "gunicorn_django_nginx.py": {"workers": "auto", "request_timeout": 60, "umask": "0o007", "max_requests": 1000},
    "gunicorn_environments.py": {
        "bind": ["127.0.0.1:5000"],
        "log_level": "info",
        "threads": 8,
        "header_count_limit": 200,
    },
    "gunicorn_gevent.py": {"gevent": True, "max_greenlets": 500, "hang_timeout": 30, "workers": 3},
    "gunicorn_hooks.py": {"app": "shop.wsgi:application", "bind": ["127.0.0.1:8000"], "statsd": "127.0.0.1:8125"},
    "gunicorn_paths.py": {"bind": ["http://127.0.0.1:8000?proxy=any"], "workers": "auto", "hang_timeout": 0},
    "gunicorn_tls.py": {"bind": ["https://0.0.0.0:443"], "workers": 4, "log": "syslog:/dev/log?facility=user"},
    "heroku_django.cmd": {"app": "shop.wsgi", "workers": 3},
    "newrelic.cmd": {"gevent": True, "max_greenlets": 1000, "workers": "auto", "max_requests_jitter": 500},
    "systemd.cmd": {"app": "shop.wsgi:application", "umask": "0o007"},
    "uwsgi_ci.cmd": {"app": "shop.wsgi:application", "bind": [":8000"], "workers": 4, "threads": 2},
    "uwsgi_django.ini": {"app": "shop.wsgi:application", "request_timeout": 60, "socket_mode": "0o660", "threads": 1},
    "uwsgi_emperor.yaml": {"app": "shop.wsgi", "bind": ["uwsgi+unix:@shop"], "socket_mode": "0o666"},
    "uwsgi_environments.ini": {"app": "shop:app"},
    "uwsgi_flask.ini": {"bind": [":9090"], "workers": 4, "threads": 2, "status": "127.0.0.1:9191"},
    "uwsgi_gevent.ini": {
        "app": "shop.wsgi:application",
        "root_path": "/shop",
        "gevent": True,
        "workers": "auto",
        "max_body": "10MiB",
        "backlog": 1024,
    },
    "uwsgi_production.ini": {"max_rss": "2GiB", "max_lifetime": 3600, "graceful_timeout": 60, "workers": 16},
    "uwsgi_site.json": {"idle_timeout": 30, "workers": 3},
    "uwsgi_site.xml": {"bind": ["127.0.0.1:3031"], "umask": "0o022", "graceful_timeout": 8},
}
# What stands in the comments of some, or must not.
SAID = {
    "gunicorn_hooks.py": ["worker_exit(worker)", "def pre_fork()", "SECRET_KEY", "!not-to-be-shown"],
    "gunicorn_tls.py": ["speaks TLS at addresses", "ASGI"],
    "gunicorn_environments.py": ["conditionally", "import *"],
    "gunicorn_django_nginx.py": ["cpu_count() * 2 + 1"],
    "heroku_django.cmd": ["$PORT", "manage.py migrate"],
    "newrelic.cmd": ["newrelic-admin run-program tailrace"],
    "uwsgi_environments.ini": ["if-env = DEBUG", "$PORT"],
    "uwsgi_production.ini": ["systemd timer", "DJANGO_SETTINGS_MODULE"],
}
STAND_IN = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"migrated"]

app = application

def create_app():
    return application
"""


@pytest.fixture
def site(tmp_path):
    """A site with the modules that the configurations name, and what the system has for it."""
    for folder in ("srv/site/static", "srv/site/media", "srv/site/public", "srv/spool", "run/shop", "var/log/shop"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_every_configuration_is_tested():
    assert {path.name for path in SOURCES.iterdir()} == EXPECTED.keys()
    assert len(EXPECTED) >= 20


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
    assert {key: settings.get(key) for key in EXPECTED[name]} == EXPECTED[name], written
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
    is_encrypted = any(bind.startswith("https://") for bind in settings.get("bind", ()))
    address = replace(free_address(), is_encrypted=is_encrypted)
    with Server(settings.get("app", "shop.wsgi"), *arguments, address=address, directory=directory) as server:
        response = server.get(settings.get("root_path", "") + "/")
        assert (response.status, response.body) == (200, b"migrated")
        assert "warning: the variable" not in server.log
