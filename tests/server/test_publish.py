"""`tailrace.publish`, and the addresses of `--publish-bind`: what they accept, and how they refuse the rest."""

import json
import re
import socket
import threading

import pytest
from harness.addresses import Address, free_address
from harness.held import Stream, item, post
from harness.server import Server, shared
from harness.wire import Client
from server.probes import told

import tailrace

PUBLISH = free_address()
server = shared(Server, "srv_held:application", "--publish-bind", PUBLISH.bind, threads=4)
VARIABLES = ("TAILRACE_PUBLISH_URL", "TAILRACE_PUBLISH_BIND", "GRIP_URL")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("place", ["{0.place}", "http://{0.place}", "http://{0.place}/", "{0.place} , 127.0.0.1:1"])
@pytest.mark.parametrize("variable", [None, *VARIABLES])
def test_another_process_says_where_to_publish(server, monkeypatch, place, variable):
    place = place.format(PUBLISH)
    if variable is None:
        to = place
    else:
        monkeypatch.setenv(variable, place)
        to = None
    with Stream(server.address, "/hold/a") as stream:
        id = tailrace.publish("a", {"n": 1, "text": "ö"}, to=to)
        event = stream.event()
        assert (event["id"], json.loads(event["data"])) == (id, {"n": 1, "text": "ö"})
        assert tailrace.publish("a", "line\r\nline", event="changed", id="7", to=to) == "7"
        while b"\n\n" not in stream.pending:
            stream.pending += stream.client.chunk(stream.response)
        assert stream.pending == b"event: changed\nid: 7\ndata: line\ndata: line\n\n"


def test_the_variable_of_this_server_comes_before_that_of_pushpin(server, monkeypatch):
    monkeypatch.setenv("GRIP_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("TAILRACE_PUBLISH_URL", PUBLISH.place)
    with Stream(server.address, "/hold/a") as stream:
        tailrace.publish("a", "x")
        assert stream.data(1) == ["x"]


@pytest.mark.parametrize("name", ["{0}/publish.sock", "@{0}/abstract"])
def test_at_a_unix_socket(tmp_path, name):
    path = name.format(tmp_path)
    with Server("srv_held:application", "--publish-bind", f"unix:{path}") as server:
        with Stream(server.address, "/hold/a") as stream:
            tailrace.publish("a", "x", to=f"unix:{path}")
            assert stream.data(1) == ["x"]
        # The application of another server publishes there as well.
        with Server("srv_held:application") as other, Stream(server.address, "/hold/a") as stream:
            told(other, f"/publish-to?to=unix:{path}")
            assert stream.data(1) == ["x"]


def test_at_several_addresses(server, tmp_path):
    first, second = free_address(), Address(path=str(tmp_path / "p"))
    with Server("srv_held:application", "--publish-bind", first.bind, "--publish-bind", second.bind) as server:
        with Stream(server.address, "/hold/a") as stream:
            for number, address in enumerate((first, second)):
                assert post(address, [item("a", f"data: {number}\n\n")]).status == 200
                assert stream.data(1) == [str(number)]


@pytest.mark.parametrize(
    "arguments", [("--stream-body",), ("--gevent",), ("--debug",), ("--gevent", "--stream-body")], ids=" ".join
)
def test_the_address_is_the_same_in_all_modes(arguments):
    publishes = free_address()
    with Server("srv_held:application", *arguments, publish_bind=publishes) as server:
        with Stream(server.address, "/hold/a") as stream:
            content = "x" * 900_000
            assert post(publishes, [item("a", f"data: {content}\n\n")]).body == b"Published\n"
            assert stream.data(1) == [content]
            chunked = b"POST /publish/ HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
            document = json.dumps({"items": [item("a", "data: y\n\n")]}).encode()
            with Client(publishes) as client:
                client.send(chunked)
                for at in range(0, len(document), 7):
                    piece = document[at : at + 7]
                    client.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                assert client.ask(b"0\r\n\r\n").status == 200
            assert stream.data(1) == ["y"]


def test_a_connection_is_kept_for_the_next_document(server):
    body = json.dumps({"items": [item("a", "data: x\n\n")]}).encode()
    asked = b"POST /publish/ HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with Stream(server.address, "/hold/a") as stream, Client(PUBLISH) as client:
        client.send(asked * 3)
        for _ in range(3):
            response = client.response()
            assert (response.status, response.body, response["content-type"]) == (
                *(200, b"Published\n"),
                "text/plain; charset=utf-8",
            )
        assert stream.data(3) == ["x"] * 3


GOOD = item("a", "x")
BINARY = {"http-stream": {"content-bin": "not base64"}}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"", "the document is not JSON"),
        (b"{", "the document is not JSON"),
        (b"\xff", "the document is not JSON"),
        (b"[]", 'the document must be {"items": [...]}'),
        (b'{"items": {}}', 'the document must be {"items": [...]}'),
        ([GOOD, {}], "item 2: it has no channel"),
        ([GOOD, GOOD, item("")], "item 3: the name of a channel"),
        ([item("x" * 1025, "x")], "item 1: the name of a channel"),
        ([item("a", "x", id=7)], "item 1: id is not a string"),
        ([item("a")], "item 1: it has none of the formats"),
        ([item("a", formats=BINARY)], "item 1: content-bin is not base64"),
        ([item("a", formats={"http-stream": {"action": "open"}})], "item 1: http-stream has the action"),
        ([item("a", formats={"http-response": {"code": 99}})], "item 1: code is not a status"),
        ([item("a", formats={"http-response": {"headers": {"A": "b\r\nC: d"}}})], "item 1: header"),
    ],
)
def test_a_wrong_document_is_refused_and_the_answer_says_what_is_wrong(server, document, text):
    answer = post(PUBLISH, document)
    assert answer.status == 400 and answer.body.decode().startswith(text) and answer.body.endswith(b"\n")


