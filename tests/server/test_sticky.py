"""`--sticky` and `tailrace.socketio`: Socket.IO with several workers, with the Python client and by hand."""

import collections
import contextlib
import itertools
import json
import os
import queue
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests
import socketio
from frameworks.process import nginx
from harness import packets
from harness.addresses import Address, free_address
from harness.encrypted import authority
from harness.redis import Redis
from harness.server import APPS, Server, children
from harness.status import document
from server.probes import eventually

from tailrace.errors import PublishError
from tailrace.publishing import publish_items
from tailrace.socketio import Manager

GUIDE = Path(__file__).parents[2] / "docs/guides/socketio.md"
MODES = pytest.mark.parametrize("mode", [(), ("--gevent",), ("--preload",)], ids=["threads", "gevent", "preload"])
TRANSPORTS = pytest.mark.parametrize("transports", [["polling"], ["polling", "websocket"], ["websocket"]], ids="-".join)
WORKERS = 4
NGINX = """
map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
upstream app { server %(server)s; keepalive 8; }
server {
    listen %(listen)s;
    location / {
        proxy_pass http://app;
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_read_timeout 1h;
    }
}
"""


@contextlib.contextmanager
def served(*flags, workers=WORKERS, **options):
    with Server("srv_socketio:app", "--sticky", "query:sid", *flags, workers=workers, **options) as server:
        eventually(lambda: server.log.count("ready in") == workers, "all workers")
        yield server
        assert "Traceback" not in server.log, server.log


def passed(status):
    return document(status)["totals"]["passed"]


class Session:
    """A session of Engine.IO by long polling, each request on a connection of its own."""

    def __init__(self, url, query="", **options):
        self.url, self.options = f"{url}/socket.io/?EIO=4&transport=polling{query}", options
        self.asked = 0
        opened = self._request("GET", self.url)
        self.sid = json.loads(opened.text[1:])["sid"]
        self.post("40")
        assert self.get().startswith("40{")

    def _request(self, method, url, data=None):
        with requests.Session() as session:
            session.trust_env = False
            self.asked += 1
            answer = session.request(method, url, data=data, timeout=30, **self.options)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer

    def post(self, packet):
        assert self._request("POST", f"{self.url}&sid={self.sid}", packet).text == "OK"

    def get(self):
        """The next packets, without those that only keep the session alive."""
        end = time.monotonic() + 60
        while True:
            packets = self._request("GET", f"{self.url}&sid={self.sid}").text.split("\x1e")
            assert time.monotonic() < end, f"only {packets} came"
            if "2" in packets:
                self.post("3")
            if found := [packet for packet in packets if packet not in "26"]:
                return "\x1e".join(found)

    def call(self, *event):
        """Emits an event; the acknowledgement."""
        self.post(f"421{json.dumps(event)}")
        found = re.fullmatch(r"431(\[.*\])", packets := self.get())
        assert found, packets
        return json.loads(found[1])[0]


@contextlib.contextmanager
def client(url, transports, **options):
    """A connected client, and the events that it gets."""
    made, events = socketio.Client(**options), queue.Queue()
    made.on("*", lambda event, *data: events.put((event, *data)))
    made.on("question", lambda number: number * 7)
    made.connect(url, transports=transports, wait_timeout=20)
    try:
        yield made, events
    finally:
        made.disconnect()


def clients_of_two_workers(stack, url, transports, **options):
    """Two clients whose sessions are in different workers."""
    found = {}
    while len(found) < 2:
        made = stack.enter_context(client(url, transports, **options))
        found[made[0].call("pid")] = made
    return found.values()


@MODES
def test_every_poll_reaches_the_worker_of_its_session(mode):
    status = free_address()
    with served(*mode, status=status) as server:

        def talk(_):
            session = Session(server.url)
            pids = {session.call("pid") for _ in range(8)}
            for size in (10, 70_000, 900_000):
                text = "x" * size
                assert session.call("echo", text) == text
            return pids, session.asked

        with ThreadPoolExecutor(8) as pool:
            found, asked = zip(*pool.map(talk, range(24)), strict=True)
        assert all(len(pids) == 1 for pids in found)
        assert len(set.union(*found)) > 1, "several workers have sessions"
        assert passed(status) > 0
        # A request that is passed is one request.
        eventually(lambda: document(status)["totals"]["requests"] >= sum(asked), "the counts")
        assert document(status)["totals"]["requests"] == sum(asked)
    assert "cannot be reached" not in server.log


