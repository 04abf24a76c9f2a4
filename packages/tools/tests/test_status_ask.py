"""What `tailrace threads`, `top` and `doctor --live` do with an answer of a process that may be any."""

import contextlib
import itertools
import json
import socket
import threading
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tailrace_tools.live import ask

from tailrace.command import cli
from tailrace.stacks import process

TITLE = "\x1b]0;owned\x07\x1b[2J\x9b"


@contextlib.contextmanager
def answering(send):
    """The address of a process that answers every request by calling `send` with the connection."""

    def answer():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    while b"\r\n\r\n" not in connection.recv(65536, socket.MSG_PEEK):
                        pass
                    connection.recv(65536)
                    send(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def response(body, status="200 OK"):
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def refusal(send):
    with answering(send) as address, pytest.raises(ask.AskError) as caught:
        ask.Asked(address).status()
    assert str(caught.value).isprintable(), "one line, and nothing that a terminal obeys"
    return str(caught.value).replace(address, "ADDRESS")


def endless(head):
    def send(connection):
        connection.sendall(head)
        for _ in itertools.count():
            connection.sendall(bytes(65536))

    return send


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000000000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n12A05F200\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n",
    ],
)
def test_an_endless_answer_is_left(monkeypatch, head):
    monkeypatch.setattr(ask, "LONGEST", 1 << 20)
    assert refusal(endless(head)) == (
        "the response from ADDRESS to /status.json is longer than 1 MiB, so this is not a --status address; was the "
        "server started with `--status ADDRESS`?"
    )


def test_an_endless_head_is_left(monkeypatch):
    monkeypatch.setattr(ask, "LONGEST", 1 << 20)

    def send(connection):
        for _ in itertools.count():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    assert "longer than 1 MiB" in refusal(send)


def test_an_answer_that_comes_byte_by_byte_has_the_time_of_one(monkeypatch):
    """Each look at the clock is a second later, and lets one byte come: none of the waits is long."""
    seconds, turn = itertools.count(), threading.Semaphore(0)

    def clock():
        now = next(seconds)
        # At the end all of them, so that the thread that answers ends.
        turn.release(1 if now < ask.TIMEOUT else 1000)
        return float(now)

    def send(connection):
        for byte in response(b'{"workers": []}'):
            turn.acquire()
            connection.sendall(bytes((byte,)))

    # Not time.monotonic itself, which other threads of this process call.
    monkeypatch.setattr(ask, "time", SimpleNamespace(monotonic=clock))
    assert refusal(send) == (
        "no complete response from ADDRESS within 10 s; was the server started with `--status ADDRESS`?"
    )


def test_all_addresses_of_a_name_have_the_time_of_one(monkeypatch):
    """Each look at the clock is a second later, and no address answers."""
    given = []

    class Unreachable(socket.socket):
        def connect(self, _address):
            given.append(self.gettimeout())
            raise TimeoutError

    seconds = itertools.count()
    monkeypatch.setattr(ask, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"192.0.2.{last}", 80)) for last in range(1, 20)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_keywords: found)
    monkeypatch.setattr(socket, "socket", Unreachable)
    with pytest.raises(ask.AskError, match=r"no complete response from many\.example:80 within 10 s"):
        ask.Asked("many.example:80").status()
    assert given == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_the_next_address_of_a_name_is_tried(monkeypatch):
    with answering(lambda connection: connection.sendall(response(b'{"workers": []}'))) as address:
        port = int(address.partition(":")[2])
        with socket.create_server(("127.0.0.2", 0)) as unused:
            closed = unused.getsockname()
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", at) for at in (closed, ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_keywords: found)
        assert ask.Asked("two.example:80").status() == {"workers": []}


def test_an_address_at_which_no_process_listens_is_named():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ask.AskError, match=f"no response from 127.0.0.1:{port}: Connection refused; was the server"):
        ask.Asked(f"127.0.0.1:{port}").status()


def test_a_refusal_is_one_short_line_that_a_terminal_does_not_obey():
    said = refusal(lambda connection: connection.sendall(response(TITLE.encode() + b"x" * 5000, "404 Not Found")))
    assert said.startswith(r"ADDRESS answers /status.json with 404: \x1b]0;owned\x07\x1b[2J")
    assert said.endswith("xxx...; was the server started with `--status ADDRESS`?")
    assert len(said) < 400


def test_of_a_page_in_html_only_the_status_is_shown():
    said = refusal(lambda connection: connection.sendall(response(b"<!doctype html>\n<p>No", "404 Not Found")))
    assert said == "ADDRESS answers /status.json with 404; was the server started with `--status ADDRESS`?"


def test_what_is_no_http_is_not_shown_to_the_terminal():
    said = refusal(lambda connection: connection.sendall(TITLE.encode() + b"\r\n"))
    assert said.startswith(r"no response from ADDRESS: \x1b]0;owned\x07\x1b[2J")


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b"{}", b"[" * 100_000, b'{"workers": ' + b"9" * 10_000 + b"}", b"\xff"]
)
def test_another_document_is_named(body):
    said = refusal(lambda connection: connection.sendall(response(body)))
    assert said == "ADDRESS is not the --status address of Tailrace: /status.json is another document"


