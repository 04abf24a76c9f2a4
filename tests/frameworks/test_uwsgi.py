"""nginx (uwsgi_pass) and Apache (mod_proxy_uwsgi) in front, over TCP and over a UNIX socket."""

import os
import tempfile
from pathlib import Path

import pytest
from frameworks.process import Process, await_that
from harness.addresses import free_address
from harness.fronts import nginx_with
from harness.server import Server
from harness.tools import missing, need_tool

APACHE = need_tool("apache2")
MODULES = Path("/usr/lib/apache2/modules")
if not (MODULES / "mod_proxy_uwsgi.so").exists():
    missing(f"{MODULES} has no mod_proxy_uwsgi.so")
if not Path("/etc/nginx/uwsgi_params").exists():
    missing("/etc/nginx has no uwsgi_params")


# The PATH_INFO of the file that is included is overruled by the second one: the last counts.
NGINX_SITE = """
map $place $upstream {
    tcp %(tcp)s;
    unix unix:%(unix)s;
}
server {
    listen %(listen)s;
    location ~ ^(?<mount>/(?<place>[^/]+))(?<rest>/.*)$ {
        include /etc/nginx/uwsgi_params;
        uwsgi_param SCRIPT_NAME $mount;
        uwsgi_param PATH_INFO $rest;
        uwsgi_param FROM_OPERATOR "a value";
        # As $ssl_client_cert is.
        uwsgi_param CERTIFICATE "first\\n\\tsecond\\n";
        uwsgi_param wsgi.url_scheme forged;
        uwsgi_pass $upstream;
    }
}
"""
APACHE_CONFIG = """
ServerRoot {directory}
ServerName test
DefaultRuntimeDir {directory}
PidFile {directory}/pid
ErrorLog {directory}/error.log
LogLevel warn
%(user)s
LoadModule mpm_event_module %(modules)s/mod_mpm_event.so
LoadModule authz_core_module %(modules)s/mod_authz_core.so
LoadModule env_module %(modules)s/mod_env.so
LoadModule proxy_module %(modules)s/mod_proxy.so
LoadModule proxy_uwsgi_module %(modules)s/mod_proxy_uwsgi.so
Listen %(listen)s
StartServers 1
ServerLimit 1
ThreadsPerChild 16
MaxRequestWorkers 16
# As Debian sets it. SERVER_SIGNATURE is a line of HTML with its end.
ServerSignature On
SetEnv FROM_OPERATOR "a value"
SetEnv wsgi.url_scheme forged
ProxyPass /tcp uwsgi://%(tcp)s
ProxyPass /unix unix:%(unix)s|uwsgi://app
"""
PLACES = pytest.mark.parametrize("place", ["tcp", "unix"])


@pytest.fixture(scope="module")
def server():
    """A server for HTTP, and for uwsgi over TCP and a UNIX socket; `values`: what a proxy must be told of it."""
    address, packets = free_address(), free_address()
    with tempfile.TemporaryDirectory(prefix="pst-") as directory:
        # The processes of the proxies are of other users.
        os.chmod(directory, 0o755)
        binds = (address.bind, f"uwsgi://{packets.bind}", f"uwsgi+unix:{directory}/s?mode=666")
        arguments = [part for bind in binds for part in ("--bind", bind)]
        with Server("fw_delivery:app", *arguments, address=address, trusted_proxies="unix,127.0.0.1") as server:
            server.values = {"tcp": packets.bind, "unix": f"{directory}/s"}
            yield server


@pytest.fixture(scope="module", params=["nginx", "apache"])
def proxy(request, server):
    """The proxy in front of it."""
    address = free_address()
    user = "User www-data" if os.geteuid() == 0 else ""
    config = NGINX_SITE if request.param == "nginx" else APACHE_CONFIG
    for key, text in {**server.values, "user": user, "listen": address.bind, "modules": str(MODULES)}.items():
        config = config.replace(f"%({key})s", text)
    if request.param == "nginx":
        made = nginx_with(config)
        command, files = (need_tool("nginx"), *made.arguments), made.files
    else:
        command, files = (APACHE, "-D", "FOREGROUND", "-f", "{directory}/proxy.conf"), {"proxy.conf": config}
    with Process(*command, address=address, files=files) as process:
        process.name = request.param
        yield process


@pytest.fixture
def client(proxy, browser):
    return browser(proxy)


@PLACES
def test_what_the_application_sees(client, proxy, place):
    fields = [("X-A", "1"), ("X-A", "2"), ("Content-Type", "text/plain"), ("Proxy", "evil")]
    answer = client.post(f"/{place}/a%20b/%C3%A9?x=1%202", content=b"hello", headers=fields)
    seen = answer.json()
    expected = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": f"/{place}",
        "PATH_INFO": "/a b/\xc3\xa9",
        "QUERY_STRING": "x=1%202",
        "REQUEST_URI": f"/{place}/a%20b/%C3%A9?x=1%202",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_PORT": str(proxy.address.port),
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "5",
        "HTTP_X_A": "1, 2",
        "FROM_OPERATOR": "a value",
        "wsgi.url_scheme": "http",
    }
    assert {key: seen.get(key) for key in expected} == expected
    assert seen["HTTP_HOST"].startswith("127.0.0.1")
    assert seen.get("SERVER_SIGNATURE", "\n").endswith("\n")
    assert seen.get("CERTIFICATE") == ("first\n\tsecond\n" if proxy.name == "nginx" else None)
    assert seen["SERVER_NAME"] and int(seen["REMOTE_PORT"]) > 0
    assert not {"HTTP_PROXY", "HTTP_CONTENT_LENGTH", "HTTP_CONTENT_TYPE"} & seen.keys()
    # The proxy's own, and its client's connection is kept.
    assert "tailrace" not in answer.headers["server"] and len(answer.headers.get_list("date")) == 1
    assert answer.headers.get("connection", "").lower() != "close"


@PLACES
def test_a_block_arrives_before_the_next_one_is_made(client, proxy, place):
    key = f"stream-{proxy.name}-{place}"
    with client.stream("GET", f"/{place}/until/{key}") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "first"
        client.get(f"/{place}/open/{key}")
        assert list(lines) == ["second"]


@PLACES
def test_a_client_that_leaves_ends_its_response(client, proxy, server, browser, place):
    key = f"gone-{proxy.name}-{place}"
    with client.stream("GET", f"/{place}/until/{key}") as answer:
        assert next(answer.iter_lines()) == "first"
    direct = browser(server)
    direct.get(f"/open/{key}")
    await_that(lambda: direct.get(f"/seen/{key}").json()["count"] == 1)