def test_bodies_in_chunks_and_requests_behind_are_passed_with_the_connection():
    with served() as server:
        session = Session(server.url)
        own = session.call("pid")
        target = f"/socket.io/?EIO=4&transport=polling&sid={session.sid}"
        seen = collections.Counter()
        for _ in range(12):
            packet = b'421["pid"]'
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (packet[:3], packet[3:])) + b"0\r\n\r\n"
            post = f"POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks
            get = f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
            pid = b"GET /pid HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            with socket.create_connection((server.address.host, server.address.port), timeout=30) as connection:
                connection.sendall(post + get + pid)
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]
            assert len(bodies) == 3, answer
            assert bodies[0] == b"OK"
            if bodies[1] == b"2":
                continue
            assert b"431[%d]" % own in bodies[1]
            # The connection stays where it was passed to.
            assert bodies[2] == b"%d" % own
            seen[bodies[2]] += 1
        assert seen


def test_a_key_that_no_worker_has_issued_is_served_where_it_arrives():
    status = free_address()
    with served(status=status) as server, requests.Session() as session:
        session.trust_env = False
        for number in range(200):
            answer = session.get(f"{server.url}/socket.io/?EIO=4&transport=polling&sid=random{number}", timeout=30)
            assert answer.status_code == 400
        assert session.get(f"{server.url}/pid?sid=other", timeout=30).status_code == 200
        assert passed(status) == 0


@MODES
@TRANSPORTS
def test_the_python_client_talks_across_workers(mode, transports):
    with served(*mode) as server, contextlib.ExitStack() as stack:
        (one, events), (other, others) = clients_of_two_workers(stack, server.url, transports)
        assert one.transport() == transports[-1]
        for each in (one, other):
            each.call("join", "room")
        # Binary data, and more than the buffer of a socket.
        for data in ("text", {"n": [1, None]}, b"\0\xff" * 100, "x" * 300_000):
            one.emit("say", ("room", data))
            assert others.get(timeout=20) == ("said", data)
        requests.post(f"{server.url}/emit", json=7, timeout=30)
        assert events.get(timeout=20) == others.get(timeout=20) == ("news", 7)
        one.emit("ask", other.get_sid())
        assert events.get(timeout=20) == ("answer", 42)
        one.emit("drop", other.get_sid())
        eventually(lambda: not other.connected, "the end of the other one")
        assert one.connected
        assert events.empty()


@pytest.mark.parametrize("mode", [(), ("--gevent",)], ids=["threads", "gevent"])
@TRANSPORTS
def test_clients_come_back_after_a_reload_and_hear_each_other(mode, transports):
    with served(*mode, graceful_timeout=5) as server, contextlib.ExitStack() as stack:
        options = {"reconnection_delay": 0.1, "reconnection_delay_max": 0.5}
        made = [stack.enter_context(client(server.url, transports, **options)) for _ in range(6)]
        before = {each.get_sid() for each, _ in made}
        server.send_signal(signal.SIGHUP)
        eventually(lambda: server.log.count("has ended") == WORKERS, "the end of the workers before", 60)
        eventually(lambda: all(each.connected and each.get_sid() not in before for each, _ in made), "new sessions", 60)

        heard = [set() for _ in made]

        def hear_each_other():
            # A session may end once more.
            with contextlib.suppress(socketio.exceptions.SocketIOError):
                for number, (each, _) in enumerate(made):
                    each.call("join", "room", timeout=2)
                    each.emit("say", ("room", number))
            time.sleep(0.2)
            for found, (_, events) in zip(heard, made, strict=True):
                while not events.empty():
                    found.add(events.get())
            return all(len(found) == len(made) - 1 for found in heard)

        eventually(hear_each_other, "what the others say", 60)
        for number, found in enumerate(heard):
            assert found == {("said", other) for other in range(len(made)) if other != number}


