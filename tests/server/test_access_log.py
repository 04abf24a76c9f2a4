"""The access log: exactly one line for each request, whatever the client sends and however the log is read."""

import fcntl
import functools
import json
import os
import re
import signal
import threading
from contextlib import contextmanager

import pytest
from harness.server import Server
from server.probes import asking, at_once, await_waiting, eventually, is_stopped, open_gate, request, resident, told

HOSTILE = 'x" 200 9\\ "-"\xff\x85\xa0\t127.0.0.1 - - [21/Nov/2026:00:00:00 +0000] "GET /forged HTTP/1.1" 200 4'
CLF = re.compile(r'127\.0\.0\.1 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "([^"\\]|\\.)*" \d{3} \d+')
COMBINED = re.compile(CLF.pattern + r' "([^"\\]|\\.)*" "([^"\\]|\\.)*"')


def lines_of(path, count):
    """The lines of the log, once there are `count`, without a half line at the end."""

    def lines():
        text = path.read_bytes() if path.exists() else b""
        found = text.split(b"\n")[:-1]
        return found if len(found) >= count else None

    return [line.decode("ascii") for line in eventually(lines, f"{count} lines in the log")]


@pytest.mark.parametrize("format", ["common", "combined"])
def test_lines_of_the_common_formats_cannot_be_forged(tmp_path, format):
    line = COMBINED if format == "combined" else CLF
    path = tmp_path / "log"
    with Server("srv_shapes:app", access_log=path, access_log_format=format) as server:
        fields = (f"User-Agent: {HOSTILE}", f"Referer: {HOSTILE}")
        server.get("/", *fields)
        server.get("/?%0a%0d%22'(;)", *fields)
        server.get("/?last")
        lines = lines_of(path, 3)
        assert len(lines) == 3
        for text in lines:
            assert text.isprintable()
            assert line.fullmatch(text), text
        assert '"GET / HTTP/1.1" 200 4' in lines[0]
        if format == "combined":
            assert lines[2].endswith('"-" "-"')


def test_a_line_of_json_is_an_object_with_what_the_client_sent(tmp_path):
    path = tmp_path / "log"
    with Server("srv_shapes:app", access_log=path, access_log_format="json") as server:
        server.get("/list?size=1234", f"User-Agent: {HOSTILE}")
        (entry,) = [json.loads(line) for line in lines_of(path, 1)]
    assert entry["user_agent"] == HOSTILE
    assert (entry["method"], entry["target"], entry["path"], entry["query"]) == (
        "GET",
        "/list?size=1234",
        "/list",
        "size=1234",
    )
    assert (entry["status"], entry["bytes"], entry["ending"], entry["host"]) == (200, 1234, "complete", "test")
    assert (entry["protocol"], entry["client"], entry["blocks"]) == ("HTTP/1.1", "127.0.0.1", 1)
    assert 0 <= entry["queued_ms"] <= entry["duration_ms"]


def test_how_a_response_ended(tmp_path):
    path = tmp_path / "log"
    with Server("srv_shapes:app", access_log=path, access_log_format="{path} {ending}") as server:
        with asking(server, "/late?gate=never&block=100&key=gone") as client:
            client.head()
        eventually(lambda: told(server, "/closed?key=gone") == 1, "the generator closed")
        server.get("/generator?size=10")
        with asking(server, "/generator?size=10&length=20") as client:
            client.rest()
        with asking(server, "/list?size=30000000") as client:
            client.head()
        wanted = {"/late client-disconnected", "/generator complete", "/generator broken", "/list client-disconnected"}
        eventually(lambda: wanted <= set(lines_of(path, 1)), "the endings")
        assert not {"/late complete", "/late broken", "/list complete"} & set(lines_of(path, 1))


def test_refused_requests_are_in_the_log_and_it_waits_for_no_request_that_is_held(tmp_path):
    path = tmp_path / "log"
    with Server("srv_shapes:app", threads=2, access_log=path, access_log_format="common") as server:
        with asking(server, "/wait?gate=held") as held:
            await_waiting(server, "held", 1)
            with server.client() as client:
                assert client.ask(b"GET /bad HTTP/1.1\r\nHost : t\r\n\r\n").status == 400
            server.get("/quick")
            eventually(lambda: [line for line in lines_of(path, 1) if " 400 " in line], "the 400")
            eventually(lambda: [line for line in lines_of(path, 1) if "/quick" in line], "the other request")
            open_gate(server, "held")
            held.response()


