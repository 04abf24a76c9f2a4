"""Bottle and Falcon under `tailrace`: what they read of a body, and the shapes that they return."""

import hashlib
from pathlib import Path

import pytest
from harness.server import APPS, Server
from harness.tools import need_module


@pytest.fixture(scope="module", params=["bottle", "falcon"])
def server(request):
    need_module(request.param)
    with Server(f"fw_{request.param}:app") as server:
        server.framework = request.param
        yield server


def test_a_generator(client):
    answer = client.get("/rows")
    assert answer.text == "first\n" + "".join(f"{number} é\n" for number in range(500))
    assert answer.headers["transfer-encoding"] == "chunked"


def test_a_form_and_a_body(client):
    large = b"\xff\xfe" * 300_000
    answer = client.post("/form", data={"note": "ä"}, files={"file": ("a.bin", large)})
    assert answer.json() == {"note": "ä", "name": "a.bin", "sha256": hashlib.sha256(large).hexdigest()}
    assert client.post("/digest", content=large).json() == {
        "sha256": hashlib.sha256(large).hexdigest(),
        "length": len(large),
    }


def test_a_file(client, server):
    source = (Path(APPS) / f"fw_{server.framework}.py").read_bytes()
    whole = client.get("/source")
    assert (whole.content, whole.headers["content-length"]) == (source, str(len(source)))
    if server.framework == "bottle":
        part = client.get("/source", headers={"Range": "bytes=-17"})
        assert (part.status_code, part.content) == (206, source[-17:])
        unchanged = client.get("/source", headers={"If-Modified-Since": whole.headers["last-modified"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_no_content(client):
    gone = client.delete("/source")
    assert (gone.status_code, gone.content) == (204, b"")
    assert "content-length" not in gone.headers


def test_an_error_in_a_view(client, server):
    assert client.get("/fails").status_code == 500
    assert "ValueError: the view has failed" in server.log