@pytest.mark.parametrize("mode", [(), ("--gevent",)], ids=["threads", "gevent"])
@TRANSPORTS
def test_a_reload_does_not_wait_for_clients_that_wait(mode, transports):
    # Without an end of their sessions, polls would go on for a minute.
    options = {"graceful_timeout": 20, "environment": {"PING": "60"}}
    with served(*mode, **options) as server, contextlib.ExitStack() as stack:
        made = [stack.enter_context(client(server.url, transports, reconnection_delay=0.1))[0] for _ in range(12)]
        before = {each.get_sid() for each in made}
        server.send_signal(signal.SIGHUP)
        eventually(lambda: server.log.count("has ended") == WORKERS, "the end of the workers before", 120)
        eventually(lambda: all(each.connected and each.get_sid() not in before for each in made), "new sessions", 60)
    assert "did not finish" not in server.log


@pytest.mark.parametrize("mode", [(), ("--gevent",)], ids=["threads", "gevent"])
def test_what_a_client_sends_before_it_knows_of_the_end_of_its_session_is_handled(mode, tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    with served(
        *mode, graceful_timeout=60, environment={"PING": "60", "NOTES": str(notes), "TO_POLL": "60", "TO_ARRIVE": "4"}
    ) as server:
        session = Session(server.url)
        session.call("pid")

        def note(text):
            with requests.Session() as made:
                target = f"{session.url}&sid={session.sid}"
                return made.post(target, data=f'42["note","{text}"]', timeout=30).status_code

        def poll():
            with requests.Session() as made:
                return made.get(f"{session.url}&sid={session.sid}", timeout=90)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(poll)
            assert note("before") == 200
            server.send_signal(signal.SIGHUP)
            # A client that takes this for a message polls again.
            assert waiting.result(90).text == "6"
        assert note("meanwhile") == 200
        assert poll().status_code == 400
        # A client that does not know it yet gets an error, after what it has sent was handled.
        assert note("later") == 400
        eventually(lambda: "gone" in notes.read_text(), "the end of the session")
        # Each event has a thread of its own.
        assert sorted(notes.read_text().split("\n")[:3]) == ["before", "later", "meanwhile"]
        assert notes.read_text().count("gone") == 1
        assert note("too late") == 400
        eventually(lambda: server.log.count("has ended") == WORKERS, "the end of the workers before", 60)
        assert "too late" not in notes.read_text()
    assert "did not finish" not in server.log


def test_a_client_that_does_not_poll_does_not_keep_its_worker():
    with served(graceful_timeout=60, environment={"PING": "60"}) as server:
        sessions = [Session(server.url) for _ in range(8)]
        server.send_signal(signal.SIGHUP)
        eventually(lambda: server.log.count("has ended") == WORKERS, "the end of the workers before", 55)
        with pytest.raises(AssertionError, match="400"):
            sessions[0].post("3")


def test_the_sessions_of_a_killed_worker_end_and_those_of_others_live_on():
    with served() as server:
        sessions = [Session(server.url) for _ in range(12)]
        pids = {session: session.call("pid") for session in sessions}
        victim = pids[sessions[0]]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: server.log.count("ready in") == WORKERS + 1, "its successor")
        for session, pid in pids.items():
            if pid == victim:
                with pytest.raises(AssertionError, match="400"):
                    session.call("pid")
            else:
                assert session.call("pid") == pid
    assert "panicked" not in server.log


class At(requests.adapters.HTTPAdapter):
    """Connects from this address."""

    def __init__(self, address):
        self.place = (address, 0)
        super().__init__()

    def init_poolmanager(self, *args, **options):
        super().init_poolmanager(*args, source_address=self.place, **options)


