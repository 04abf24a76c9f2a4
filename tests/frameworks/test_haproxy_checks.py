"""HAProxy asks for health every 10 ms while the server is under full load, and never takes it for down: each response
to a check arrives whole.

TAILRACE_TEST_SECONDS=300 has it do so for five minutes.
"""

import os
import re
import subprocess

import pytest
from frameworks.process import Process, await_that, haproxy_rows
from harness.addresses import free_address
from harness.server import Server
from harness.status import is_ready
from harness.tools import need_tool

HAPROXY, WRK = need_tool("haproxy"), need_tool("wrk")
SECONDS = int(os.environ.get("TAILRACE_TEST_SECONDS", "20"))

CONFIG = """
global
    stats socket {directory}/stats level admin
    log stdout format raw local0
    maxconn 256
defaults
    mode http
    log global
    option log-health-checks
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    # A check may take its time on a machine that has none left. What it must not do is fail.
    timeout check 20s
    default-server check inter 10ms fastinter 10ms downinter 10ms rise 1 fall 1
frontend all
    bind %(listen)s
    default_backend status
backend status
    option httpchk
    http-check expect status 200
    server tailrace %(server)s
backend body
    option httpchk
    http-check send meth GET uri /check/body ver HTTP/1.1 hdr Host tailrace
    http-check expect rstring '^{"well": true, .*}$'
    server tailrace %(server)s
backend field
    option httpchk
    http-check send meth HEAD uri /check/field ver HTTP/1.1 hdr Host tailrace
    http-check expect hdr name content-type value application/json
    server tailrace %(server)s
backend ready
    option httpchk
    http-check send meth GET uri /ready ver HTTP/1.1 hdr Host tailrace
    http-check expect string ready
    server tailrace %(server)s port %(port)s
"""


def seen(server):
    """How many requests of the backends `body` and `field` the application has answered."""
    return sum(int(re.search(rb'"count": (\d+)', server.get(f"/seen/{each}").body)[1]) for each in ("body", "field"))


@pytest.mark.nightly
def test_no_check_fails_under_full_load(capsys):
    status = free_address()
    with Server("fw_delivery:app", status=status) as server:
        await_that(lambda: is_ready(status))
        listen = free_address()
        config = CONFIG
        for key, text in {"listen": listen, "server": server.address, "port": status.port}.items():
            config = config.replace(f"%({key})s", str(getattr(text, "bind", text)))
        command = (HAPROXY, "-db", "-f", "{directory}/haproxy.cfg")
        with Process(*command, address=listen, files={"haproxy.cfg": config}, statuses=(0, 143, -15)) as process:
            await_that(lambda: seen(server) > 30)
            before = seen(server)
            loads = [
                subprocess.Popen(
                    [WRK, "-t1", "-c16", f"-d{SECONDS}s", f"{server.url}{target}"], stdout=subprocess.PIPE, text=True
                )
                for target in ("/bytes/2000", "/blocks/30000")
            ]
            told = [load.communicate(timeout=SECONDS + 60)[0] for load in loads]
            checks = seen(server) - before
            requests = sum(int(re.search(r"(\d+) requests in", each)[1]) for each in told)
            with capsys.disabled():
                print(f"\n{SECONDS} s: {checks} requests of checks among {requests} others")
            assert checks > 100
            assert not any("Socket errors" in each or "Non-2xx" in each for each in told), told
            for name in ("status", "body", "field", "ready"):
                row = haproxy_rows(process.directory / "stats")[name, "tailrace"]
                assert (row["status"], row["chkfail"], row["chkdown"]) == ("UP", "0", "0"), (name, row["last_chk"])
            assert "DOWN" not in process.log
            assert " failed, " not in process.log
