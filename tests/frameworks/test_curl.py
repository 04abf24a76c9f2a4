"""curl with HTTP/1.0 and HTTP/1.1, and with each kind of request body."""

import hashlib
import json
import re
import subprocess

import pytest
from apps.fw_delivery import content
from frameworks.process import both
from harness.addresses import free_address
from harness.server import Server, shared
from harness.tools import need_tool

CURL = need_tool("curl")
VERSIONS = pytest.mark.parametrize("version", ["1.0", "1.1"])
server = shared(Server, "fw_delivery:app")


@pytest.fixture(scope="module")
def upload(tmp_path_factory):
    path = tmp_path_factory.mktemp("curl") / "upload"
    path.write_bytes(content(3_000_001))
    return path


def curl(*arguments):
    """What curl wrote to its output, and what it said with --verbose; it must be content."""
    command = [CURL, "--silent", "--show-error", "--verbose", "--noproxy", "*", "--max-time", "20", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=30)
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, said
    return done.stdout, said


@VERSIONS
@pytest.mark.parametrize("shape", ["bytes", "blocks", "file"])
@pytest.mark.parametrize("length", [0, 1, 3_000_001])
def test_a_download(server, version, shape, length):
    body, said = curl(f"--http{version}", f"{server.url}/{shape}/{length}")
    assert body == content(length)
    chunked = shape == "blocks" and version == "1.1" and length > 0
    assert ("Transfer-Encoding: chunked" in said) is chunked
    assert f"> GET /{shape}/{length} HTTP/{version}" in said


@VERSIONS
def test_head(server, version):
    body, said = curl(f"--http{version}", "--head", f"{server.url}/file/70000")
    assert b"Content-Length: 70000\r\n" in body
    assert "transfer closed" not in said


def test_one_connection_for_all_shapes(server):
    urls = [f"{server.url}/{shape}/65537" for shape in ("bytes", "blocks", "file")]
    body, said = curl(*urls, "--output", "-", "--output", "-", "--output", "-")
    assert body == content(65537) * 3
    assert said.count("Re-using existing connection") == 2


def test_http_1_0_closes_unless_asked(server):
    said = curl("--http1.0", f"{server.url}/", f"{server.url}/")[1]
    assert "Re-using" not in said
    said = curl("--http1.0", "-H", "Connection: keep-alive", f"{server.url}/", f"{server.url}/")[1]
    assert said.count("Re-using existing connection") == 1


@VERSIONS
def test_an_upload_with_a_length(server, version, upload):
    body, _ = curl(f"--http{version}", "-H", "Expect:", "--data-binary", f"@{upload}", f"{server.url}/digest")
    seen = json.loads(body)
    assert (seen["length"], seen["sha256"]) == (3_000_001, hashlib.sha256(upload.read_bytes()).hexdigest())
    assert (seen["REQUEST_METHOD"], seen["SERVER_PROTOCOL"]) == ("POST", f"HTTP/{version}")


def test_an_upload_in_chunks(server, upload):
    body, said = curl("-H", "Transfer-Encoding: chunked", "-H", "Expect:", "-T", str(upload), f"{server.url}/digest")
    seen = json.loads(body)
    assert "> Transfer-Encoding: chunked" in said
    assert (seen["length"], seen["sha256"]) == (3_000_001, hashlib.sha256(upload.read_bytes()).hexdigest())


def test_an_upload_that_waits_for_100_continue(server, upload):
    # With a long time-out curl would stand still without the interim response, and --max-time would fail the test.
    arguments = ("--expect100-timeout", "60", "-H", "Expect: 100-continue", "--data-binary", f"@{upload}")
    body, said = curl(*arguments, f"{server.url}/digest")
    assert re.search(r"< HTTP/1\.1 100 Continue.*< HTTP/1\.1 200 OK", said, re.DOTALL)
    assert json.loads(body)["sha256"] == hashlib.sha256(upload.read_bytes()).hexdigest()


def test_a_unix_socket(tmp_path):
    path = str(tmp_path / "s")
    with both(path):
        body, _ = curl("--unix-socket", path, "http://shop.example/file/100000")
        assert body == content(100_000)
        seen = json.loads(curl("--unix-socket", path, "http://shop.example/x")[0])
        assert (seen["HTTP_HOST"], seen["PATH_INFO"]) == ("shop.example", "/x")


def test_ipv6():
    address = free_address("::1")
    with Server("fw_delivery:app", address=address) as server:
        seen = json.loads(curl(f"{server.url}/x")[0])
        assert (seen["REMOTE_ADDR"], seen["HTTP_HOST"]) == ("::1", address.bind)
