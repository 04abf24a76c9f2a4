"""Streams that are held without a thread: what their clients receive, byte by byte."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from harness.addresses import Address, free_address
from harness.held import Stream, item, post, publish, query
from harness.packets import ask, packet, variables
from harness.server import APPS, Server, shared
from harness.wire import Client
from server.probes import eventually, told

PLACES = [(), ("--gevent",), ("--debug",), ("--preload",), ("--workers", "2"), ("https",)]
PUBLISH = free_address()
TYPE = ("Content-Type", "text/plain")
BASIC = [TYPE, ("Grip-Hold", "stream"), ("Grip-Channel", "a"), ("body", "begun ")]
server = shared(Server, "srv_held:application", "--publish-bind", PUBLISH.bind, threads=4)


def serving(*arguments, **options):
    """A server. "https" among the arguments: its connections are encrypted."""
    address = replace(free_address(), is_encrypted=True) if "https" in arguments else None
    rest = [argument for argument in arguments if argument != "https"]
    return Server("srv_held:application", *rest, address=address, **options)


def streamed(server, *fields, **options):
    """A stream with these instructions, besides those of BASIC that it does not have."""
    names = {name for name, _ in fields}
    rest = [pair for pair in BASIC if pair[0] not in names]
    return Stream(server.address, query([*fields, *rest]), **{"body": b"begun ", **options})


def sent(*items):
    publish(PUBLISH, *items)


@pytest.mark.parametrize("arguments", PLACES, ids=" ".join)
def test_a_stream_has_what_the_application_returned_and_then_what_any_worker_publishes(arguments):
    with serving(*arguments, threads=4) as server:
        with Stream(server.address, "/hold/orders") as stream:
            head = stream.response
            assert head["content-type"] == "text/event-stream" and head["x-accel-buffering"] == "no"
            assert not [name for name, _ in head.fields if name.lower().startswith("grip")]
            for number in range(20):
                told(server, f"/publish/orders?first={number}")
                event = stream.event()
                assert event["data"] == str(number) and event["id"]
            told(server, "/publish/orders?data=x%0Ay&event=changed&id=7")
            assert stream.event() == {"event": "changed", "id": "7", "data": "y"}
    assert "ERROR" not in server.log, server.log


def test_each_of_two_workers_publishes_to_the_streams_of_the_other():
    with serving("--workers", "2") as server:
        workers = eventually(lambda: set(server.workers(2)), "two workers")
        with Stream(server.address, "/hold/a") as stream:
            seen = set()

            def from_another():
                seen.add(told(server, "/publish/a"))
                assert stream.event()["data"] == "0"
                return len(seen & workers) == 2

            eventually(from_another, "both workers have published")


def test_many_streams_need_no_thread():
    with serving(threads=1) as server:
        streams = [Stream(server.address, "/hold/a") for _ in range(30)]
        told(server, "/publish/a?first=1&count=2")
        for stream in streams:
            assert stream.data(2) == ["1", "2"]
            stream.client.close()


EMBEDDED = """
import sys, threading, urllib.request
import tailrace, srv_held
from harness.addresses import address_of
from harness.held import Stream

def at(server):
    return address_of(server.url)

with tailrace.serve_in_thread(srv_held.application) as outer:
    with tailrace.serve_in_thread(srv_held.application) as server:
        stream = Stream(at(server), "/hold/a")
        tailrace.publish("a", "from the program")
        assert stream.data(1) == ["from the program"]
        urllib.request.urlopen(server.url + "/publish/a?data=from+a+request", timeout=30).close()
        assert stream.data(1) == ["from a request"]
        # Servers of one process share what is published.
        other = Stream(at(outer), "/hold/a")
        tailrace.publish("a", "to both")
        assert stream.data(1) == other.data(1) == ["to both"]
    # The other server still holds connections.
    tailrace.publish("a", "on")
    assert other.data(1) == ["on"]
for each in (stream, other):
    assert b"retry: " in each.ending(), each.pending
try:
    tailrace.publish("a", "x")
except tailrace.PublishError as error:
    assert "belongs to no server" in str(error), error
else:
    raise AssertionError("published to no server")
# And again.
with tailrace.serve_in_thread(srv_held.application) as server, Stream(at(server), "/hold/a") as stream:
    tailrace.publish("a", "again")
    assert stream.data(1) == ["again"]
print("done")
"""
RUN = """
import threading, tailrace, srv_held
from harness.addresses import address_of, free_address
from harness.held import Stream

address = free_address()
seen = []