def test_behind_nginx_the_client_and_the_worker_are_the_same_after_passing():
    listen, status = free_address(), free_address()
    with (
        served(status=status) as server,
        nginx(listen, NGINX % {"listen": listen.bind, "server": server.address.bind}),
        contextlib.ExitStack() as stack,
    ):
        made = [
            stack.enter_context(client(f"http://{listen.bind}", transports))[0]
            for transports in (["polling"], ["polling", "websocket"]) * 4
        ]
        for each in made:
            assert len({each.call("pid") for _ in range(5)}) == 1
        with requests.Session() as session:
            session.mount("http://", At("127.0.0.2"))
            for each in made:
                target = f"http://{listen.bind}/client?sid={each.eio.sid}"
                assert {session.get(target, timeout=30).text for _ in range(5)} == {f"127.0.0.2 {target}"}
        assert passed(status) > 0


def test_the_client_of_a_proxy_header_survives_the_move():
    address, status = free_address(), free_address()
    bind = ("--bind", f"{address.bind}?proxy=v1", "--trusted-proxies", "127.0.0.1")
    with served(*bind, address=address, status=status):

        def ask(target, packet=None):
            head = f"Host: a\r\nConnection: close\r\nContent-Length: {len(packet or '')}\r\n\r\n{packet or ''}"
            with socket.create_connection((address.host, address.port), timeout=30) as connection:
                header = "PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n"
                method = "GET" if packet is None else "POST"
                connection.sendall(f"{header}{method} {target} HTTP/1.1\r\n{head}".encode())
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 200"), answer
            return answer.partition(b"\r\n\r\n")[2].decode()

        path = "/socket.io/?EIO=4&transport=polling"
        sid = json.loads(ask(path)[1:])["sid"]
        ask(f"{path}&sid={sid}", "40")
        found = set()
        for _ in range(12):
            ask(f"{path}&sid={sid}", '421["addr"]')
            while not (text := ask(f"{path}&sid={sid}")).endswith("]") or "431" not in text:
                if text == "2":
                    ask(f"{path}&sid={sid}", "3")
            found.add(text.partition("431")[2])
            assert ask(f"/client?sid={sid}").split()[0] == "192.0.2.7"
        assert found == {'["192.0.2.7"]'}
        assert passed(status) > 0


def test_packets_of_a_proxy_and_their_bodies_are_passed(tmp_path):
    address, status = Address(path=f"{tmp_path}/s"), free_address()
    path = "/socket.io/?EIO=4&transport=polling"
    said = {"REMOTE_ADDR": "192.0.2.7", "REMOTE_PORT": "4711"}

    def ask(target, body=None):
        method = "GET" if body is None else "POST"
        length = "" if body is None else str(len(body))
        answer = packets.ask(
            address,
            packets.packet(packets.variables(target, method, CONTENT_LENGTH=length, **said), (body or "").encode()),
        )
        assert answer.status == 200, answer
        return answer.body.decode()

    with served("--bind", f"uwsgi+unix:{address.path}", address=address, status=status):
        sid = json.loads(ask(path)[1:])["sid"]
        ask(f"{path}&sid={sid}", "40")
        text = "x" * 200_000
        found = set()
        for _ in range(10):
            ask(f"{path}&sid={sid}", f'42["echo","{text}"]')
            ask(f"{path}&sid={sid}", '421["addr"]')
            found.update(ask(f"{path}&sid={sid}").split("\x1e"))
        assert '431["192.0.2.7"]' in found
        assert passed(status) > 0


def test_a_connection_that_is_passed_counts_once_for_its_client():
    with served(trusted_proxies="none", max_connections_per_client=3) as server:
        place = (server.address.host, server.address.port)
        session = Session(server.url)
        own = b"%d" % session.call("pid")
        for number in range(20):
            with contextlib.ExitStack() as stack:

                def ask(target, source=f"127.0.0.{40 + number}", stack=stack):
                    made = socket.create_connection(place, timeout=30, source_address=(source, 0))
                    stack.enter_context(made).sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                    head, _, body = made.recv(1 << 16).partition(b"\r\n\r\n")
                    return head.split()[1], body

                assert [ask(f"/pid?sid={session.sid}") for _ in range(3)] == [(b"200", own)] * 3
                assert ask("/pid")[0] == b"429"


def free_descriptors(pid):
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    return itertools.filterfalse(used.__contains__, itertools.count())