def test_every_request_is_logged_exactly_once_under_load(tmp_path):
    path = tmp_path / "log"
    clients, rounds = 16, 10
    shapes = ["list", "generator", "bytes", "file", "list", "generator", "pong", "list"]
    with Server("srv_shapes:app", threads=4, access_log=path, access_log_format="{target} {status} {bytes}") as server:

        def load(number):
            with server.client(30) as client:
                for turn in range(rounds):
                    targets = [f"/{shape}?size={number}&n={turn}-{place}" for place, shape in enumerate(shapes)]
                    client.send(b"".join(map(request, targets)))
                    for _ in targets:
                        assert client.response().status == 200

        at_once(*(functools.partial(load, number) for number in range(clients)))
        assert server.stop() == 0
    lines = [line.split() for line in path.read_text().splitlines()]
    assert len(lines) == len({target for target, *_ in lines}) == clients * rounds * len(shapes)
    assert {status for _, status, _ in lines} == {"200"}


@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        (
            '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s"',
            r'127\.0\.0\.1 - joe \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d \+0000\] "GET /list\?size=5 HTTP/1\.1" 200 5 "-" '
            r'"me"',
        ),
        ("%({User-Agent}i)s %({Content-Length}o)s %({server}o)s %({REMOTE_ADDR}e)s", r"me 5 tailrace 127\.0\.0\.1"),
        ("{{clf_time}} {status}", r"\{clf_time\} 200"),
        ("{{{method}}} {path}|{query}|{status}|{bytes}|{ending}", r"\{GET\} /list\|size=5\|200\|5\|complete"),
    ],
)
def test_a_format_of_gunicorn_is_understood_and_braces_are_braces(tmp_path, format, pattern):
    path = tmp_path / "log"
    with Server("srv_shapes:app", access_log=path, access_log_format=format) as server:
        server.get("/list?size=5", "User-Agent: me", "Authorization: Basic am9lOng=")
        (line,) = lines_of(path, 1)
        assert re.fullmatch(pattern, line), line


def test_pages_of_the_server_itself_are_logged_with_their_length_and_head(tmp_path):
    path = tmp_path / "log"
    format = "%(s)s %(B)s %({content-length}o)s"
    with Server("srv_shapes:app", access_log=path, access_log_format=format) as server:
        for count, (sent, status) in enumerate(
            [(b"GET /sleep?seconds=x HTTP/1.1\r\nHost: t\r\n\r\n", 500), (b"\0\r\n\r\n", 400)]
        ):
            with server.client() as client:
                response = client.ask(sent)
                assert response.status == status
                length = len(response.body)
                assert length > 0
                assert lines_of(path, count + 1)[count] == f"{status} {length} {length}"