def test_an_empty_list_publishes_nothing(server):
    assert post(PUBLISH, []).status == 200


def test_other_requests_are_refused(server):
    assert post(PUBLISH, [GOOD], path="/").status == 404
    assert post(PUBLISH, [GOOD], path="/hold/a").body == b"This address has only /publish/.\n"
    assert post(PUBLISH, [GOOD], path="/publish").status == post(PUBLISH, [GOOD], path="/publish/?a=b").status == 200
    for method in ("GET", "PUT", "DELETE"):
        answer = post(PUBLISH, b"", method=method)
        assert (answer.status, answer["allow"]) == (405, "POST")
    assert post(PUBLISH, b"", method="HEAD").status == 405
    for field in ("Origin: http://127.0.0.1", "oRIGIN: null", "Sec-Fetch-Site: same-origin"):
        answer = post(PUBLISH, [GOOD], field)
        assert (answer.status, answer.body) == (403, b"Pages in browsers may not publish here.\n")
    assert post(PUBLISH, b" " * (1 << 20)).status == 400
    answer = post(PUBLISH, b" " * ((1 << 20) + 1))
    assert (answer.status, answer.body) == (413, b"A document may have 1048576 bytes.\n")
    # The address of the application does not publish.
    assert post(server.address, [GOOD], path="/publish/a").body == b"%d" % server.pid


def test_the_application_has_no_request_of_the_address(tmp_path):
    publishes, path = free_address(), tmp_path / "log"
    log = ("--access-log", str(path), "--access-log-format", "{method} {target} {status} {app_ms}")
    with Server("srv_held:application", *log, publish_bind=publishes) as server:
        assert post(publishes, [GOOD], path="/pid").status == 404
        assert post(publishes, [GOOD]).status == 200
        assert server.get("/pid").status == 200
    *published, last = path.read_text().splitlines()
    # The application took no time for them: it was not called.
    assert published == ["POST /pid 404 -", "POST /publish/ 200 -"]
    assert re.fullmatch(r"GET /pid 200 [0-9.]+", last)


# tailrace.publish, and what it raises


class Fake:
    """A server of one answer."""

    def __init__(self, answer):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        self.received = b""
        self.thread = threading.Thread(target=self.answer, args=(answer,))

    def answer(self, answer):
        with self.listener.accept()[0] as sock:
            while not self.received.endswith(b"}"):
                self.received += sock.recv(65536)
            sock.sendall(answer)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.listener.close()


def test_the_path_of_a_url_stays_before_that_of_the_address():
    with Fake(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as fake:
        tailrace.publish("a", "x", id="7", to=f"http://{fake.address.place}/below/it/?iss=x")
    head, _, body = fake.received.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /below/it/publish/ HTTP/1.1\r\n") and b"Content-Type: application/json" in head
    assert json.loads(body) == {
        "items": [
            {
                "channel": "a",
                "id": "7",
                "formats": {
                    "http-stream": {"content": "id: 7\ndata: x\n\n"},
                    "http-response": {
                        "code": 200,
                        "reason": "OK",
                        "headers": {"Content-Type": "text/plain; charset=utf-8"},
                        "body": "x",
                    },
                },
            }
        ]
    }


def test_a_server_that_refuses_or_that_is_none_raises_what_it_has_said():
    for answer, said in (
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n", "rejected the event: 403 no"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot publish to"),
        (b"", "cannot publish to"),
    ):
        with Fake(answer) as fake, pytest.raises(tailrace.PublishError, match=said):
            tailrace.publish("a", "x", to=fake.address.place)