@contextlib.contextmanager
def at_others(url, owner, count):
    """Clients with connections to workers but this one, which closes some of its own when it has no descriptors."""
    found = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            made = stack.enter_context(requests.Session())
            if int(made.get(f"{url}/pid", timeout=30).text) != owner:
                found.append(made)
            else:
                made.close()
        yield found


def test_a_worker_without_descriptors_takes_what_was_passed_when_it_has_some():
    with served() as server:
        session = Session(server.url)
        owner = session.call("pid")
        before = resource.prlimit(owner, resource.RLIMIT_NOFILE)

        def ask(at_another):
            return at_another.get(f"{server.url}/pid?sid={session.sid}", timeout=30).text

        with at_others(server.url, owner, 12) as sessions, ThreadPoolExecutor(12) as pool:
            # One number is free: that of the connection of the other worker, and none for what it passes.
            most = list(itertools.islice(free_descriptors(owner), 2))[1]
            resource.prlimit(owner, resource.RLIMIT_NOFILE, (most, before[1]))
            asked = [pool.submit(ask, each) for each in sessions]
            time.sleep(0.5)
            resource.prlimit(owner, resource.RLIMIT_NOFILE, before)
            assert {each.result() for each in asked} == {str(owner)}


def test_a_draining_worker_without_descriptors_takes_what_waits():
    with served(graceful_timeout=30) as server:
        session = Session(server.url)
        owner = session.call("pid")
        before = resource.prlimit(owner, resource.RLIMIT_NOFILE)

        def ask(at_another):
            return at_another.get(f"{server.url}/pid?sid={session.sid}", timeout=30).text

        with at_others(server.url, owner, 12) as sessions, ThreadPoolExecutor(12) as pool:
            most = next(free_descriptors(owner))
            resource.prlimit(owner, resource.RLIMIT_NOFILE, (most, before[1]))
            asked = [pool.submit(ask, each) for each in sessions]
            time.sleep(0.5)
            os.kill(owner, signal.SIGTERM)
            time.sleep(0.5)
            # It may have taken all, and ended.
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(owner, resource.RLIMIT_NOFILE, before)
            assert {each.result() for each in asked} == {str(owner)}


