"""A Bottle application under `tailrace fw_bottle:app`."""

import hashlib
from pathlib import Path

import pytest
from harness.server import APPS, Server
from harness.tools import need_module

need_module("bottle")


@pytest.fixture(scope="module")
def server():
    with Server("fw_bottle:app") as server:
        yield server


@pytest.fixture
def client(server, browser):
    return browser(server)


def test_a_template_with_what_was_asked(client):
    assert client.get("/hello/J%C3%B6rg%3Cb%3E?count=7").text == "<p>Hello Jörg&lt;b&gt;, 7 seeds</p>"


def test_a_signed_cookie_through_a_redirect(client):
    assert client.get("/cookie").status_code == 403
    answer = client.post("/cookie", data={"name": "Zoë"}, follow_redirects=True)
    assert [step.status_code for step in answer.history] == [303]
    assert answer.json() == {"name": "Zoë"}


def test_an_upload(client):
    body = b"\xff\xfe" * 600_000
    answer = client.post("/upload", files={"seeds": ("s.bin", body)})
    assert answer.json() == {"name": "s.bin", "sha256": hashlib.sha256(body).hexdigest()}


def test_json_with_a_length_and_in_chunks(client):
    assert client.put("/json", json={"a": [1, None]}).json() == {"given": {"a": [1, None]}}
    json = {"Content-Type": "application/json"}
    assert client.put("/json", content=iter([b'{"a":', b' "b"}']), headers=json).json() == {"given": {"a": "b"}}


def test_a_static_file_with_conditions_and_ranges(client):
    source = (Path(APPS) / "fw_bottle.py").read_bytes()
    whole = client.get("/source")
    assert (whole.content, whole.headers["content-length"]) == (source, str(len(source)))
    assert whole.headers["content-disposition"] == 'attachment; filename="app.py"'
    part = client.get("/source", headers={"Range": "bytes=-17"})
    assert (part.status_code, part.content) == (206, source[-17:])
    unchanged = client.get("/source", headers={"If-Modified-Since": whole.headers["last-modified"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    head = client.head("/source")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(source)))


def test_a_generator_of_text(client):
    assert client.get("/rows").text == "first\n" + "".join(f"{number} é\n" for number in range(500))


def test_an_error_in_a_view(client, server):
    answer = client.get("/fails")
    assert answer.status_code == 500
    assert "ValueError: the view has failed" in server.log
