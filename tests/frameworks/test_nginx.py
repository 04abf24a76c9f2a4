"""nginx in front as nothing in deploy/ has it: unbuffered, and with HTTP/1.0 and a connection for each request."""

import hashlib
import tempfile

import pytest
from apps.fw_delivery import content
from frameworks.process import Process, both
from harness.addresses import free_address
from harness.fronts import nginx_with
from harness.tools import need_tool

LARGE = 12_000_001
# /old is what nginx does when nobody says anything.
SITE = """
client_max_body_size 0;
upstream tailrace { server %s; keepalive 8; }
server {
    listen %s;
    location /unbuffered/ {
        proxy_pass http://tailrace/;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
        proxy_request_buffering off;
    }
    location /old/ { proxy_pass http://tailrace/; proxy_http_version 1.0; }
    location /old-unbuffered/ {
        proxy_pass http://tailrace/;
        proxy_http_version 1.0;
        proxy_buffering off;
        proxy_request_buffering off;
    }
}
"""
PLACES = pytest.mark.parametrize("place", ["unbuffered", "old", "old-unbuffered"])


@pytest.fixture(scope="module", params=["tcp", "unix"])
def nginx(request):
    """nginx before a server."""
    with tempfile.TemporaryDirectory(prefix="pst-") as directory, both(f"{directory}/s") as server:
        upstream = server.address.bind if request.param == "tcp" else f"unix:{directory}/s"
        address = free_address()
        made = nginx_with(SITE % (upstream, address.bind))
        with Process(need_tool("nginx"), *made.arguments, address=address, files=made.files) as nginx:
            yield nginx
            for trouble in ("upstream prematurely", "reset by peer", "broken header", "upstream sent", "invalid"):
                assert trouble not in nginx.log, nginx.log


@pytest.fixture
def client(nginx, browser):
    return browser(nginx)


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
    assert seen["SERVER_PROTOCOL"] == ("HTTP/1.0" if place.startswith("old") else "HTTP/1.1")


@PLACES
def test_head(client, place):
    answer = client.head(f"/{place}/file/70000")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "70000")