def talk():
    import time
    while True:
        try:
            stream = Stream(address, "/hold/a")
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    tailrace.publish("a", "1")
    seen.append(stream.data(1))
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)
    seen.append(b"retry: " in stream.ending())

thread = threading.Thread(target=talk)
thread.start()
tailrace.run(srv_held.application, bind=address.bind)
thread.join(30)
assert seen == [["1"], True], seen
print("done")
"""


@pytest.mark.parametrize("program", [EMBEDDED, RUN], ids=["serve_in_thread", "run"])
def test_a_program_that_embeds_the_server_holds_streams_until_the_server_ends(program):
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(APPS)!r}, {str(APPS.parent)!r}]\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_access_log_has_one_line_for_each_stream(tmp_path):
    path = tmp_path / "log"
    log = ("--access-log", str(path), "--access-log-format", "{method} {target} {status} {delivery}")
    with serving(*log, workers=1) as server:
        for number in range(2):
            with Stream(server.address, f"/hold/a?number={number}") as stream:
                # The line is written when the view returns, and what is sent later adds none.
                eventually(lambda n=number: path.read_text().count(f"?number={n} 200 held\n") == 1, "its line")
                told(server, "/publish/a")
                assert stream.data(1) == ["0"]
    publications = ["GET /publish/a 200 one-write"] * 2
    streams = [f"GET /hold/a?number={number} 200 held" for number in range(2)]
    assert path.read_text().splitlines() == [streams[0], publications[0], streams[1], publications[1]]


def test_the_chunks_are_the_response_and_then_each_publication(server):
    with Client(server.address) as client:
        client.send(f"GET {query(BASIC)} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        head = client.head()
        assert (head["transfer-encoding"], head.connection, head["content-type"]) == (
            "chunked",
            {"close"},
            "text/plain",
        )
        assert client.read(11) == b"6\r\nbegun \r\n"
        sent(item("a", "x" * 26), item("a", ""), item("b", "no"), item("a", "y"))
        assert client.read(31 + 7) == b"1a\r\n" + b"x" * 26 + b"\r\n" + b"1\r\ny\r\n"
        sent(item("a", formats={"http-stream": {"action": "close"}}))
        assert client.rest() == b"0\r\n\r\n" and not client.reset


def test_http_1_0_has_no_chunks(server):
    with Client(server.address) as client:
        client.send(f"GET {query(BASIC)} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
        head = client.head()
        assert "transfer-encoding" not in head and "content-length" not in head and "keep-alive" not in head.connection
        sent(item("a", "x"), item("a", "y"), item("a", formats={"http-stream": {"action": "close"}}))
        assert client.rest() == b"begun xy" and not client.reset


def test_over_a_unix_socket(tmp_path):
    # Nor does the address of publications need a port.
    address, publishes = Address(path=str(tmp_path / "s")), Address(path=str(tmp_path / "p"))
    with Server("srv_held:application", address=address, publish_bind=publishes) as server:
        with Stream(server.address, "/hold/a") as stream:
            publish(publishes, item("a", "data: x\n\n"))
            assert stream.data(1) == ["x"]


def test_over_the_uwsgi_protocol():
    address = free_address()
    with Server("srv_held:application", "--bind", f"uwsgi://{address.place}", address=address) as server:
        with Client(server.address) as client:
            client.send(packet(variables(query(BASIC))))
            head = client.head()
            assert head.status == 200 and "transfer-encoding" not in head
            assert client.read(6) == b"begun "
            assert ask(server.address, packet(variables("/publish/a?data=x&id=1"))).status == 200
            assert client.read(15) == b"id: 1\ndata: x\n\n"
            server.send_signal(signal.SIGTERM)
            # Its type is none of an event stream.
            assert client.rest() == b"" and not client.reset
            assert server.wait() == 0


def test_publications_of_several_channels_come_in_the_order_they_were_published_in(server):
    with streamed(server, ("Grip-Channel", "a, b"), ("Grip-Channel", "c")) as stream:
        expected = b""
        for number in range(60):
            expected += b"%d%s " % (number, b"abc"[number % 3 :][:1])
        sent(*(item("abc"[number % 3], f"{number}{'abc'[number % 3]} ") for number in range(60)), item("d", "no"))
        assert stream.read(len(expected)) == expected


def test_a_channel_that_is_named_twice_is_sent_once(server):
    with streamed(server, ("Grip-Channel", "a, a")) as stream:
        sent(item("a", "x"), item("a", "y"))
        assert stream.read(2) == b"xy"


def test_users_whom_a_publication_skips_are_not_sent_it(server):
    channel = ("Grip-Channel", "a; filter=skip-users")
    with (
        streamed(server, channel, ("Grip-Set-Meta", 'user="ann"')) as ann,
        streamed(server, channel, ("Grip-Set-Meta", "user=bob")) as bob,
        streamed(server, ("Grip-Set-Meta", "user=ann")) as unfiltered,
        streamed(server, channel) as no_user,
    ):
        sent(
            item("a", "1", meta={"skip_users": "eve, ann"}), item("a", "2", meta={"skip_users": "bob"}), item("a", "3")
        )
        assert ann.read(2) == b"23"
        assert bob.read(2) == b"13"
        assert unfiltered.read(3) == no_user.read(3) == b"123"


def test_a_publication_that_requires_a_channel_is_for_connections_that_have_it(server):
    channel = ("Grip-Channel", "a; filter=require-sub")
    with (
        streamed(server, channel) as without,
        streamed(server, channel, ("Grip-Channel", "vip")) as with_it,
        streamed(server) as unfiltered,
    ):
        sent(item("a", "1", meta={"require_sub": "vip"}), item("a", "2"))
        assert without.read(1) == b"2"
        assert with_it.read(2) == unfiltered.read(2) == b"12"


def test_ids_are_built_from_the_last_id_of_each_channel(server):
    def built(channel, id, content="%I %% %x|"):
        formats = {"http-stream": {"content": content, "content-filters": ["build-id"]}}
        return item(channel, id=id, formats=formats)

    channel = ("Grip-Channel", "a; prev-id=7; filter=build-id, b; filter=build-id")
    with (
        streamed(server, channel, ("Grip-Set-Meta", 'id_format="a:%(a)s,b:%(b)s,100%%,%(c)s"')) as stream,
        streamed(server) as plain,
    ):
        sent(built("a", "8"), built("b", "1"), built("a", "9"), item("a", "%I%%|", id="10"))
        expected = b"a:8,b:,100%, % %x|a:8,b:1,100%, % %x|a:9,b:1,100%, % %x|%I%%|"
        assert stream.read(len(expected)) == expected
        # Without a format it is the id of the publication.
        assert plain.read(19) == b"8 % %x|9 % %x|%I%%|"


def test_a_stream_that_is_sent_nothing_is_kept_alive(server):
    with (
        streamed(server, ("Grip-Keep-Alive", ":\\n\\n; format=cstring; timeout=1")) as text,
        streamed(server, ("Grip-Keep-Alive", "AAEK; format=base64; timeout=1")) as binary,
        streamed(server, ("Grip-Keep-Alive", "ping; timeout=1"), version="1.0") as raw,
    ):
        assert text.read(6) == b":\n\n:\n\n"
        assert binary.read(6) == b"\0\1\n\0\1\n"
        assert raw.read(8) == b"pingping"


def test_a_response_to_head_is_not_held(server):
    with server.client() as client:
        client.send(f"HEAD {query(BASIC)} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        head = client.response("HEAD")
        assert head.status == 200 and not [name for name, _ in head.fields if name.lower().startswith("grip")]
        # The connection is still there.
        assert client.ask(b"GET /pid HTTP/1.1\r\nHost: test\r\n\r\n").status == 200


@pytest.mark.parametrize(
    ("target", "lines"),
    [
        ("/raises", ["ERROR: GET /raises: exception", "ValueError: in the middle of a held response"]),
        ("/large?size=1200000", ["GET /large?size=1200000: the response is larger than the 1048576 bytes"]),
        (query([TYPE, ("Grip-Hold", "maybe"), ("Grip-Channel", "a")]), ['Grip-Hold is "maybe"']),
        (query([TYPE, ("Grip-Hold", "stream")]), ["Grip-Hold needs Grip-Channel"]),
        (query([*BASIC, ("Grip-Timeout", "soon")]), ['Grip-Timeout is "soon"']),
        (query([*BASIC, ("Grip-Channel", "a; filter=none")]), ['Grip-Channel has the filter "none"']),
        (query([*BASIC, ("Grip-Keep-Alive", "x; format=y")]), ['Grip-Keep-Alive has the format "y"']),
        (query([*BASIC, ("Grip-Link", "<https://elsewhere.example/>; rel=next")]), ["Grip-Link must have a path"]),
    ],
)
def test_what_cannot_be_held_is_an_error_and_the_log_says_why(server, target, lines):
    with server.client() as client:
        response = client.ask(f"GET {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        assert response.status == 500 and b"this is not sent" not in response.body
        assert not [name for name, _ in response.fields if name.lower().startswith("grip")]
    for line in lines:
        assert server.logged(line), (line, server.log)


def test_a_response_of_a_mebibyte_is_held(server):
    size = 1_000_000
    with Stream(server.address, f"/large?size={size}", body=b"x" * size) as stream:
        sent(item("a", "y"))
        assert stream.read(1) == b"y"


@pytest.mark.parametrize("target", ["/written", "/file", "/bytes"])
def test_whatever_the_application_returns_comes_first(server, target):
    content = {
        "/written": b"written, returned",
        "/file": (APPS / "srv_held.py").read_bytes(),
        "/bytes": b"of a file without a descriptor",
    }[target]
    with Stream(server.address, target, body=content) as stream:
        sent(item("a", "y"))
        assert stream.read(1) == b"y"


def test_an_empty_response_is_held_too(server):
    with Stream(server.address, query([pair for pair in BASIC if pair[0] != "body"]), body=b"") as stream:
        sent(item("a", "y"))
        assert stream.read(1) == b"y"


def test_a_status_for_the_client_of_a_framework_that_removes_fields(server):
    target = query([*BASIC, ("Grip-Status", "203"), ("status", "200 OK")])
    with Client(server.address) as client:
        client.send(f"GET {target} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        assert client.head().status == 203


def test_a_length_that_the_application_states_is_not_that_of_the_stream(server):
    with streamed(server, ("Content-Length", "6")) as stream:
        assert "content-length" not in stream.response
        sent(item("a", "y"))
        assert stream.read(1) == b"y"


# What clients and proxies say about being held


FORGED = ("Grip-Sig: x", "GRIP-Last: a", "Grip_Sig: x", "grip-feature: all")


# Even a trusted proxy passes on the fields of its clients, unless it is one that holds connections.
@pytest.mark.parametrize("trusted", ["none", "127.0.0.1"])
@pytest.mark.parametrize("grip_url", [None, "itself", "http://pushpin.example:5561"])
def test_fields_of_clients_that_pretend_to_be_a_holding_proxy_are_removed(trusted, grip_url):
    publishes = free_address()
    environment = {} if grip_url is None else {"GRIP_URL": grip_url.replace("itself", publishes.url)}
    believes = trusted != "none" and grip_url not in (None, "itself")
    arguments = ("--trusted-proxies", trusted)
    with Server("srv_held:application", *arguments, publish_bind=publishes, environment=environment) as server:
        # The proof that the server itself gives.
        own = {"HTTP_GRIP_SIG"}
        seen = set(json.loads(server.get("/environ", *FORGED).body))
        assert (seen != own) is believes
        if not believes:
            with Stream(server.address, query(BASIC), *FORGED, body=b"begun ") as stream:
                assert not [name for name, _ in stream.response.fields if name.lower().startswith("grip")]
                publish(publishes, item("a", "x"))
                assert stream.read(1) == b"x"


def test_behind_a_trusted_proxy_that_holds_connections_the_instructions_are_for_it():
    environment = {"GRIP_URL": "http://pushpin.example:5561"}
    arguments = ("--trusted-proxies", "127.0.0.1")
    with Server("srv_held:application", *arguments, environment=environment) as server, server.client() as client:
        asked = f"GET {query(BASIC)} HTTP/1.1\r\nHost: test\r\nGrip-Sig: x\r\n\r\n".encode()
        for _ in range(2):
            response = client.ask(asked)
            assert (response["grip-hold"], response["grip-channel"], response.body) == ("stream", "a", b"begun ")
        assert json.loads(client.ask(b"GET /environ HTTP/1.1\r\nHost: a\r\nGrip-Sig: x\r\n\r\n").body) == [
            "HTTP_GRIP_SIG"
        ]
        # A proxy that does not hold connections gets none of them.
        with Stream(server.address, query(BASIC), body=b"begun ") as stream:
            assert "grip-hold" not in stream.response


def test_instructions_that_hold_nothing_are_removed(server):
    response = server.get(query([TYPE, ("Grip-Channel", "a"), ("body", "x")]))
    assert response.body == b"x" and "grip-channel" not in response


def test_the_query_of_a_held_request_may_be_anything(server):
    target = "/fields?" + urlencode([*BASIC, ("X-Long", "y" * 4000)])
    with Stream(server.address, target, body=b"begun ") as stream:
        assert stream.response["x-long"] == "y" * 4000
        assert post(PUBLISH, [item("a", "z")]).status == 200
        assert stream.read(1) == b"z"