@pytest.mark.parametrize(
    ("to", "text"),
    [
        ("127.0.0.1:1", "cannot publish to 127.0.0.1:1: Connection refused; start the server with --publish-bind"),
        (":1", "cannot publish to :1: Connection refused"),
        ("unix:/nowhere?mode=600", "cannot publish to unix:/nowhere.*: No such file or directory; start the server"),
        ("https://127.0.0.1:1", "cannot publish to https://127.0.0.1:1: write host:port, unix:/path or http://host"),
        ("http://", "cannot publish to http://: write host:port"),
        ("127.0.0.1:port", "cannot publish to 127.0.0.1:port: .*not an address; write host:port"),
        ("fd://3", "cannot publish to fd://3: a file descriptor is not an address; write host:port"),
    ],
)
def test_an_address_that_is_none_is_an_error_that_names_it(to, text):
    with pytest.raises(tailrace.PublishError, match=text):
        tailrace.publish("a", "x", to=to)


def test_outside_a_server_the_error_says_how_to_name_one():
    with pytest.raises(tailrace.PublishError, match=r"set to= or \$TAILRACE_PUBLISH_URL"):
        tailrace.publish("a", "x")


def test_what_the_server_refuses_is_an_error_in_the_application_too(server):
    said = told(server, f"/publish-to?to=http://{PUBLISH.place}/elsewhere")
    assert "does not accept publications; give it an address of --publish-bind" in said
    with pytest.raises(tailrace.PublishError, match="rejected the event: 400 item 1: the name of a channel"):
        tailrace.publish("", "x", to=PUBLISH.place)
    with pytest.raises(tailrace.PublishError, match="413 A document may have 1048576 bytes"):
        tailrace.publish("a", "x" * 2_000_000, to=PUBLISH.place)
    response = server.get("/publish/%20")
    assert response.status == 500
    assert server.logged("tailrace.errors.PublishError: item 1: the name of a channel must have 1 to 1024 bytes")


def test_what_cannot_be_an_event_is_an_error_before_anything_is_sent():
    for more in ({"event": "a\nb"}, {"id": "a\rb"}, {"id": "a\0"}):
        with pytest.raises(ValueError, match=f"{next(iter(more))} must not contain a line break"):
            tailrace.publish("a", "x", to="127.0.0.1:1", **more)
    with pytest.raises(TypeError):
        tailrace.publish("a", object(), to="127.0.0.1:1")


def test_ids_are_never_given_twice(server):
    ids = [tailrace.publish("ids", str(number), to=PUBLISH.place) for number in range(50)]
    assert len(set(ids)) == 50


# tailrace.hold


def test_the_fields_of_hold():
    assert tailrace.hold("a", "b c") == {
        "Grip-Hold": "stream",
        "Grip-Channel": "a, b c",
        "X-Accel-Buffering": "no",
        "Grip-Keep-Alive": ":\\n\\n; format=cstring; timeout=20",
    }
    assert tailrace.hold("a", keep_alive=None).keys() == {"Grip-Hold", "Grip-Channel", "X-Accel-Buffering"}
    assert tailrace.hold("a", "b", mode="response", timeout=30.5, last_ids={"a": '7"\\'}) == {
        "Grip-Hold": "response",
        "Grip-Channel": 'a; prev-id="7\\"\\\\", b',
        "Grip-Timeout": "30",
    }
    assert "Grip-Timeout" not in tailrace.hold("a", mode="response")


@pytest.mark.parametrize("channel", ["", "a,b", "a;b", "a\n", "a\0", 'a"', "日本", "   "])
def test_a_name_that_no_header_field_can_have_is_refused(channel):
    with pytest.raises(ValueError, match="is not the name of a channel"):
        tailrace.hold("a", channel)


def test_hold_without_a_channel_or_with_wrong_values_is_refused():
    for arguments, more in (((), {}), (("a",), {"mode": "poll"}), (("a",), {"keep_alive": 0})):
        with pytest.raises(ValueError):
            tailrace.hold(*arguments, **more)
    with pytest.raises(ValueError):
        tailrace.hold("a", mode="response", timeout=0.5)


def test_a_forked_child_of_the_application_publishes_for_the_same_server(server):
    # It has inherited the address.
    with Stream(server.address, "/hold/a") as stream:
        assert told(server, "/publish-forked/a") == 0
        assert stream.data(1) == ["from a child"]
