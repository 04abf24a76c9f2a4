"""A Flask application under `tailrace fw_flask:app`."""

import hashlib

import httpx
import pytest
from frameworks.process import await_that
from harness.server import APPS, Server, shared
from harness.tools import need_module

need_module("flask")
server = shared(Server, "fw_flask:app")


def test_paths_and_queries_arrive_decoded_once(client, server):
    answer = client.get(
        "/seeds/caf%C3%A9%20%2541/x", params={"tag": ["ä b", "+&="]}, headers={"Host": "shop.example:81"}
    )
    assert answer.json() == {
        "name": "café %41/x",
        "tags": ["ä b", "+&="],
        "url": "http://shop.example:81/seeds/caf%C3%A9%20%2541/x",
    }


def test_a_session_in_a_signed_cookie(client):
    assert client.get("/me").status_code == 401
    answer = client.post("/login", data={"name": "Ørsted"})
    assert (answer.status_code, answer.headers["location"]) == (302, "/me")
    assert client.get("/me").json() == {"name": "Ørsted", "visits": 1, "said": ["welcome"]}
    assert client.get("/me").json() == {"name": "Ørsted", "visits": 2, "said": []}
    client.cookies.set("session", "forged", domain="127.0.0.1")
    assert client.get("/me").status_code == 401


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize(
    ("environment", "configured", "is_shown"),
    [({}, "", False), ({"FLASK_DEBUG": "1"}, "", True), ({}, "app.config['PROPAGATE_EXCEPTIONS'] = True", True)],
    ids=["default", "variable", "configured"],
)
@pytest.mark.parametrize("arguments", [(), ("--reload",)], ids=" ".join)
def test_debug_names_the_setting_by_which_flask_shows_tracebacks(
    tmp_path, environment, configured, is_shown, arguments
):
    (tmp_path / "shows.py").write_text(f"from fw_flask import app\n{configured}\n")
    environment = {**environment, "PYTHONPATH": str(APPS)}
    with Server("shows:app", "--debug", *arguments, environment=environment, directory=tmp_path) as server:
        answer = httpx.get(server.url + "/fails")
        assert answer.status_code == 500
        assert ("ValueError: the view has failed" in answer.text) == is_shown
        assert server.logged("the framework does not catch (Flask catches all, unless FLASK_DEBUG=1 or PROPAGATE_EXC")


def test_an_upload_of_files_and_fields(client):
    large, small = b"\x00\r\n--x\r\n" * 400_000, b"tiny"
    answer = client.post("/upload", data={"note": "two"}, files=[("a", ("l.bin", large)), ("b", ("ü.txt", small))])
    assert answer.json() == {
        "files": [
            {"field": "a", "name": "l.bin", "sha256": hashlib.sha256(large).hexdigest()},
            {"field": "b", "name": "ü.txt", "sha256": hashlib.sha256(small).hexdigest()},
        ],
        "form": {"note": "two"},
    }


def test_a_chunked_body_is_read_to_its_end(client):
    assert client.post("/raw", content=(b"x" * size for size in (1, 70_000, 3))).json()["length"] == 70_004
    assert client.post("/raw", content=b"y" * 70_004).json() == {"length": 70_004, "told": 70_004}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit_of_the_application(client, chunked):
    body = b"z" * 1_000_000
    answer = client.post("/small", content=iter([body]) if chunked else body)
    assert answer.status_code == 413
    assert "exceeds the capacity limit" in answer.text
    assert client.post("/small", content=b"z" * 1000).json() == {"length": 1000}


def test_an_error_in_a_view_is_a_page_and_a_line_in_the_log(client, server):
    answer = client.get("/fails")
    assert answer.status_code == 500
    assert "Internal Server Error" in answer.text
    assert "ValueError: the view has failed" in server.log
    assert client.get("/").status_code == 200


def test_an_error_in_a_stream_breaks_the_connection(client, server):
    with pytest.raises(httpx.RemoteProtocolError):
        client.get("/stream-fails")
    await_that(lambda: "ValueError: the stream has failed" in server.log)
    assert client.get("/").status_code == 200
