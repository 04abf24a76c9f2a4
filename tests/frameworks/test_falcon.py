"""A Falcon application under `tailrace fw_falcon:app`."""

import hashlib
from pathlib import Path

import pytest
from harness.server import APPS, Server
from harness.tools import need_module

need_module("falcon")


@pytest.fixture(scope="module")
def server():
    with Server("fw_falcon:app") as server:
        yield server


@pytest.fixture
def client(server, browser):
    return browser(server)


def test_a_resource_is_made_read_and_removed(client, server):
    assert client.get("/seeds/rye").json() == {"title": "No such seed", "description": "rye"}
    made = client.put("/seeds/rye", json={"weight": 0.033, "name": "Roggen, рожь"})
    assert (made.status_code, made.json()) == (201, {"name": "rye"})
    assert made.headers["location"] == f"{server.url}/seeds/rye"
    got = client.get("/seeds/rye")
    assert (got.status_code, got.json()) == (200, {"weight": 0.033, "name": "Roggen, рожь"})
    assert got.headers["etag"] == '"v2"'
    gone = client.delete("/seeds/rye")
    assert (gone.status_code, gone.content) == (204, b"")
    assert "content-length" not in gone.headers
    assert client.get("/seeds/rye").status_code == 404


def test_a_body_that_is_no_json(client):
    answer = client.put("/seeds/oat", content=b"{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["title"] == "Invalid JSON"


def test_a_bounded_stream(client):
    body = bytes(range(256)) * 10_000
    assert client.post("/digest", content=body).json() == {
        "sha256": hashlib.sha256(body).hexdigest(),
        "length": 2_560_000,
    }


def test_multipart_read_part_by_part(client):
    answer = client.post("/form", data={"note": "ä"}, files={"file": ("a.bin", b"\r\n" * 200_000)})
    assert answer.json() == [
        {"name": "note", "file": None, "size": 2},
        {"name": "file", "file": "a.bin", "size": 400_000},
    ]


def test_a_generator(client):
    answer = client.get("/stream")
    assert answer.text == "".join(f"{number}\n" for number in range(2000))
    assert answer.headers["transfer-encoding"] == "chunked"


def test_a_file_with_a_length(client):
    source = (Path(APPS) / "fw_falcon.py").read_bytes()
    answer = client.get("/file")
    assert answer.content == source
    assert answer.headers["content-length"] == str(len(source))
    refused = client.head("/file")
    assert (refused.status_code, refused.content, refused.headers["allow"]) == (405, b"", "GET, OPTIONS")


def test_an_error_handler_with_its_header(client):
    answer = client.get("/fault")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert answer.json() == {"title": "behind the scenes"}
