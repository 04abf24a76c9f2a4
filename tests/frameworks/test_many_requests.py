"""Many requests from ab (HTTP/1.0 with keep-alive) and from wrk: none may fail, and all bodies must be right."""

import re
import subprocess

import pytest
from apps.fw_delivery import content
from harness.load import COMPARE
from harness.server import Server, shared
from harness.tools import need_tool

SCRIPT = """
local file = io.open("%(path)s", "rb")
local expected = file:read("*a")
function init()
    local one = wrk.format("GET", "/%(target)s")
    request = function() return string.rep(one, %(depth)d) end
end
"""
server = shared(Server, "fw_delivery:app")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ab(*arguments):
    """The lines of ab's report as a table."""
    report = run(need_tool("ab"), "-q", "-s", "20", *arguments)
    return dict(re.findall(r"^([\w -]+):\s+(\S+)", report, re.MULTILINE))


@pytest.mark.parametrize(
    ("target", "number", "options", "are_kept"),
    [
        ("/bytes/1234", 3000, ("-k",), True),
        ("/file/1234", 1000, (), False),
        # To HTTP/1.0 the end of a stream is the end of the connection, whatever the client would like.
        ("/blocks/12345", 300, ("-k",), False),
        # The answer tells the port of the client, so that its length varies: -l.
        ("/digest", 1000, ("-k", "-l", "-T", "application/octet-stream", "-p", "UPLOAD"), True),
    ],
    ids=["kept", "closed", "stream", "posts"],
)
def test_ab(server, tmp_path, target, number, options, are_kept):
    upload = tmp_path / "upload"
    upload.write_bytes(content(5000))
    options = [str(upload) if each == "UPLOAD" else each for each in options]
    report = ab(*options, "-n", str(number), "-c", "10", server.url + target)
    assert (report["Complete requests"], report["Failed requests"]) == (str(number), "0")
    assert report.get("Keep-Alive requests", "0") == (str(number) if are_kept else "0")
    assert target == "/digest" or report["HTML transferred"] == str(number * int(target.rpartition("/")[2]))
    assert "Non-2xx responses" not in report


@pytest.mark.nightly(gate=3)
@pytest.mark.parametrize("depth", [1, 8], ids=["one-by-one", "pipelined"])
@pytest.mark.parametrize("target", ["bytes/700", "bytes/300000", "blocks/35000", "file/35000"])
def test_wrk(server, tmp_path, target, depth):
    body, script = tmp_path / "body", tmp_path / "script.lua"
    body.write_bytes(content(int(target.partition("/")[2])))
    script.write_text(SCRIPT % {"path": body, "target": target, "depth": depth} + COMPARE)
    # A busy machine needs longer for more than the first requests of each connection.
    for duration in ("1s", "5s", "25s"):
        report = run(need_tool("wrk"), "-t1", "-c16", "-d", duration, "--timeout", "20s", "-s", str(script), server.url)
        (seen, bad) = map(int, re.search(r"^seen (\d+) bad (\d+)", report, re.MULTILINE).groups())
        errors = dict(re.findall(r"^(connect|read|write|status|timeout) (\d+)", report, re.MULTILINE))
        assert (bad, errors) == (0, dict.fromkeys(("connect", "read", "write", "status", "timeout"), "0")), report
        if seen > 16 * depth:
            break
    assert seen > 16 * depth