def test_an_answer_that_breaks_off_is_named():
    said = refusal(lambda connection: connection.sendall(response(b'{"workers": []}')[:-1]))
    assert said.startswith("no response from ADDRESS: IncompleteRead(")


def nested(depth):
    """JSON of so many lists inside one another. The parser of Python 3.11 itself refuses 1000, a later one does not."""
    return "[" * depth + "]" * depth


def endpoints(**more):
    """The endpoints of a `/status.json` with one of them. more: its other figures."""
    finding = {"key": TITLE, "what": TITLE, "cost": TITLE, "change": TITLE, "code": f"a\n    {TITLE}"}
    finding |= {"cost_ms": 1.0, "cost_calls": 1}
    phases = ("application", "delivery", "blocked", "event_stream", "cost")
    seconds = dict.fromkeys((f"{phase}_seconds" for phase in phases), 1.0)
    names = ("responses", "blocks", "writes", "body_bytes", "chunked", "failed", "client_disconnected", "event_streams")
    counts = dict.fromkeys(names, 1)
    endpoint = {"endpoint": TITLE, **seconds, **counts, "path": TITLE, "paths": {TITLE: 1}, "findings": [finding]}
    return {"application": TITLE, "version": TITLE, "other_responses": 0, "endpoints": [{**endpoint, **more}]}


def assert_another_form(command, body):
    with answering(lambda connection: connection.sendall(response(body))) as address:
        ended = CliRunner().invoke(cli, [*command, "--status", address])
    assert isinstance(ended.exception, ask.AskError), ended.exception
    assert str(ended.exception).startswith(f"{address} is not the --status address of Tailrace")
    assert not ended.output


@pytest.mark.parametrize("command", [("threads",), ("doctor", "--live")])
@pytest.mark.parametrize("inner", ["[{}]", "[[]]", "null", "1", '"x"', nested(600), nested(2000)])
def test_a_document_of_another_form_is_one_line(command, inner):
    body = f'{{"workers": {inner}, "endpoints": {inner}, "other_responses": 0, "application": "x"}}'.encode()
    assert_another_form(command, body)


def thread(**more):
    frame = {"function": "f" + TITLE, "file": "/" + TITLE, "line": 3}
    asked = {"method": "GET", "target": "/" + TITLE, "client": TITLE, "seconds": 1.0, "id": 1}
    known = {"thread": 7, "name": TITLE, "request": asked, "state": "running" + TITLE, "holds_interpreter": False}
    return {**known, "frames": [frame], **more}


def test_a_number_that_no_float_holds_is_one_line():
    """`1e999` is infinite, and can be printed; an integer of so many digits cannot be divided."""
    asked = {"method": "GET", "target": "/", "client": "", "seconds": 10**400, "id": 1}
    worker = {"number": 1, "pid": 9, "error": "", "note": "", "threads": [thread(request=asked)]}
    assert_another_form(("threads",), json.dumps({"workers": [worker]}).encode())
    document = {"workers": [], **endpoints(writes=10**400)}
    assert_another_form(("doctor", "--live"), json.dumps(document).encode())


WORKERS = [{"number": 1, "pid": 9, "error": TITLE, "note": TITLE, "threads": [thread()]}]


def test_the_text_of_threads_has_nothing_that_a_terminal_obeys():
    body = response(json.dumps({"workers": WORKERS}).encode())
    with answering(lambda connection: connection.sendall(body)) as address:
        ended = CliRunner().invoke(cli, ["threads", "--status", address])
        as_json = CliRunner().invoke(cli, ["threads", "--status", address, "--json"])
    assert ended.exit_code == 0
    assert all(line.isprintable() for line in ended.output.split("\n")), ended.output
    assert ended.output.count(r"\x1b[2J") == 9
    assert json.loads(as_json.output)["workers"] == WORKERS
    assert as_json.output.isascii()
    assert "\x1b" not in as_json.output
    assert "\x1b" not in process.text(WORKERS)


def test_the_text_of_endpoints_has_nothing_that_a_terminal_obeys():
    document = {"workers": [], **endpoints()}
    with answering(lambda connection: connection.sendall(response(json.dumps(document).encode()))) as address:
        ended = CliRunner().invoke(cli, ["doctor", "--live", "--status", address])
    assert ended.output.endswith("\n1 finding.\n")
    assert all(line.isprintable() for line in ended.output.split("\n")), ended.output


def test_an_application_that_has_not_responded_has_no_name_that_a_terminal_obeys():
    body = response(json.dumps({"workers": [], "application": TITLE, "endpoints": []}).encode())
    with answering(lambda connection: connection.sendall(body)) as address:
        ended = CliRunner().invoke(cli, ["doctor", "--live", "--status", address], color=True)
    assert ended.output.startswith(r"\x1b]0;owned\x07\x1b[2J\x9b at ")
    assert ended.output.removesuffix("\n").isprintable()
