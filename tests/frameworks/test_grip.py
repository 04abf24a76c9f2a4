"""django-eventstream and django-grip: their streams and WebSockets are held by the server, as Pushpin would."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from urllib.parse import quote

import pytest
import websocket
from harness.addresses import free_address
from harness.held import Stream, holder_process, poll
from harness.server import APPS, Server
from harness.tools import need_module
from harness.wire import Broken
from server.probes import eventually, ready

need_module("gripcontrol")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("grip")


@pytest.fixture(scope="module")
def environment(data):
    made = {"GRIP_SITE_DATA": str(data), "DJANGO_SETTINGS_MODULE": "grip_site.settings"}
    subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--verbosity=0"],
        env={**os.environ, **made, "PYTHONPATH": str(APPS)},
        cwd=APPS,
        check=True,
        timeout=60,
    )
    return made


def serving(environment, *arguments):
    options = {"publish_bind": free_address(), "websocket_events": "/ws/", "workers": 2, "threads": 4}
    return Server("grip_site.wsgi", *arguments, environment=environment, **options)


@pytest.fixture(scope="module")
def server(environment):
    with serving(environment) as server:
        yield server


class Events(Stream):
    """A stream of django-eventstream, behind the first event, which says that it is open."""

    def __init__(self, server, target, *fields):
        super().__init__(server.address, target, *fields, body=b":" + b" " * 2048 + b"\n\n")
        assert self.event() == {"event": "stream-open"}

    def event(self):
        """The next event, whatever it says."""
        while b"\n\n" not in self.pending:
            assert self._more(), f"the stream has ended behind {self.pending!r}"
        text, _, self.pending = self.pending.partition(b"\n\n")
        fields = dict(line.split(":", 1) for line in text.decode().split("\n"))
        return {name: value.strip() for name, value in fields.items() if value}

    def numbers(self, count):
        """The data of the next events, and the id of the last one."""
        events = [self.event() for _ in range(count)]
        assert {event["event"] for event in events} == {"message"}, events
        return [int(event["data"]) for event in events], events[-1].get("id")


def send(server, channel, query=""):
    answer = server.get(f"/send/{quote(channel)}?{query}")
    assert answer.status == 200, answer
    return json.loads(answer.body)["id"]


@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--preload",)], ids=" ".join)
def test_events_of_every_worker_come_once_and_in_order_with_ids(environment, arguments):
    channel = "plain" + "".join(arguments)
    with serving(environment, *arguments) as server, Events(server, f"/events/?channel={channel}") as stream:
        assert stream.response["content-type"] == "text/event-stream"
        assert not [name for name, _ in stream.response.fields if name.lower().startswith("grip")]
        for number in range(20):
            send(server, channel, f"first={number}")
            assert stream.numbers(1) == ([number], f"{channel}:{number + 1}")
        last = send(server, channel, "first=20&count=30&async")
        assert stream.numbers(30) == (list(range(20, 50)), last)


@pytest.mark.parametrize("by", ["field", "query"])
def test_a_client_that_comes_back_gets_what_it_has_missed(server, by):
    channel = f"back-{by}"
    with Events(server, f"/events/?channel={channel}") as stream:
        send(server, channel, "count=3")
        _, known = stream.numbers(3)
    last = send(server, channel, "first=3&count=5")
    query, fields = ("", [f"Last-Event-ID: {known}"]) if by == "field" else (f"&lastEventId={quote(known)}", [])
    with Events(server, f"/events/?channel={channel}{query}", *fields) as stream:
        assert stream.numbers(5) == ([3, 4, 5, 6, 7], last)
        send(server, channel, "first=8")
        assert stream.numbers(1)[0] == [8]


@pytest.mark.parametrize("missed", [99, 100, 101, 250])
def test_a_client_that_has_missed_very_many_events_gets_them_in_several_responses(server, missed):
    channel = f"many{missed}"
    first = send(server, channel)
    last = send(server, channel, f"first=1&count={missed}")
    with Events(server, f"/events/?channel={channel}", f"Last-Event-ID: {first}") as stream:
        assert stream.numbers(missed) == (list(range(1, missed + 1)), last)
        send(server, channel, f"first={missed + 1}")
        assert stream.numbers(1)[0] == [missed + 1]


def test_the_id_of_several_channels_names_the_last_event_of_each(server):
    with Events(server, "/rooms/tea/events/") as stream:
        send(server, "tea-news", "first=1")
        send(server, "tea", "first=2&count=2")
        events = [stream.event() for _ in range(3)]
        assert [dict(part.split(":") for part in event["id"].split(",")) for event in events] == [
            {"tea": "0", "tea-news": "1"},
            {"tea": "1", "tea-news": "1"},
            {"tea": "2", "tea-news": "1"},
        ]
    send(server, "tea", "first=4")
    send(server, "tea-news", "first=5")
    with Events(server, "/rooms/tea/events/", f"Last-Event-ID: {events[1]['id']}") as stream:
        assert sorted(stream.numbers(3)[0]) == [3, 4, 5]


def test_events_that_are_not_stored_have_no_id(server):
    with Events(server, "/events/?channel=fleeting") as stream:
        server.get("/send/fleeting?first=7&async")
        assert stream.event() == {"event": "message", "data": "7"}


def test_data_of_any_kind_arrives_as_it_was(server):
    with Events(server, f"/events/?channel={quote('ä b%I')}") as stream:
        for text in ("100%", "%I %% %(x)s", "two\nlines", "€ \u2028", "\\ \" '", ""):
            send(server, "ä b%I", f"data={quote(text)}")
            assert json.loads(stream.event()["data"]) == text


def test_users_can_be_skipped(server):
    with contextlib.ExitStack() as stack:
        streams = {
            name: stack.enter_context(Events(server, "/events/?channel=skips", *([f"X-User: {name}"] if name else [])))
            for name in ("ann", "bob", "")
        }
        send(server, "skips", "first=1&skip=ann")
        send(server, "skips", "first=2&skip=ann&skip=bob")
        send(server, "skips", "first=3")
        assert streams[""].numbers(3)[0] == [1, 2, 3]
        assert streams["bob"].numbers(2)[0] == [1, 3]
        # The others have ids in between, so that nothing is missing.
        assert streams["ann"].numbers(1)[0] == [3]


def test_a_user_who_may_no_longer_read_a_channel_is_disconnected_from_it_alone(server):
    with contextlib.ExitStack() as stack:

        def opened(name, channel):
            return stack.enter_context(Events(server, f"/events/?channel={channel}", f"X-User: {name}"))

        for turn in range(2):
            kept = [opened("cat", "open"), opened("dan", "closed")]
            kicked = [opened("cat", "closed"), opened("cat", "closed")]
            assert server.get("/deny/closed/cat").status == 200
            for stream in kicked:
                event = stream.event()
                assert event["event"] == "stream-error" and event["id"] == "error"
                assert "'condition': 'forbidden'" in event["data"]
                assert stream.ending() == b""
            late = server.get("/events/?channel=closed", "X-User: cat")
            assert late.body.startswith(b"event: stream-error\nid: error\n"), late
            send(server, "open", f"first={turn}")
            send(server, "closed", f"first={turn}")
            for stream in kept:
                assert stream.numbers(1)[0] == [turn]
            assert server.get("/allow/closed/cat").status == 200


def test_what_was_sent_while_nothing_was_held_is_fetched_from_the_storage(environment):
    """Another server, as after the loss of the holder, has published nothing of it."""
    with serving(environment) as server, Events(server, "/events/?channel=gap") as stream:
        send(server, "gap")
        assert stream.numbers(1)[0] == [0]
        with serving(environment) as other:
            send(other, "gap", "first=1&count=3")
        last = send(server, "gap", "first=4")
        assert stream.numbers(4) == ([1, 2, 3, 4], last)
        send(server, "gap", "first=5&count=2")
        assert stream.numbers(2)[0] == [5, 6]


def test_very_many_missing_events_are_fetched_from_the_storage(environment):
    with serving(environment) as server, Events(server, "/events/?channel=gaps") as stream:
        send(server, "gaps")
        assert stream.numbers(1)[0] == [0]
        with serving(environment) as other:
            send(other, "gaps", "first=1&count=230")
        last = send(server, "gaps", "first=231")
        assert stream.numbers(231) == (list(range(1, 232)), last)
        send(server, "gaps", "first=232&count=2")
        assert stream.numbers(2)[0] == [232, 233]


def test_a_client_comes_back_after_the_holder_was_killed(environment):
    with serving(environment) as server:
        with Events(server, "/events/?channel=killed") as stream:
            send(server, "killed")
            _, last = stream.numbers(1)
            before = holder_process(server.process.pid)
            os.kill(before, signal.SIGKILL)
            with pytest.raises(Broken):
                stream.ending()
        send(server, "killed", "first=1&count=3&async")
        eventually(lambda: holder_process(server.process.pid) not in (None, before), "another holder")
        with Events(server, "/events/?channel=killed", f"Last-Event-ID: {last}") as stream:
            assert stream.numbers(3)[0] == [1, 2, 3]
            send(server, "killed", "first=4")
            assert stream.numbers(1)[0] == [4]


def test_events_that_are_published_in_another_order_come_once(server, data):
    """The application is asked at most once for each publication, although it answers that there is nothing more."""
    with Events(server, "/events/?channel=turned") as stream:
        send(server, "turned")
        assert stream.numbers(1)[0] == [0]
        for first in range(1, 31, 3):
            assert server.get(f"/send-turned/turned?first={first}&count=3").status == 200
            assert stream.numbers(3)[0] == [first, first + 1, first + 2]
        send(server, "turned", "first=31")
        assert stream.numbers(1)[0] == [31]
    assert 1 <= (data / "fetches").read_text().count("channel=turned") <= 31


def test_events_of_several_workers_come_in_the_order_of_the_storage(server):
    with Events(server, "/events/?channel=race") as stream:
        faults = []

        def burst(first):
            for number in range(first, first + 25):
                try:
                    send(server, "race", f"first={number}")
                except BaseException as error:
                    faults.append(error)

        threads = [threading.Thread(target=burst, args=(first,)) for first in range(0, 200, 25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not faults, faults
        events = [stream.event() for _ in range(200)]
        assert sorted(int(event["data"]) for event in events) == list(range(200))
        assert [event["id"] for event in events] == [f"race:{number}" for number in range(1, 201)]
        send(server, "race", "first=200")
        assert stream.numbers(1)[0] == [200]


def test_a_stream_of_django_grip_is_kept_alive_and_closed(server):
    with Stream(server.address, "/stream/a", body=b"begun\n") as stream:
        assert stream.read(10) == b"beat\nbeat\n"
        assert server.get("/publish/a?content=news%0A").status == 200
        while not stream.pending.endswith(b"news\n"):
            assert stream._more()
        assert server.get("/publish/a?code=1000").status == 200
        assert stream.ending().removeprefix(b"beat\n").removesuffix(b"news\n") in (b"", b"beat\n")


def test_a_held_response_of_django_grip_waits_for_a_publication(server):
    with poll(server.address, "/poll/p") as first, poll(server.address, "/poll/p?timeout=1") as second:
        assert second.response().body == b"nothing\n"
        assert server.get("/publish/p?content=news").status == 200
        answer = first.response()
        assert (answer.status, answer.body, answer["x-from"]) == (200, b"news", "publication")


class Chat(websocket.WebSocket):
    """A client of a WebSocket."""

    def __init__(self, server, target):
        super().__init__()
        self.settimeout(20)
        self.connect(f"{server.url.replace('http', 'ws')}{target}")

    def receive(self):
        """The next message."""
        opcode, content = self.recv_data()
        assert opcode in (websocket.ABNF.OPCODE_TEXT, websocket.ABNF.OPCODE_BINARY), (opcode, content)
        return content.decode() if opcode == websocket.ABNF.OPCODE_TEXT else content

    def say(self, message):
        """Sends a message, in the form of its type."""
        self.send(message, websocket.ABNF.OPCODE_TEXT if isinstance(message, str) else websocket.ABNF.OPCODE_BINARY)

    def ending(self):
        """The code and the reason with which the server closes."""
        opcode, content = self.recv_data()
        assert opcode == websocket.ABNF.OPCODE_CLOSE, (opcode, content)
        return int.from_bytes(content[:2], "big"), content[2:].decode()


@pytest.fixture
def chat(server):
    """Opens WebSockets, each with what the application has said of it at first."""
    opened = []

    def connect(channel, query=""):
        client = Chat(server, f"/ws/{channel}?{query}")
        opened.append(client)
        return client, json.loads(client.receive())

    yield connect
    for client in opened:
        client.shutdown()


def ended(data, known, text):
    """Returns once the application was told of the end."""
    path = data / "ends"
    eventually(
        lambda: path.exists() and f"{known['id']} {text}\n" in path.read_text(), "the application knows of the end"
    )


def test_a_web_socket_of_django_grip_echoes_and_keeps_its_values(chat):
    (client, known), (_, other) = chat("echo"), chat("echo")
    assert (known["proxied"], known["signed"]) == (True, True) and known["id"] != other["id"]
    for message in ("", "m:", "c:{}", "€" * 20_000, b"", bytes(range(256)), b"\xff" * 300_000):
        client.say(message)
        assert client.receive() == message
    for number in range(50):
        client.send(str(number))
    assert [client.receive() for _ in range(50)] == [str(number) for number in range(50)]
    client.send("count")
    assert client.receive() == "58"


def test_publications_reach_the_web_sockets_of_their_channel(server, chat):
    clients = [chat("news")[0] for _ in range(3)]
    other, _ = chat("other")
    assert server.get("/publish/news?content=%E2%82%AC").status == 200
    assert server.get("/publish/news?content=bytes&binary").status == 200
    for client in clients:
        assert client.receive() == "€" and client.receive() == b"bytes"
    clients[0].send("leave")
    assert clients[0].receive() == "leave"
    assert server.get("/publish/news?content=more").status == 200
    for client in clients[1:]:
        assert client.receive() == "more"
    for client in (clients[0], other):
        client.send("still here")
        assert client.receive() == "still here"
    assert server.get("/publish/news?code=4002").status == 200
    assert [client.ending() for client in clients[1:]] == [(4002, "published")] * 2
    clients[0].send("still here")
    assert clients[0].receive() == "still here"


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
def test_the_application_closes_a_web_socket_with_a_code(chat, code):
    client, _ = chat("closes")
    client.send(f"close {code}")
    assert client.ending() == (code, "")


def test_the_application_is_told_how_a_client_has_ended(data, chat):
    (closing, first), (vanishing, second) = chat("ends"), chat("ends")
    closing.close(4321)
    ended(data, first, "closed with 4321")
    vanishing.sock.shutdown(2)
    ended(data, second, "disconnected")


def test_a_detached_web_socket_gets_publications_and_the_application_nothing_more(server, chat):
    client, _ = chat("detached")
    client.send("detach")
    assert client.receive() == "detach"
    client.send("nobody reads this")
    assert server.get("/publish/detached?content=news").status == 200
    assert client.receive() == "news"
    client.settimeout(0.3)
    with pytest.raises(websocket.WebSocketTimeoutException):
        client.receive()


def test_an_application_that_fails_closes_the_web_socket(chat):
    client, _ = chat("fails")
    client.send("fail")
    assert client.ending() == (1011, "")


def test_the_application_refuses_a_web_socket(server):
    fields = ["Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    fields += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    answer = server.get("/ws/a?as=stranger", *fields)
    assert (answer.status, answer.body) == (403, b"no strangers")
    # An ordinary request is answered by django-grip itself.
    assert server.get("/ws/a").status == 400


def test_web_sockets_outlive_a_reload(environment):
    with serving(environment) as server:
        client = Chat(server, "/ws/reload")
        client.receive()
        before = ready(server)
        server.send_signal(signal.SIGHUP)
        eventually(lambda: not set(before) & set(server.workers()) and len(server.workers()) >= 2, "new workers")
        for text in ("one", "count"):
            client.send(text)
        assert [client.receive() for _ in range(2)] == ["one", "2"]
        assert server.get("/publish/reload?content=news").status == 200
        assert client.receive() == "news"
        client.close()


@pytest.mark.parametrize("size", [2 << 20, 16 << 20])
def test_a_client_reads_why_its_message_is_refused_although_it_was_still_sending(data, chat, size):
    client, known = chat("large")
    client.say(b"x" * size)
    # 1009: the message is too big (RFC 6455 section 7.4.1).
    assert client.ending() == (1009, "")
    ended(data, known, "disconnected")
