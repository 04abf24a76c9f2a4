"""Responses that are held until something is published (long polling), and what a client that comes back is sent."""

import json
import socket

import pytest
from harness.addresses import free_address
from harness.held import Stream, figures, item, poll, post, publish, query
from harness.server import Server, shared
from harness.wire import Client
from server.probes import eventually, told

PUBLISH = free_address()
server = shared(Server, "srv_held:application", "--publish-bind", PUBLISH.bind, threads=4)
HELD = [("Content-Type", "text/plain"), ("X-Held", "yes"), ("Grip-Hold", "response"), ("Grip-Channel", "a")]


def answer_to(client):
    """The response, after which the connection ends."""
    response = client.response()
    client.at_end(clean=True)
    client.close()
    return response


def held(server, target, *fields, channel="a", **options):
    """A client whose response is held: it has its channel."""

    def holds():
        return figures(server.process.pid)["connections"]

    before = holds()
    client = poll(server.address, target, *fields, **options)
    eventually(lambda: holds() > before, "the response is held")
    return client


def response_item(channel, **form):
    return item(channel, formats={"http-response": form})


@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--debug",)], ids=" ".join)
def test_the_first_publication_is_the_response(arguments):
    with Server("srv_held:application", *arguments) as server:
        first, second = held(server, "/poll/a"), held(server, "/poll/a")
        told(server, "/publish/a?first=1&count=2")
        for client in (first, second):
            response = answer_to(client)
            assert (response.status, response.body, response["content-length"]) == (200, b"1", "1")
            assert response["content-type"].startswith("text/plain") and response.connection == {"close"}
        # JSON.
        third = held(server, "/poll/a")
        told(server, "/publish/a")
        assert answer_to(third).body == b"0"


def test_a_publication_may_have_status_header_fields_and_a_binary_body(server):
    client = held(server, query([*HELD, ("body", "nothing")]))
    publish(
        PUBLISH,
        item("a", "for streams alone"),
        response_item("b", body="on another channel"),
        response_item(
            "a", code=404, reason="Gone Away", headers={"X-A": "1", "Content-Type": "a/b"}, **{"body-bin": "AAE="}
        ),
        response_item("a", body="later"),
    )
    response = answer_to(client)
    assert (response.status, response.reason, response.body) == (404, "Gone Away", b"\0\1")
    assert response["x-a"] == "1" and response["content-type"] == "a/b" and "x-held" not in response


def test_header_fields_may_be_a_list_and_a_status_alone_is_answered(server):
    client = held(server, query([*HELD, ("body", "nothing")]))
    publish(PUBLISH, response_item("a", code=204, headers=[["X-A", "1"], ["X-A", "2"]]))
    response = answer_to(client)
    assert (response.status, response.all("x-a"), response.body) == (204, ["1", "2"], b"")


def test_without_a_publication_in_time_the_response_of_the_application_is_sent(server):
    client = poll(
        server.address,
        query([*HELD, ("Grip-Timeout", "1"), ("status", "202 Later"), ("body", "noth"), ("body", "ing")]),
    )
    response = answer_to(client)
    assert (response.status, response.reason, response.body) == (202, "Later", b"nothing")
    assert response["x-held"] == "yes" and response["content-length"] == "7" and "grip-hold" not in response
    assert answer_to(poll(server.address, "/poll/a?timeout=1")).body == b"nothing new, "


def test_a_request_with_a_body_is_held_as_any_other(server):
    for length in (10, 300_000):
        body = b"x" * length
        client = held(server, "/poll/a?timeout=600", method="POST", body=body)
        publish(PUBLISH, response_item("a", body="published"))
        assert answer_to(client).body == b"published"
    client = poll(server.address, "/poll/a?timeout=1", method="POST", body=b"the body")
    assert answer_to(client).body == b"nothing new, the body"


