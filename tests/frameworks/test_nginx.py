"""nginx in front, over TCP and over a UNIX socket, with and without keep-alive, buffering and HTTP/1.1."""

import hashlib
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from apps.fw_delivery import content
from frameworks.process import Process, both, connections
from harness.addresses import free_address
from harness.tools import need_tool

NGINX = need_tool("nginx")
LARGE = 12_000_001

# /old is what nginx does when nobody says anything: HTTP/1.0 and a connection a request.
CONFIG = """
daemon off;
pid {directory}/pid;
error_log {directory}/error.log warn;
%(user)s
events { worker_connections 256; }
http {
    access_log {directory}/access.log;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    upstream tailrace { server %(upstream)s; keepalive 8; }
    server {
        listen %(listen)s;
        location /kept/ {
            proxy_pass http://tailrace/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }
        location /unbuffered/ {
            proxy_pass http://tailrace/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_request_buffering off;
        }
        location /old/ { proxy_pass http://tailrace/; }
        location /old-unbuffered/ { proxy_pass http://tailrace/; proxy_buffering off; proxy_request_buffering off; }
    }
}
"""
PLACES = pytest.mark.parametrize("place", ["kept", "unbuffered", "old", "old-unbuffered"])


@pytest.fixture(scope="module", params=["tcp", "unix"])
def pair(request):
    """tailrace and the nginx before it."""
    with tempfile.TemporaryDirectory(prefix="pst-") as directory, both(f"{directory}/s") as server:
        upstream = server.address.bind if request.param == "tcp" else f"unix:{directory}/s"
        address = free_address()
        user = "user root;" if os.geteuid() == 0 else ""
        config = CONFIG
        for key, text in {"user": user, "upstream": upstream, "listen": address.bind}.items():
            config = config.replace(f"%({key})s", text)
        command = (NGINX, "-c", "{directory}/nginx.conf", "-p", "{directory}/", "-e", "{directory}/error.log")
        with Process(*command, address=address, files={"nginx.conf": config}) as nginx:
            yield server, nginx
            for trouble in ("upstream prematurely", "reset by peer", "broken header", "upstream sent", "invalid"):
                assert trouble not in nginx.log, nginx.log


@pytest.fixture
def nginx(pair):
    return pair[1]


@pytest.fixture
def client(nginx, browser):
    return browser(nginx)


@PLACES
def test_what_the_application_sees(client, nginx, place):
    seen = client.get(f"/{place}/a%20b/%C3%A9?x=1%202").json()
    assert seen["PATH_INFO"] == "/a b/\xc3\xa9"
    assert seen["QUERY_STRING"] == "x=1%202"
    assert seen["SERVER_PROTOCOL"] == ("HTTP/1.0" if place.startswith("old") else "HTTP/1.1")
    assert seen["HTTP_HOST"] == (nginx.address.bind if place == "kept" else "tailrace")


@PLACES
@pytest.mark.parametrize("shape", ["bytes", "blocks", "file"])
def test_a_large_download(client, place, shape):
    got = client.get(f"/{place}/{shape}/{LARGE}").content
    assert len(got) == LARGE
    assert hashlib.sha256(got).digest() == hashlib.sha256(content(LARGE)).digest()


@PLACES
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_large_upload(client, place, chunked):
    body = content(LARGE)
    pieces = (body[start : start + 70_000] for start in range(0, LARGE, 70_000))
    seen = client.post(f"/{place}/digest", content=pieces if chunked else body).json()
    assert (seen["length"], seen["sha256"]) == (LARGE, hashlib.sha256(body).hexdigest())


@PLACES
def test_head(client, place):
    answer = client.head(f"/{place}/file/70000")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "70000")
    assert client.get(f"/{place}/bytes/3").content == b"\0\1\2"


def test_connections_are_kept_and_used_again(pair, client):
    server, nginx = pair
    unix = re.search(r"server unix:(\S+);", (nginx.directory / "nginx.conf").read_text())
    path = unix[1] if unix else ""
    client.get("/kept/bytes/10")
    before = connections(server, path)
    assert before >= 1
    for length in range(100):
        shape = ("bytes", "blocks", "file")[length % 3]
        assert client.get(f"/kept/{shape}/{length}").content == content(length)
    assert connections(server, path) == before
    if not path:
        ports = {client.get("/kept/").json()["REMOTE_PORT"] for _ in range(20)}
        assert len(ports) <= before


def test_many_clients(nginx):
    def fetch(number):
        with httpx.Client(base_url=nginx.url, timeout=20.0, trust_env=False, verify=False) as client:
            for length in range(number * 1000, number * 1000 + 20):
                if client.get(f"/kept/bytes/{length}").content != content(length):
                    return f"bytes/{length}"
                digest = client.post("/kept/digest", content=content(length)).json()["sha256"]
                if digest != hashlib.sha256(content(length)).hexdigest():
                    return f"digest of {length}"
        return "all well"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fetch, range(16))) == ["all well"] * 16
