"""HAProxy in front: both kinds of health check succeed, and connections are kept and shared by all clients."""

import re
import subprocess
import tempfile
from pathlib import Path

import httpx
import pytest
from apps.fw_delivery import content
from frameworks.process import Process, await_that, both, haproxy_rows
from harness.addresses import free_address
from harness.tools import need_tool

HAPROXY = need_tool("haproxy")

CONFIG = """
global
    stats socket {directory}/stats level admin
    nbthread 1
    maxconn 256
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    # Otherwise each check would have to be answered within the interval between two.
    timeout check 20s
    option http-keep-alive
    http-reuse always
    default-server check inter 20ms fastinter 20ms downinter 20ms rise 1 fall 1
frontend all
    bind %(listen)s
    use_backend unix if { path_beg /unix/ }
    default_backend tcp
# The request of `option httpchk` alone: OPTIONS / HTTP/1.0, and the connection is cut as soon as the status is read.
backend plain
    option httpchk
    server tailrace %(tcp)s
backend tcp
    option httpchk
    http-check send meth GET uri /check/tcp ver HTTP/1.1 hdr Host tailrace
    http-check expect rstring "well.*true"
    server tailrace %(tcp)s
backend unix
    option httpchk HEAD /check/unix
    http-request replace-path /unix(/.*) \\1
    server tailrace unix@%(unix)s
# A check that only connects, and leaves with a reset before it has said a word.
backend connect
    server tailrace %(tcp)s
"""


@pytest.fixture(scope="module")
def pair():
    """tailrace and the HAProxy before it."""
    with tempfile.TemporaryDirectory(prefix="pst-") as directory, both(f"{directory}/s") as server:
        address = free_address()
        config = CONFIG
        for key, text in {"listen": address.bind, "tcp": server.address.bind, "unix": f"{directory}/s"}.items():
            config = config.replace(f"%({key})s", text)
        command = (HAPROXY, "-db", "-f", "{directory}/haproxy.cfg")
        # HAProxy ends as SIGTERM asks, and says so in one way or the other.
        with Process(*command, address=address, files={"haproxy.cfg": config}, statuses=(0, 143, -15)) as haproxy:
            yield server, haproxy


@pytest.fixture
def haproxy(pair):
    return pair[1]


@pytest.fixture
def client(haproxy, browser):
    return browser(haproxy)


def stats(haproxy, backend):
    """HAProxy's own figures of the server in that backend."""
    return haproxy_rows(haproxy.directory / "stats")[backend, "tailrace"]


@pytest.mark.parametrize("backend", ["plain", "tcp", "unix", "connect"])
def test_the_health_check_stays_up_and_leaves_no_trace_in_the_log(pair, haproxy, client, backend):
    await_that(lambda: stats(haproxy, backend)["check_status"].endswith("OK"))
    if backend in ("tcp", "unix"):
        await_that(lambda: client.get(f"/seen/{backend}").json()["count"] > 30)
    else:
        # Not counted by the application; as many by the time that another backend was checked that often.
        before = client.get("/seen/tcp").json()["count"]
        await_that(lambda: client.get("/seen/tcp").json()["count"] > before + 30)
    row = stats(haproxy, backend)
    assert row["status"] == "UP"
    assert (row["chkfail"], row["chkdown"]) == ("0", "0")
    # A star in front: the next check is under way.
    assert row["check_status"].removeprefix("* ") == ("L4OK" if backend == "connect" else "L7OK")
    assert [line for line in pair[0].log.splitlines() if "INFO" not in line] == []


@pytest.mark.parametrize("backend", ["tcp", "unix"])
def test_connections_are_shared_by_all_clients(haproxy, backend):
    place = "/unix" if backend == "unix" else ""
    before = stats(haproxy, backend)
    for length in range(60):
        shape = ("bytes", "blocks", "file")[length % 3]
        with httpx.Client(base_url=haproxy.url, timeout=20.0, trust_env=False, verify=False) as client:
            assert client.get(f"{place}/{shape}/{length}").content == content(length)
    after = stats(haproxy, backend)
    assert int(after["connect"]) - int(before["connect"]) <= 1
    assert int(after["reuse"]) - int(before["reuse"]) >= 59
    assert [after[key] for key in ("econ", "eresp", "wretr", "wredis")] == ["0"] * 4


def test_head_and_a_refusal_pass_through(client):
    answer = client.head("/file/70000")
    assert (answer.content, answer.headers["content-length"]) == (b"", "70000")
    # HAProxy lets a Host pass that is none.
    refused = client.get("/bytes/1", headers={"Host": "a b"})
    assert (refused.status_code, refused.headers["server"]) == (400, "tailrace")
    assert client.get("/bytes/3").content == b"\0\1\2"


@pytest.mark.parametrize("name", ["haproxy.cfg", "haproxy-proxy.cfg", "haproxy-unix.cfg"])
def test_our_configurations_say_how_many_descriptors_they_need(name):
    path = Path(__file__).resolve().parents[2] / "deploy" / name
    command = ["prlimit", "--nofile=1000:1000", HAPROXY, "-f", str(path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    needed = re.search(r"Cannot raise FD limit to (\d+)", refused.stderr)
    assert needed, refused.stderr
    assert f"{int(needed[1]):,} open files" in path.read_text()