@contextmanager
def stalled(path):
    """A named pipe that has a reader who does not read: its descriptor."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield reader
    finally:
        os.close(reader)


def ask_much(server, count):
    """More bytes of log than wait for a reader."""
    with server.client(30) as client:
        for number in range(count):
            assert client.ask(request(f"/?number={number}", f"User-Agent: {'a' * 8000}")).status == 200


def test_a_reader_that_stalls_holds_no_request_no_memory_and_no_stop(tmp_path):
    path, count = tmp_path / "log", 4000
    with stalled(path), Server("srv_shapes:app", access_log=path) as server:
        server.get("/")
        before = resident(server)
        ask_much(server, count)
        assert resident(server) - before < 20 << 20
        assert server.stop() == 0
        given_up = re.search(r"the destination of the access log accepts .*: (\d+) lines were lost", server.log)
        assert given_up, server.log
        assert count - 10 < int(given_up[1]) <= count + 1
        assert "is killed" not in server.log


@pytest.mark.parametrize("format", ["combined", "json"])
def test_lines_that_are_missing_are_counted_where_the_log_goes_on(tmp_path, format):
    path, count = tmp_path / "log", 1000
    with stalled(path) as reader, Server("srv_shapes:app", access_log=path, access_log_format=format) as server:
        ask_much(server, count)
        text = []
        reading = threading.Thread(target=lambda: text.extend(iter(lambda: os.read(reader, 65536), b"")))
        reading.start()
        eventually(lambda: b"dropped" in b"".join(text), "the gap")
        server.get("/?number=last")
        assert server.stop() == 0
        reading.join()
    lines = b"".join(text).decode().splitlines()
    dropped = sum(int(re.search(r"\d+", line)[0]) for line in lines if "dropped" in line)
    numbers = [found[1] for line in lines if (found := re.search(r"number=(\w+)", line))]
    assert "last" in numbers
    assert dropped > 100
    assert dropped + len(numbers) == count + 1
    assert numbers[:-1] == sorted(numbers[:-1], key=int)
    if format == "json":
        assert all(json.loads(line) for line in lines)


@pytest.mark.parametrize("arguments", [("--workers", "2"), ("--debug",), ("--gevent",)], ids=" ".join)
def test_keys_of_environ_are_as_the_application_leaves_them(tmp_path, arguments):
    if arguments == ("--gevent",):
        pytest.importorskip("gevent")
    path = tmp_path / "log"
    format = (
        "{environ:REMOTE_USER}|{environ:app.user}|{environ:app.count}|{environ:app.other}|{environ:HTTP_X}"
        "|{environ:wsgi.url_scheme}|{environ:missing}|{response:x-made}"
    )
    # Two workers write in an order of their own: the lines are told apart by their statuses.
    format = "{status}|" + format
    with Server("srv_logs:app", *arguments, access_log=path, access_log_format=format) as server:
        server.get("/", "X: one")
        server.get("/fails?x", "X: two")
        with server.client() as client:
            assert client.ask(b"GET /bad HTTP/1.1\r\nX: three\r\nHost : t\r\n\r\n").status == 400
        lines = dict(line.split("|", 1) for line in lines_of(path, 3))
    assert lines["200"] == r"joe|jos\xe9\x0a|7|-|one|http|-|by \"hand\""
    # The exception came before the keys were set.
    assert lines["500"] == "-|-|-|-|two|http|-|-"
    # Where the application was not called, only what follows from the request is known.
    assert lines["400"].split("|")[:4] == ["-"] * 4
    assert lines["400"].split("|")[5:] == ["-", "-", "-"]


def test_an_object_has_the_members_that_the_format_names(tmp_path):
    path = tmp_path / "log"
    format = "json {status} {worker} {request:X-Id} {response:x-made} {environ:app.user} {environ:missing} {ended}"
    with Server("srv_logs:app", access_log=path, access_log_format=format) as server:
        server.get("/", f"X-Id: {HOSTILE}")
        (entry,) = [json.loads(line) for line in lines_of(path, 1)]
    assert entry.pop("ended") > 1_700_000_000
    wanted = {"status": 200, "worker": 1, "request:X-Id": HOSTILE, "response:x-made": 'by "hand"'}
    assert entry == {**wanted, "environ:app.user": "jos\xe9\n", "environ:missing": None}


def test_a_line_names_its_worker(tmp_path):
    path = tmp_path / "log"
    with Server("srv_logs:app", workers=2, access_log=path, access_log_format="{worker}") as server:
        workers = server.workers(2)
        for pid in workers:
            # The other one answers.
            os.kill(pid, signal.SIGSTOP)
            try:
                eventually(lambda: is_stopped(pid), "it stopped")  # noqa: B023
                server.get("/")
            finally:
                os.kill(pid, signal.SIGCONT)
        assert sorted(lines_of(path, 2)) == ["1", "2"]


def test_sigusr1_opens_the_log_anew_after_a_rename(tmp_path):
    path, old = tmp_path / "log", tmp_path / "log.1"
    with Server("srv_shapes:app", access_log=path, access_log_format="{target}") as server:
        for turn in range(3):
            target = f"/?turn={turn}"
            server.get(target)
            assert lines_of(path, 1) == [target]
            path.rename(old)
            server.get(target + "&renamed")
            assert lines_of(old, 2) == [target, target + "&renamed"]
            server.send_signal(signal.SIGUSR1)
            eventually(path.exists, "the new file")
        server.get("/?after")
        assert lines_of(path, 1) == ["/?after"]