def test_over_http_1_0_and_for_a_second_request_on_a_connection(server):
    with server.client() as client:
        assert client.ask(b"GET /pid HTTP/1.1\r\nHost: test\r\n\r\n").status == 200
        client.send(b"GET /poll/a?timeout=1 HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.response().body == b"nothing new, "
        client.at_end(clean=True)
    with server.client() as client:
        client.send(b"GET /poll/a?timeout=1 HTTP/1.0\r\n\r\n")
        assert client.response(version="1.0").body == b"nothing new, "


def test_a_stream_is_not_sent_what_is_for_responses_alone(server):
    with Stream(server.address, "/hold/a") as stream:
        publish(PUBLISH, response_item("a", body="no"), item("a", "data: yes\n\n"))
        assert stream.data(1) == ["yes"]


def test_a_server_that_stops_sends_the_responses_of_the_application():
    with Server("srv_held:application") as server:
        client = held(server, "/poll/a?timeout=600")
        assert server.stop() == 0
        assert answer_to(client).body == b"nothing new, "


def test_a_client_that_has_left_is_forgotten(server):
    for end in (Client.close, Client.abort):
        client = held(server, "/poll/a?timeout=600")
        end(client)
        eventually(lambda: figures(server.process.pid)["connections"] == 0, "it is forgotten")


# Replay


def numbered(channel, *numbers):
    def numbered_item(number):
        formats = {"http-response": {"body": str(number)}}
        return item(channel, f"id: {number}\ndata: {number}\n\n", id=str(number), formats=formats)

    publish(PUBLISH, *map(numbered_item, numbers))


def test_a_client_that_comes_back_is_sent_exactly_what_it_has_missed(server):
    with Stream(server.address, "/hold/back") as stream:
        numbered("back", 1, 2)
        assert stream.data(2) == ["1", "2"]
    numbered("back", *range(3, 40))
    with Stream(server.address, "/hold/back", "Last-Event-ID: 2") as stream:
        numbered("back", 40)
        assert stream.data(38) == [str(number) for number in range(3, 41)]
    # Nothing was missed.
    with Stream(server.address, "/hold/back", "last-event-id: 40") as stream:
        numbered("back", 41)
        assert stream.data(1) == ["41"]
    # A client that has nothing yet gets what is published from now on.
    with Stream(server.address, "/hold/back") as stream:
        numbered("back", 42)
        assert stream.data(1) == ["42"]


def test_a_client_that_comes_back_with_an_unknown_id_is_sent_all_that_is_kept(server):
    numbered("unknown", 1, 2, 3)
    with Stream(server.address, "/hold/unknown", "Last-Event-ID: of-another-time") as stream:
        numbered("unknown", 4)
        assert stream.data(4) == ["1", "2", "3", "4"]


def test_a_client_of_several_channels_comes_back(server):
    # One of them has had no publication, and is made anew.
    with Stream(server.address, "/hold/busy/quiet") as stream:
        numbered("busy", 1)
        assert stream.data(1) == ["1"]
    numbered("busy", 2, 3)
    with Stream(server.address, "/hold/busy/quiet", "Last-Event-ID: 1") as stream:
        numbered("quiet", 4)
        assert stream.data(3) == ["2", "3", "4"]
    with Stream(server.address, "/hold/busy/silent/quiet", "Last-Event-ID: none-of-these") as stream:
        numbered("busy", 5)
        assert stream.data(5) == ["1", "2", "3", "4", "5"]


def test_a_client_that_polls_again_is_answered_with_what_it_has_missed(server):
    numbered("polled", 1, 2, 3)
    for last, following in (("1", b"2"), ("2", b"3")):
        client = poll(server.address, "/poll/polled?timeout=600", f"Last-Event-ID: {last}")
        assert answer_to(client).body == following
    client = poll(server.address, "/poll/polled?timeout=600&polled=2")
    assert answer_to(client).body == b"3"


def test_an_application_that_has_sent_events_itself_says_which_was_the_last(server):
    numbered("stored", 1, 2, 3)
    with Stream(server.address, "/from/stored?stored=2", body=b": stored\n\n") as stream:
        numbered("stored", 4)
        assert stream.data(2) == ["3", "4"]
    # It had one in its storage that was published only after that.
    with Stream(server.address, "/from/stored?stored=5", body=b": stored\n\n") as stream:
        numbered("stored", 5, 6)
        assert stream.data(1) == ["6"]
    # It knows better than the client.
    with Stream(server.address, "/from/stored?stored=5", "Last-Event-ID: 1", body=b": stored\n\n") as stream:
        numbered("stored", 7)
        assert stream.data(2) == ["6", "7"]


def test_the_last_event_of_each_of_several_channels_counts_for_that_channel(server):
    numbered("one", 1)
    numbered("two", 11, 12, 13)
    numbered("one", 2)
    with Stream(server.address, "/from/one/two?one=1&two=13", body=b": stored\n\n") as stream:
        numbered("two", 14)
        assert stream.data(2) == ["2", "14"]
    # Of a channel without one, what is published from now on.
    with Stream(server.address, "/from/one/two?one=1", body=b": stored\n\n") as stream:
        numbered("two", 15)
        assert stream.data(2) == ["2", "15"]


def test_a_client_in_the_middle_of_a_publication_when_it_left_is_not_sent_half_of_it_again(server):
    # It comes back with the id of the event before, as an event source does.
    numbered("half", 1)
    large = item("half", f"id: 2\ndata: {'x' * 500_000}\n\n", id="2")
    with Stream(server.address, "/hold/half", "Last-Event-ID: 1") as stream:
        publish(PUBLISH, large)
        stream.read(1000)
        stream.client.sock.shutdown(socket.SHUT_RDWR)
    with Stream(server.address, "/hold/half", "Last-Event-ID: 1") as stream:
        event = stream.event()
        assert (event["id"], len(event["data"])) == ("2", 500_000)


def test_a_document_is_published_whole_or_not_at_all(server):
    with Stream(server.address, "/hold/whole") as stream:
        assert post(PUBLISH, [item("whole", "data: no\n\n"), {"channel": ""}]).status == 400
        publish(PUBLISH, item("whole", "data: yes\n\n"))
        assert stream.data(1) == ["yes"]


def test_data_that_is_not_text_is_sent_as_json(server):
    with Stream(server.address, "/hold/json") as stream:
        told(server, "/publish/json")
        assert json.loads(stream.event()["data"]) == 0
