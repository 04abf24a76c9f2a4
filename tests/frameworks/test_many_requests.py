"""Many requests from ab (HTTP/1.0 with keep-alive) and from wrk: none may fail, and all bodies must be right."""

import re
import subprocess

import pytest
from apps.fw_delivery import content
from harness.server import Server
from harness.tools import need_tool

# Compares every body, and counts what differs; `done` runs in another Lua state than the threads.
SCRIPT = """
local file = io.open("%(path)s", "rb")
local expected = file:read("*a")
local threads = {}
bad, seen = 0, 0
function setup(thread) table.insert(threads, thread) end
function init()
    local one = wrk.format("GET", "/%(target)s")
    request = function() return string.rep(one, %(depth)d) end
end
function response(status, headers, body)
    seen = seen + 1
    if status ~= 200 or body ~= expected then bad = bad + 1 end
end
function done(summary)
    for _, thread in ipairs(threads) do
        print("seen " .. thread:get("seen") .. " bad " .. thread:get("bad"))
    end
    for _, kind in ipairs({"connect", "read", "write", "status", "timeout"}) do
        print(kind .. " " .. summary.errors[kind])
    end
end
"""


@pytest.fixture(scope="module")
def server():
    with Server("fw_delivery:app") as server:
        yield server


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ab(*arguments):
    """The lines of ab's report as a table."""
    report = run(need_tool("ab"), "-q", "-s", "20", *arguments)
    return dict(re.findall(r"^([\w -]+):\s+(\S+)", report, re.MULTILINE))


def test_ab_keeps_http_1_0_connections(server):
    report = ab("-k", "-n", "3000", "-c", "10", f"{server.url}/bytes/1234")
    assert (report["Complete requests"], report["Failed requests"]) == ("3000", "0")
    assert report["Keep-Alive requests"] == "3000"
    assert report["Document Length"] == "1234"
    assert report["HTML transferred"] == str(3000 * 1234)
    assert "Non-2xx responses" not in report


def test_ab_without_keep_alive(server):
    report = ab("-n", "1000", "-c", "10", f"{server.url}/file/1234")
    assert (report["Complete requests"], report["Failed requests"]) == ("1000", "0")
    assert report["HTML transferred"] == str(1000 * 1234)
    assert "Non-2xx responses" not in report


def test_ab_of_a_stream_without_a_length(server):
    # To HTTP/1.0 its end is the end of the connection, whatever the client would like.
    report = ab("-k", "-n", "300", "-c", "10", f"{server.url}/blocks/12345")
    assert (report["Complete requests"], report["Failed requests"]) == ("300", "0")
    assert (report["Keep-Alive requests"], report["HTML transferred"]) == ("0", str(300 * 12345))


def test_ab_posts(server, tmp_path):
    upload = tmp_path / "upload"
    upload.write_bytes(content(5000))
    # The answer tells the port of the client, so that its length varies: -l.
    arguments = ("-k", "-l", "-n", "1000", "-c", "10", "-T", "application/octet-stream", "-p", str(upload))
    report = ab(*arguments, f"{server.url}/digest")
    assert (report["Complete requests"], report["Failed requests"]) == ("1000", "0")
    assert report["Keep-Alive requests"] == "1000"
    assert "Non-2xx responses" not in report


@pytest.mark.parametrize("depth", [1, 8], ids=["one-by-one", "pipelined"])
@pytest.mark.parametrize("target", ["bytes/700", "bytes/300000", "blocks/35000", "file/35000"])
def test_wrk(server, tmp_path, target, depth):
    body, script = tmp_path / "body", tmp_path / "script.lua"
    body.write_bytes(content(int(target.partition("/")[2])))
    script.write_text(SCRIPT % {"path": body, "target": target, "depth": depth})
    # A busy machine needs longer for more than the first requests of each connection.
    for duration in ("1s", "5s", "25s"):
        report = run(need_tool("wrk"), "-t1", "-c16", "-d", duration, "--timeout", "20s", "-s", str(script), server.url)
        (seen, bad) = map(int, re.search(r"^seen (\d+) bad (\d+)", report, re.MULTILINE).groups())
        errors = dict(re.findall(r"^(connect|read|write|status|timeout) (\d+)", report, re.MULTILINE))
        assert (bad, errors) == (0, dict.fromkeys(("connect", "read", "write", "status", "timeout"), "0")), report
        if seen > 16 * depth:
            break
    assert seen > 16 * depth
