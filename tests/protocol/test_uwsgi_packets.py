"""uwsgi packets at a real server: in every mode, for static files, in the log, from peers that are not trusted."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from frameworks.process import await_that
from harness.addresses import Address, free_address
from harness.greenlets import GEVENT
from harness.packets import ask, packet, variables
from harness.server import Server
from harness.wire import Client

Start = Callable[..., Address]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(argument, ...)`: a server of fw_delivery that takes packets on a UNIX socket, whose address it returns."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="pst-"))

        def started(*arguments: str, **options: object) -> Address:
            bind = f"uwsgi+unix:{directory}/s"
            address = Address(path=f"{directory}/s")
            server = Server("fw_delivery:app", "--bind", bind, *arguments, address=address, **options)
            stack.enter_context(server)
            return address

        yield started


@pytest.mark.parametrize(
    "mode",
    # --debug has no greenlets.
    [[], ["--stream-body"], ["--threads", "1"], *([] if GEVENT else [["--debug"]])],
    ids=str,
)
def test_packets_are_served_in_every_mode(start: Start, mode: list[str]) -> None:
    address = start(*mode)
    body = bytes(200_000)
    said = {"REMOTE_ADDR": "192.0.2.7", "REMOTE_PORT": "4711", "REMOTE_USER": "me", "X": "y", "tailrace.delivery": "z"}
    digest = ask(address, packet(variables("/digest?a", "POST", CONTENT_LENGTH="200000", HTTPS="on", **said), body))
    seen = json.loads(digest.body)
    assert (digest.status, seen["length"], seen["CONTENT_LENGTH"]) == (200, 200_000, "200000")
    assert (seen["REMOTE_ADDR"], seen["REMOTE_PORT"], seen["REMOTE_USER"]) == ("192.0.2.7", "4711", "me")
    assert (seen["X"], seen["wsgi.url_scheme"], seen["HTTP_HOST"]) == ("y", "https", "test")
    assert "tailrace.delivery" not in seen
    blocks = ask(address, packet(variables("/blocks/100000")))
    assert (blocks.status, len(blocks.body)) == (200, 100_000)
    assert not {"transfer-encoding", "connection", "date", "server"} & blocks.fields.keys()


def test_static_files_and_their_conditions_know_packets(start: Start, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0123456789")
    address = start("--static", f"/files={tmp_path}")
    whole = ask(address, packet(variables("/files/a.txt")))
    assert (whole.status, whole.body) == (200, b"0123456789")
    same = ask(address, packet(variables("/files/a.txt", HTTP_IF_NONE_MATCH=whole.fields["etag"])))
    assert (same.status, same.body) == (304, b"")
    part = ask(address, packet(variables("/files/a.txt", HTTP_RANGE="bytes=2-4")))
    assert (part.status, part.body) == (206, b"234")


def test_the_log_shows_the_client_and_the_user_that_the_proxy_names(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    address = start("--access-log", str(log), "--access-log-format", '%(h)s %(u)s "%(r)s" %(s)s %({user-agent}i)s')
    said = {"REMOTE_ADDR": "192.0.2.7", "REMOTE_PORT": "4711", "REMOTE_USER": "me", "HTTP_USER_AGENT": "agent"}
    ask(address, packet(variables("/bytes/3", **said)))
    await_that(lambda: log.read_text().count("\n") == 1)
    ask(address, b"\0\1\0\0\0")
    await_that(lambda: log.read_text().count("\n") == 2)
    first, second = log.read_text().splitlines()
    assert first == '192.0.2.7 me "GET /bytes/3 HTTP/1.1" 200 agent'
    assert '"- - HTTP/1.1" 400' in second


def test_a_peer_that_is_not_trusted_is_told_so() -> None:
    address = free_address()
    with Server("fw_delivery:app", "--bind", f"uwsgi://{address.bind}", address=address, trusted_proxies="none"):
        refused = ask(address, packet(variables()))
        assert refused.status == 403
        assert b"--trusted-proxies" in refused.body


def test_who_connects_to_the_wrong_listener_is_told_so(start: Start) -> None:
    wrong = ask(start(), b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
    assert wrong.status == 400
    assert b"looks like HTTP" in wrong.body
    with Server("fw_delivery:app") as server, Client(server.address) as client:
        response = client.ask(packet(variables()))
        assert response.status == 400
        assert b"looks like the uwsgi protocol" in response.body
