"""Frameworks and curl with `--stream-body`: uploads that are parsed while they arrive, and uploads that are refused."""

import hashlib
import subprocess

import pytest
from harness.server import Server
from harness.tools import need_module, need_tool

LARGE, SMALL = b"\x00\r\n--x\r\n" * 400_000, b"tiny"


@pytest.fixture(scope="module")
def server():
    need_module("flask")
    with Server("fw_flask:app", "--stream-body", threads=2) as server:
        yield server


def test_flask_parses_files_and_fields(client):
    answer = client.post("/upload", data={"note": "two"}, files=[("a", ("l.bin", LARGE)), ("b", ("ü.txt", SMALL))])
    assert answer.json() == {
        "files": [
            {"field": "a", "name": "l.bin", "sha256": hashlib.sha256(LARGE).hexdigest()},
            {"field": "b", "name": "ü.txt", "sha256": hashlib.sha256(SMALL).hexdigest()},
        ],
        "form": {"note": "two"},
    }


def test_flask_reads_a_chunked_body_to_its_end(client):
    pieces = (b"x" * size for size in (1, 70_000, 3))
    assert client.post("/raw", content=pieces).json() == {"length": 70_004, "told": None}
    assert client.post("/raw", content=b"y" * 70_004).json() == {"length": 70_004, "told": 70_004}


@pytest.mark.parametrize("arguments", [(), ("--debug",), ("--preload", "--workers", "2")], ids=" ".join)
def test_django_reads_no_chunked_body_and_the_log_says_so_once(browser, arguments):
    need_module("django")
    said = "--stream-body: Django reads chunked uploads as empty"
    with Server("django_reads:application", "--stream-body", *arguments) as server:
        client = browser(server)
        assert client.post("/", content=iter([b"x" * 70_000])).text == "0 False"
        assert client.post("/", content=b"x" * 70_000).text == "70000 True"
        assert server.log.count(said) == 1
    with Server("django_reads:application", *arguments) as server:
        assert browser(server).post("/", content=iter([b"x" * 70_000])).text == "70000 True"
        assert said not in server.log


def test_falcon_reads_a_bounded_stream(browser):
    need_module("falcon")
    with Server("fw_falcon:app", "--stream-body") as server:
        answer = browser(server).post("/digest", content=LARGE)
        assert answer.json() == {"sha256": hashlib.sha256(LARGE).hexdigest(), "length": len(LARGE)}


def test_curl_does_not_send_what_the_application_does_not_read():
    command = [need_tool("curl"), "--silent", "--noproxy", "*", "--max-time", "20", "--expect100-timeout", "60"]
    command += ["-H", "Expect: 100-continue", "--data-binary", "@-", "--write-out", " %{http_code} %{size_upload}"]
    with Server("stream_app:app", "--stream-body") as server:
        for target, expected in (("/", b"pong 200 0"), ("/raise", b"3200000 200 3200000")):
            done = subprocess.run([*command, server.url + target], input=LARGE, capture_output=True, timeout=30)
            assert done.stdout == expected, done