def test_a_worker_with_as_many_connections_as_it_may_have_refuses_those_of_others(tmp_path):
    files, status = 150, free_address()
    gate = tmp_path / "gate"
    with served(open_files=files, status=status) as server, contextlib.ExitStack() as stack:
        sid = Session(server.url).sid
        made = []
        for _ in range(files):
            client = stack.enter_context(socket.create_connection((server.address.host, server.address.port), 30))
            client.sendall(f"GET /wait?gate={gate}&sid={sid} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            made.append(client)
        eventually(lambda: select.select(made, [], [], 0)[0], "a refusal")
        gate.touch()
        answers = [b"".join(iter(lambda client=client: client.recv(1 << 16), b"")) for client in made]
        counts = collections.Counter(answer.partition(b"\r\n\r\n")[2] for answer in answers)
        too_many = b"This server has too many connections open."
        assert set(counts) == {b"waited", too_many}
        assert counts[too_many] > 0
        eventually(lambda: document(status)["totals"]["refused"] >= counts[too_many], "their count")


def test_connects_at_the_same_time_do_not_pass_the_limit_of_a_client():
    most = 3
    with served(trusted_proxies="none", max_connections_per_client=most) as server:
        place = (server.address.host, server.address.port)
        session = Session(server.url)
        with ThreadPoolExecutor(16) as pool:
            for number in range(20):
                source = (f"127.0.0.{80 + number}", 0)

                def ask(_, source=source):
                    made = socket.create_connection(place, timeout=30, source_address=source)
                    made.sendall(f"GET /pid?sid={session.sid} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
                    return made, made.recv(1 << 16).split()[1]

                asked = list(pool.map(ask, range(16)))
                counts = collections.Counter(status for _, status in asked)
                for made, _ in asked:
                    made.close()
                assert set(counts) <= {b"200", b"429"}
                assert 0 < counts[b"200"] <= most, counts


@pytest.mark.parametrize(
    "flags, size, said",
    [((), 1_200_000, "more than 1048576"), (("--client-memory", "4M"), 900_000, "its body is in a file")],
    ids=["large", "file"],
)
def test_a_request_that_is_large_or_in_a_file_is_answered_where_it_is_and_the_log_says_why(flags, size, said):
    with served(*flags) as server:
        sid = Session(server.url).sid

        def is_logged():
            assert requests.post(f"{server.url}/pid?sid={sid}", data=b"x" * size, timeout=30).status_code == 405
            return "was not passed to the worker that has its session" in server.log

        eventually(is_logged, "a request that another worker gets")
        assert said in server.log


def test_what_no_manager_has_sent_is_skipped_and_logged():
    publish = free_address()
    with served("--publish-bind", publish.bind) as server, client(server.url, ["websocket"]) as (_, events):
        garbage = ["garbage", "", "7", "[1]", "{}", "[" * 100_000]
        for content in garbage:
            publish_items([{"channel": "socketio", "formats": {"raw": {"content": content}}}], to=publish.bind)
        Manager(write_only=True, to=publish.bind).emit("news", 7)
        assert events.get(timeout=20) == ("news", 7)
        assert server.logged("skipped a message on channel 'socketio' that was not sent by a Manager")
        # Each worker that listens says so once.
        assert server.log.count("skipped a message") <= WORKERS


def test_a_manager_reaches_the_clients_of_other_servers():
    publish = free_address()
    with (
        Redis() as redis,
        served("--publish-bind", publish.bind, "--publish-bus", redis.url),
        served("--publish-bus", redis.url) as other,
        client(other.url, ["websocket"]) as (_, events),
    ):
        manager = Manager(write_only=True, to=publish.bind)

        def is_heard():
            # The servers do not know each other at once.
            manager.emit("news", 7)
            with contextlib.suppress(queue.Empty):
                return events.get(timeout=0.2)

        assert eventually(is_heard, "an event of the other server") == ("news", 7)


def test_the_names_of_the_next_workers_cannot_be_taken_by_counting():
    def names():
        return set(re.findall(r"@(tailrace-sticky-\S+)", Path("/proc/net/unix").read_text()))

    others = names()
    with served() as server, contextlib.ExitStack() as stack:
        for name in names() - others:
            head, _, number = name.rpartition("-")
            for following in (f"{int(number, 16) + 1:x}", f"{int(number, 16) + 1:016x}"):
                made = stack.enter_context(socket.socket(socket.AF_UNIX))
                with contextlib.suppress(OSError):
                    made.bind(f"\0{head}-{following}")
                    made.listen()
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload complete", deadline=60)


def test_over_https_nothing_is_passed_and_the_log_says_what_to_do():
    address = replace(free_address(), is_encrypted=True)
    with Server("srv_socketio:app", "--sticky", "query:sid", address=address, workers=WORKERS) as server:
        assert server.logged("--sticky has no effect if all addresses use https://")
        eventually(lambda: server.log.count("ready in") == WORKERS, "all workers")
        with pytest.raises(AssertionError, match="400"):
            for _ in range(20):
                Session(server.url, verify=str(authority().root))
        assert server.logged("Terminate TLS in a proxy in front")


def test_stopping_workers_lose_no_request():
    """Each request is answered, by whichever worker, while workers come and go."""
    with served(graceful_timeout=10) as server:
        stop, statuses = threading.Event(), collections.Counter()

        def poll():
            session = None
            while not stop.is_set():
                try:
                    session = session or Session(server.url)
                    session.call("echo", 1)
                    statuses["answered"] += 1
                except AssertionError as error:
                    # Its worker has been replaced: the client opens another session.
                    session = None
                    statuses["unknown" if "400" in str(error) else str(error)] += 1
                except requests.ConnectionError:
                    statuses["lost"] += 1
                    session = None

        threads = [threading.Thread(target=poll) for _ in range(6)]
        for thread in threads:
            thread.start()
        for count in (1, 2, 3):
            server.send_signal(signal.SIGHUP)
            eventually(lambda count=count: server.log.count("reload complete") == count, "the reload", 60)
        stop.set()
        for thread in threads:
            thread.join(60)
        assert statuses["answered"] > 100
        assert set(statuses) <= {"answered", "unknown"}, statuses
        eventually(lambda: len(children(server.process.pid)) >= WORKERS, "the workers")


def test_programs_outside_the_server_emit_through_publish_bind():
    publish = free_address()
    with served("--publish-bind", publish.bind) as server, client(server.url, ["websocket"]) as (_, events):
        Manager(write_only=True, to=publish.bind).emit("news", {"from": "outside"})
        assert events.get(timeout=20) == ("news", {"from": "outside"})


def test_websockets_alone_need_no_stickiness_and_may_be_encrypted():
    address = replace(free_address(), is_encrypted=True)
    with Server("srv_socketio:app", address=address, workers=WORKERS) as server, contextlib.ExitStack() as stack:
        session = stack.enter_context(requests.Session())
        session.trust_env, session.verify = False, str(authority().root)
        options = {"http_session": session, "websocket_extra_options": {"sslopt": {"ca_certs": str(authority().root)}}}
        (one, _), (other, others) = clients_of_two_workers(stack, server.url, ["websocket"], **options)
        other.call("join", "room")
        one.emit("say", ("room", "over HTTPS"))
        assert others.get(timeout=20) == ("said", "over HTTPS")


def test_the_application_of_the_guide(tmp_path):
    source, outside = re.findall(r"```python[^\n]*\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "news.py").write_text(source)
    flags = re.search(r"\$ tailrace news:app (.*--publish-bind) 127.0.0.1:5561\n", GUIDE.read_text())[1].split()
    publish = free_address()
    with (
        Server("news:app", *flags, publish.bind, directory=tmp_path) as server,
        client(server.url, ["polling"]) as (one, events),
        client(server.url, ["polling", "websocket"]) as (_, others),
    ):
        one.send("hello")
        assert events.get(timeout=20) == others.get(timeout=20) == ("message", "HELLO")
        requests.post(f"{server.url}/news", json=[1], timeout=30)
        assert events.get(timeout=20) == others.get(timeout=20) == ("news", [1])
        exec(outside.replace("127.0.0.1:5561", publish.bind), {})
        assert events.get(timeout=20) == others.get(timeout=20) == ("news", {"id": 7})
    with pytest.raises(PublishError):
        exec(outside.replace("127.0.0.1:5561", publish.bind), {})


def test_a_burst_of_emits_reaches_all_workers():
    with served() as server, contextlib.ExitStack() as stack:
        (one, _), (other, others) = clients_of_two_workers(stack, server.url, ["websocket"])
        other.call("join", "room")
        for number in range(2_000):
            one.emit("say", ("room", f"{number} {'x' * 500}"))
        # Each event has a thread of its own in the application, so their order is not kept.
        assert {int(others.get(timeout=30)[1].split()[0]) for _ in range(2_000)} == set(range(2_000))


def test_workers_listen_again_after_the_end_of_the_holder():
    with served() as server, contextlib.ExitStack() as stack:
        (one, _), (other, others) = clients_of_two_workers(stack, server.url, ["websocket"])
        other.call("join", "room")
        os.kill(int(re.search(r"process (\d+) holds connections", server.log)[1]), signal.SIGKILL)
        assert server.logged("this worker receives messages from other workers again")

        def heard():
            one.emit("say", ("room", "again"))
            with contextlib.suppress(queue.Empty):
                return others.get(timeout=1) == ("said", "again")

        eventually(heard, "what the other worker emits", 30)


def test_a_sticky_without_a_place_or_with_streamed_bodies_is_refused():
    for flags, said in (
        (("--sticky", "sid"), "must be query:, cookie: or header:"),
        (("--sticky", "query:a b"), "the name of a query parameter must not contain ' '"),
        (("--sticky", "query:sid", "--stream-body"), "--sticky cannot be combined with --stream-body"),
    ):
        command = [sys.executable, "-m", "tailrace", "echo:app", *flags]
        found = subprocess.run(command, cwd=APPS, capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode != 0
        assert said in found.stderr
