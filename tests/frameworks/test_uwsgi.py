"""nginx (uwsgi_pass) and Apache (mod_proxy_uwsgi) in front, over TCP and over a UNIX socket."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from apps.fw_delivery import content
from frameworks.process import Process, await_that
from harness.addresses import free_address
from harness.server import Server
from harness.tools import missing, need_tool

NGINX = need_tool("nginx")
APACHE = need_tool("apache2")
MODULES = Path("/usr/lib/apache2/modules")
if not (MODULES / "mod_proxy_uwsgi.so").exists():
    missing(f"{MODULES} has no mod_proxy_uwsgi.so")
if not Path("/etc/nginx/uwsgi_params").exists():
    missing("/etc/nginx has no uwsgi_params")

SEEDS = Path(__file__).parents[2] / "examples" / "seeds.py"
IS_ROOT = os.geteuid() == 0

# The PATH_INFO of the file that is included is overruled by the second one: the last counts.
NGINX_CONFIG = """
daemon off;
pid {directory}/pid;
error_log {directory}/error.log warn;
%(user)s
events { worker_connections 256; }
http {
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    map $place $upstream {
        tcp %(tcp)s;
        unix unix:%(unix)s;
        seeds-tcp %(seeds-tcp)s;
        seeds-unix unix:%(seeds-unix)s;
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
ProxyPass /seeds-tcp uwsgi://%(seeds-tcp)s
ProxyPass /seeds-unix unix:%(seeds-unix)s|uwsgi://seeds
"""
PLACES = pytest.mark.parametrize("place", ["tcp", "unix"])


@contextlib.contextmanager
def serving(application, path):
    """A server for HTTP, and for uwsgi over TCP and the UNIX socket `path`; and its address for uwsgi."""
    address, packets = free_address(), free_address()
    binds = (address.bind, f"uwsgi://{packets.bind}", f"uwsgi+unix:{path}?mode=666")
    arguments = [part for bind in binds for part in ("--bind", bind)]
    with Server(application, *arguments, address=address, trusted_proxies="unix,127.0.0.1") as server:
        yield server, packets


@pytest.fixture(scope="module")
def servers():
    """The servers of fw_delivery and of examples/seeds.py, and what the configurations of proxies say of them."""
    with (
        tempfile.TemporaryDirectory(prefix="pst-") as directory,
        serving("fw_delivery:app", f"{directory}/s") as (delivery, tcp),
        serving(str(SEEDS), f"{directory}/e") as (seeds, seeds_tcp),
    ):
        # The processes of the proxies are of other users.
        os.chmod(directory, 0o755)
        values = {"tcp": tcp.bind, "unix": f"{directory}/s"}
        yield delivery, seeds, values | {"seeds-tcp": seeds_tcp.bind, "seeds-unix": f"{directory}/e"}


@pytest.fixture(scope="module", params=["nginx", "apache"])
def proxy(request, servers):
    """The proxy in front of both."""
    address = free_address()
    if request.param == "nginx":
        config, user = NGINX_CONFIG, "user root;" if IS_ROOT else ""
        command = (NGINX, "-c", "{directory}/proxy.conf", "-p", "{directory}/", "-e", "{directory}/error.log")
    else:
        config, user = APACHE_CONFIG, "User www-data" if IS_ROOT else ""
        command = (APACHE, "-D", "FOREGROUND", "-f", "{directory}/proxy.conf")
    values = {**servers[2], "user": user, "listen": address.bind, "modules": str(MODULES)}
    for key, text in values.items():
        config = config.replace(f"%({key})s", text)
    with Process(*command, address=address, files={"proxy.conf": config}) as process:
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
@pytest.mark.parametrize("shape", ["bytes", "blocks", "file"])
def test_a_large_download(client, place, shape):
    got = client.get(f"/{place}/{shape}/5000001").content
    assert len(got) == 5_000_001
    assert hashlib.sha256(got).digest() == hashlib.sha256(content(5_000_001)).digest()


@PLACES
@pytest.mark.parametrize("length", [0, 1, 70_000, 50_000_000])
def test_an_upload(client, place, length):
    body = content(length)
    seen = client.post(f"/{place}/digest", content=body).json()
    assert (seen["length"], seen["sha256"]) == (length, hashlib.sha256(body).hexdigest())


def test_a_chunked_upload(client, proxy):
    answer = client.post("/unix/digest", content=iter([b"hel", b"lo"]))
    # Apache does not collect such a body for uwsgi; nginx does, and tells its length.
    assert answer.status_code == (411 if proxy.name == "apache" else 200)
    if proxy.name == "nginx":
        assert (answer.json()["length"], answer.json()["CONTENT_LENGTH"]) == (5, "5")


@PLACES
def test_head(client, place):
    answer = client.head(f"/{place}/file/70000")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "70000")


@pytest.mark.parametrize("place", ["seeds-tcp", "seeds-unix"])
def test_every_shape_arrives_byte_for_byte(client, servers, browser, place):
    direct = browser(servers[1])
    paths = direct.get("/records").json()["records"].keys()
    assert len(paths) >= 10
    for path in paths:
        through, expected = client.get(f"/{place}{path}"), direct.get(path)
        assert through.status_code == expected.status_code, path
        assert through.content == expected.content, path


@PLACES
def test_a_block_arrives_before_the_next_one_is_made(client, proxy, place):
    key = f"stream-{proxy.name}-{place}"
    with client.stream("GET", f"/{place}/until/{key}") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "first"
        client.get(f"/{place}/open/{key}")
        assert list(lines) == ["second"]


@PLACES
def test_a_client_that_leaves_ends_its_response(client, proxy, servers, browser, place):
    key = f"gone-{proxy.name}-{place}"
    with client.stream("GET", f"/{place}/until/{key}") as answer:
        assert next(answer.iter_lines()) == "first"
    direct = browser(servers[0])
    direct.get(f"/open/{key}")
    await_that(lambda: direct.get(f"/seen/{key}").json()["count"] == 1)
