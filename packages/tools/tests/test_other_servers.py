"""The table of other servers' options: complete, consistent, and as the servers themselves list their options."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tailrace_tools.migrate.convert import OF_SOCKETS
from tailrace_tools.other_servers import find, values
from tailrace_tools.other_servers.rows import Effect, Refused, Server
from tailrace_tools.other_servers.table import TABLE

from tailrace.cli.options import BY_NAME, OPTIONS

FLAGS = {flag for option in OPTIONS for flag in (option.flag, option.short) if flag} | {"--config"}
# What the help of each server looks like: a line for each option, which may have several spellings.
OPTION = r"^  (-.*?)(?:  |$)"
HELPS = {
    Server.GUNICORN: (["gunicorn", "--help"], OPTION),
    Server.GRANIAN: (["granian", "--help"], OPTION),
    Server.WAITRESS: (["waitress-serve", "--help"], r"^    (--.*)"),
    Server.MOD_WSGI: (["mod_wsgi-express", "start-server", "--help"], OPTION),
}
# Asked for, not set.
QUESTIONS = {"-h", "--help", "-v", "--version"}
# Those that the documentation of uWSGI explains in "Things to know", "Quickstart", "Best practices" and the guides for
# Django and Flask, or that packaged configurations use.
UWSGI = """
socket http-socket http uwsgi-socket protocol https shared-socket chmod-socket chown-socket listen backlog umask uid gid
chdir chdir2 home virtualenv venv pythonpath pp module wsgi wsgi-file file callable mount manage-script-name env envdir
paste ini-paste ini include inherit xml yaml json plugin plugins plugins-dir need-app strict master processes workers
threads enable-threads single-interpreter lazy lazy-apps thunder-lock vacuum die-on-term no-orphans harakiri
harakiri-verbose max-requests max-requests-delta min-worker-lifetime max-worker-lifetime reload-on-rss
evil-reload-on-rss reload-on-as worker-reload-mercy reload-mercy buffer-size post-buffering limit-post limit-as
socket-timeout http-timeout http-keepalive http-auto-chunked http-websockets add-header static-map static-map2
check-static static-index static-expires static-gzip-all mimefile offload-threads cheaper cheaper-algo cheaper-initial
cheaper-step idle die-on-idle gevent gevent-monkey-patch async ugreen loop asyncio cache2 queue spooler mule mules farm
cron attach-daemon smart-attach-daemon emperor vassals-inherit zerg legion subscribe-to fastrouter route daemonize logto
log-maxsize logger req-logger log-format log-4xx log-5xx log-slow log-master disable-logging log-x-forwarded-for syslog
pidfile safe-pidfile touch-reload touch-logreopen py-autoreload py-tracebacker py-call-osafterfork stats stats-http
memory-report procname auto-procname procname-prefix ignore-sigpipe ignore-write-errors disable-write-exception
close-on-exec hook-as-root exec-asap cap chroot cpu-affinity import set set-placeholder if-env for catch-exceptions
master-fifo wsgi-disable-file-wrapper no-defer-accept so-keepalive tcp-nodelay response-headers-limit max-fd
""".split()  # noqa: SIM905 - a list of 150 lines otherwise


@pytest.mark.parametrize("server", HELPS, ids=lambda server: server.value)
def test_every_option_in_the_help_of_an_installed_server_has_a_row(server):
    (command, *arguments), pattern = HELPS[server]
    beside = Path(sys.executable).parent / command
    path = str(beside) if beside.exists() else shutil.which(command)
    if path is None:
        pytest.skip(f"{command} is not installed")
    shown = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60).stdout
    spellings = {
        flag.replace("[no-]", "")
        for line in re.findall(pattern, shown, re.MULTILINE)
        for flag in re.findall(r"(?<![\w\-\]])--?[\w\[\]-]+", line)
    }
    assert len(spellings) > 20, shown
    assert [each for each in sorted(spellings - QUESTIONS) if find.of(server, each) is None] == []
    if server is Server.GRANIAN:
        variables = re.findall(r"\b(GRANIAN_[A-Z0-9_]+);", re.sub(r"\s+", "", shown.replace("[env", " [env")) + ";")
        assert len(variables) > 30
        assert [each for each in variables if find.of(server, each) is None] == []


def test_every_setting_of_an_installed_gunicorn_has_a_row():
    config = pytest.importorskip("gunicorn.config")
    # `config` is the file itself.
    names = {setting.name for setting in config.KNOWN_SETTINGS} - {"config"}
    assert [name for name in sorted(names) if find.setting(name) is None] == []


def test_the_options_of_uwsgi_that_its_documentation_explains_have_a_row():
    assert len(UWSGI) > 100
    assert [name for name in UWSGI if name != "backlog" and find.of(Server.UWSGI, name) is None] == []


def test_each_row_names_options_that_there_are():
    for row in TABLE:
        assert (row.effect is Effect.OPTION) == (row.ours in BY_NAME), row
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", row.sentence))
        assert named <= FLAGS, row


def test_a_sentence_of_a_row_is_one_line_without_its_full_stop():
    for row in TABLE:
        assert "\n" not in row.sentence
        assert not row.sentence.endswith("."), row


def test_no_option_is_in_two_rows_of_a_server():
    seen = {}
    for row in TABLE:
        for server, name in row.each():
            for spelling in {*name.flags, *name.settings, name.variable} - {""}:
                assert seen.setdefault((server, spelling), row) is row, (server, spelling)


@pytest.mark.parametrize(
    ("server", "spelling", "shown"),
    [
        (Server.GUNICORN, "--pid", "pidfile"),
        (Server.GUNICORN, "pidfile", "pidfile"),
        (Server.GUNICORN, "-p", "pidfile"),
        (Server.UWSGI, "-p", "processes"),
        (Server.GRANIAN, "GRANIAN_WEBSOCKETS", "ws"),
        (Server.GRANIAN, "GRANIAN_WORKERS", "workers"),
        (Server.GUNICORN, "WEB_CONCURRENCY", "web_concurrency"),
        (Server.UWSGI, "emperor-tyrant", "emperor"),
    ],
)
def test_an_option_is_found_by_each_of_its_spellings(server, spelling, shown):
    found = find.of(server, spelling)
    assert found is not None
    assert found.name.key.rstrip("*") == shown


def test_a_flag_of_gunicorn_is_no_setting_if_the_setting_has_another_name():
    # A gunicorn.conf.py may have a variable `name` of its own.
    assert find.setting("name") is None
    assert find.setting("proc_name") is not None


@pytest.mark.parametrize(
    ("server", "name", "value", "others", "ours"),
    [
        (Server.GUNICORN, "bind", "unix:///run/a.sock", {}, {"bind": ["unix:/run/a.sock"]}),
        (Server.GUNICORN, "bind", ["0.0.0.0", ":80"], {}, {"bind": ["0.0.0.0:8000", ":80"]}),
        (Server.GUNICORN, "bind", "fd://3", {}, {"bind": ["fd://3"]}),
        (Server.GUNICORN, "bind", ":80", {"proxy_protocol": True}, {"bind": ["http://:80?proxy=any"]}),
        (Server.GUNICORN, "bind", "unix:/a", {"protocol": "uwsgi"}, {"bind": ["uwsgi+unix:/a"]}),
        (Server.GUNICORN, "timeout", 30, {}, {"request_timeout": 30}),
        (Server.GUNICORN, "timeout", 30, {"worker_class": "gevent"}, {"hang_timeout": 30}),
        (Server.GUNICORN, "timeout", 30, {"threads": 4}, {"hang_timeout": 30}),
        (Server.GUNICORN, "worker_class", "gevent", {}, {"gevent": True}),
        (Server.GUNICORN, "worker_class", "gthread", {}, {}),
        (Server.GUNICORN, "worker_connections", 500, {"worker_class": "gevent"}, {"max_greenlets": 500}),
        (Server.GUNICORN, "umask", 0o007, {"bind": "unix:/run/a"}, {"mode": 0o770}),
        (Server.GUNICORN, "umask", "0o27", {"bind": ["unix:/run/a"]}, {"mode": 0o750}),
        (Server.GUNICORN, "umask", "007", {"bind": "127.0.0.1:1,unix:/run/a"}, {"mode": 0o770}),
        (Server.GUNICORN, "umask", "18", {"bind": "unix:/run/a"}, {"mode": 0o755}),
        (Server.GUNICORN, "ssl_version", "ssl.PROTOCOL_TLSv1_2", {}, {"tls_min": "1.2"}),
        (Server.GUNICORN, "ssl_version", 5, {}, {"tls_min": "1.2"}),
        (Server.GRANIAN, "--ssl-protocol-min", "tls1.3", {}, {"tls_min": "1.3"}),
        (Server.GUNICORN, "forwarded_allow_ips", "*", {}, {"trusted_proxies": ["*"]}),
        (Server.GUNICORN, "forwarded_allow_ips", "10.0.0.1, ::1", {}, {"trusted_proxies": ["unix", "10.0.0.1", "::1"]}),
        (Server.GUNICORN, "header_map", "dangerous", {}, {"underscore_headers": "keep"}),
        (Server.GUNICORN, "loglevel", "critical", {}, {"log_level": "error"}),
        (Server.GUNICORN, "errorlog", "-", {}, {}),
        (Server.GUNICORN, "errorlog", "/var/log/shop.log", {}, {"log": "/var/log/shop.log"}),
        (Server.GUNICORN, "errorlog", "journal", {}, {"log": "./journal"}),
        (Server.GUNICORN, "syslog", False, {}, {}),
        (
            Server.GUNICORN,
            "syslog",
            True,
            {},
            dict.fromkeys(("log", "access_log"), "syslog://localhost:514?facility=user"),
        ),
        (
            Server.GUNICORN,
            "syslog",
            True,
            {
                "syslog_addr": "unix:///dev/log#dgram",
                "syslog_facility": "LOCAL0",
                "syslog_prefix": "shop",
                "accesslog": "-",
            },
            {"log": "syslog:/dev/log?facility=local0&tag=shop"},
        ),
        (Server.GUNICORN, "syslog_prefix", "shop", {"syslog": True}, {}),
        (Server.GUNICORN, "logconfig_json", "logging.json", {}, {"log_config": "logging.json"}),
        (Server.UWSGI, "logto", "/var/log/shop.log", {}, {"log": "/var/log/shop.log"}),
        (Server.UWSGI, "log-syslog", "", {}, {"log": "syslog"}),
        (Server.UWSGI, "log-syslog", "shop", {}, {"log": "syslog?tag=shop"}),
        (Server.UWSGI, "rsyslog", "10.0.0.1:514", {}, {"log": "syslog://10.0.0.1:514"}),
        (Server.UWSGI, "logger", "app file:/var/log/a.log", {}, {"log": "/var/log/a.log"}),
        (Server.UWSGI, "logger", "stdio", {}, {"log": "stderr"}),
        (Server.UWSGI, "req-logger", "syslog:shop,local6", {}, {"access_log": "syslog?facility=local6&tag=shop"}),
        (Server.UWSGI, "req-logger", "rsyslog:logs:514,shop", {}, {"access_log": "syslog://logs:514?tag=shop"}),
        (Server.UWSGI, "http-socket", "9000", {}, {"bind": [":9000"]}),
        (Server.UWSGI, "http", "*:80", {}, {"bind": [":80"]}),
        (Server.UWSGI, "socket", "/run/a.sock", {}, {"bind": ["uwsgi+unix:/run/a.sock"]}),
        (Server.UWSGI, "socket", ":3031", {}, {"bind": ["uwsgi://:3031"]}),
        (Server.UWSGI, "socket", ":3031", {"protocol": "http"}, {"bind": [":3031"]}),
        (Server.UWSGI, "socket", "@a", {}, {"bind": ["uwsgi+unix:@a"]}),
        (Server.UWSGI, "wsgi-file", "site/wsgi.py", {"callable": "app"}, {"app": "site/wsgi.py:app"}),
        (Server.UWSGI, "module", "site:app", {"callable": "other"}, {"app": "site:app"}),
        (Server.UWSGI, "mount", "/shop=shop:app", {}, {"app": "shop:app", "root_path": "/shop"}),
        (Server.UWSGI, "chmod-socket", "", {}, {"mode": "666"}),
        (Server.UWSGI, "reload-on-rss", "256", {}, {"max_rss": "256MiB"}),
        (Server.UWSGI, "buffer-size", "131072", {}, {"header_bytes_limit": 131072}),
        (Server.UWSGI, "static-map", "/static/=/srv/static", {}, {"static": ["/static=/srv/static"]}),
        (Server.UWSGI, "stats", "/run/stats.sock", {}, {"status": "unix:/run/stats.sock"}),
        (Server.UWSGI, "gevent", "100", {}, {"gevent": True, "max_greenlets": 100}),
        (Server.WAITRESS, "listen", "*:80", {}, {"bind": ["0.0.0.0:80", "[::]:80"]}),
        (Server.WAITRESS, "port", "80", {"port": "80"}, {"bind": ["0.0.0.0:80"]}),
        (Server.GRANIAN, "port", "80", {"host": "::1", "port": "80"}, {"bind": ["[::1]:80"]}),
        (Server.GRANIAN, "http1-header-read-timeout", "500", {}, {"header_timeout": "500ms"}),
        (
            Server.GRANIAN,
            "static-path-mount",
            "b",
            {"static_path_mount": ["a", "b"], "static_path_route": ["/a", "/b"]},
            {"static": ["/b=b"]},
        ),
        (Server.MOD_WSGI, "url-alias", ["/static", "./static"], {}, {"static": ["/static=./static"]}),
        (Server.GUNICORN, "reload_extra_files", ["a.html", "b.html"], {}, {"reload_include": ["a.html", "b.html"]}),
        (Server.GRANIAN, "reload-ignore-dirs", "node_modules", {}, {"reload_include": ["!**/node_modules"]}),
    ],
)
def test_a_value_becomes_ours(server, name, value, others, ours):
    found = find.of(server, name)
    assert found is not None
    converted = found.row.convert(value, others)
    assert converted == ours
    for option, each in converted.items():
        (OF_SOCKETS.get(option) or BY_NAME[option].kind).read(each)


@pytest.mark.parametrize(
    ("server", "name", "value", "others", "reason", "is_needless"),
    [
        (Server.GUNICORN, "worker_class", "uvicorn.workers.UvicornWorker", {}, "ASGI", False),
        (Server.GUNICORN, "worker_class", "eventlet", {}, "gevent = true", False),
        (Server.GUNICORN, "keepalive", 0, {}, "cannot be turned off", False),
        (Server.GUNICORN, "ciphers", "a", {}, "begin with https://", False),
        (Server.GUNICORN, "ssl_version", "ssl.PROTOCOL_TLS", {}, "negotiates the highest", True),
        (Server.GUNICORN, "worker_tmp_dir", "/dev/shm", {}, "shared memory", True),
        (Server.GUNICORN, "limit_request_field_size", 8190, {}, "64 KiB", True),
        (Server.UWSGI, "pythonpath", "/srv/", {"chdir": "/srv"}, "by default", True),
        (Server.UWSGI, "pythonpath", "/lib", {"chdir": "/srv"}, "PYTHONPATH=/lib", False),
        (Server.UWSGI, "buffer-size", "32768", {}, "64 KiB", True),
        (Server.UWSGI, "mount", "/a=b", {"mount": ["/a=b", "/c=d"]}, "one application", False),
        (Server.UWSGI, "socket", ":1", {"protocol": "fastcgi"}, "not fastcgi", False),
        (Server.GUNICORN, "syslog", True, {"syslog_addr": "tcp://logs:514"}, "syslog://HOST:514", False),
        (Server.GUNICORN, "syslog_addr", "udp://logs:514", {}, '`log = "syslog"`', False),
        (Server.GUNICORN, "logconfig", "logging.ini", {}, "--log-config", False),
        (Server.GUNICORN, "logger_class", "shop.Logger", {}, "tailrace.error", False),
        (Server.UWSGI, "logger", "redislog:logs", {}, "`log` takes", False),
        (Server.UWSGI, "logto", "udp:logs:514", {}, "syslog://HOST:514", False),
    ],
)
def test_a_value_without_an_equivalent_is_refused_with_the_reason(server, name, value, others, reason, is_needless):
    found = find.of(server, name)
    assert found is not None
    with pytest.raises(Refused, match=re.escape(reason)) as refused:
        found.row.convert(value, others)
    assert refused.value.is_needless is is_needless


@pytest.mark.parametrize("value", [None, {}, [], object(), 10**400, "x" * 100])
def test_a_value_of_another_type_is_an_error_of_the_value(value):
    for convert in (values.number, values.text):
        try:
            convert(value)
        except ValueError as error:
            assert str(error).startswith("must be")


def test_the_page_follows_the_table():
    script = Path(__file__).resolve().parents[3] / "tools" / "migrate_page.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
