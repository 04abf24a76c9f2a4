"""WebSockets without threads whose messages are compressed (RFC 7692): wsproto is the client."""

from __future__ import annotations

import contextlib
import os
import signal
import zlib

import pytest
from harness.addresses import free_address
from harness.held import figures, item, publish
from harness.operated import operating
from harness.server import APPS
from harness.web_sockets import WebSocketClient
from wsproto.events import CloseConnection, Ping, Pong

# Longer than a message may be, if it is repeated.
LONG = 1 << 20
TEXT = "0123456789 abcdefghij " * 100


def compressed(data):
    """A message without its tail, as section 7.2.1 says."""
    compressor = zlib.compressobj(9, wbits=-15)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


def frame(content, first=0xC2):
    """A frame with a whole compressed binary message."""
    return bytes([first, 0xFF]) + len(content).to_bytes(8, "big") + bytes(4) + content


@pytest.fixture(scope="module")
def operated(tmp_path_factory):
    publishes = free_address()
    command = ("srv_web_socket_echo:application", "--websocket-events", "/ws/", "--publish-bind", publishes.bind)
    with operating(tmp_path_factory.mktemp("server"), *command, environment={"PYTHONPATH": str(APPS)}) as server:
        yield server, publishes


@pytest.mark.parametrize("bits", [9, 15])
def test_messages_are_compressed_both_ways_if_they_fit_into_the_window(operated, bits):
    with WebSocketClient(operated[0].address, server_max_window_bits=bits) as browser:
        assert browser.extension.enabled() and browser.extension.server_max_window_bits == bits
        assert browser.extension.client_no_context_takeover and browser.extension.server_no_context_takeover
        for message, shrinks in (
            (TEXT, bits == 15),
            (TEXT[:500], True),
            ("short", False),
            ("", False),
            (os.urandom(50_000), False),
            (bytes(LONG), bits == 15),
        ):
            browser.received = 0
            browser.say(message)
            assert browser.message() == message
            assert (browser.received < len(message) / 2) == shrinks
        browser.say(TEXT[:100], TEXT[100:101], "", TEXT[101:])
        assert browser.message() == TEXT


def test_a_publication_reaches_clients_with_any_compression_or_none(operated):
    server, publishes = operated
    with contextlib.ExitStack() as stack:
        parameters = ({}, {"server_max_window_bits": 9}, {"offers": False}, {"server_no_context_takeover": True})
        browsers = [stack.enter_context(WebSocketClient(server.address, **each)) for each in parameters]
        for browser in browsers:
            browser.say("subscribed")
            assert browser.message() == "subscribed"
            browser.received = 0
        for content in (TEXT, "short", "€" * 5_000):
            publish(publishes, item("news", formats={"ws-message": {"content": content}}))
            assert [browser.message() for browser in browsers] == [content] * len(browsers)
        assert browsers[0].received == browsers[3].received < len(TEXT) < browsers[1].received
        assert browsers[1].received == browsers[2].received


def test_a_compressed_message_survives_a_new_master(operated):
    server, _ = operated
    with WebSocketClient(server.address) as browser:
        content = compressed(TEXT.encode())
        fragments = frame(content[:20], 0x41) + frame(b"ping", 0x89)
        browser.client.send(fragments)
        assert isinstance(browser.event(), Pong)
        before = server.master
        server.tell(signal.SIGUSR2)
        server.until(lambda: before not in server.processes(), "the end of the old master")
        browser.client.send(frame(content[20:], 0x80))
        assert browser.message() == TEXT
        browser.say(TEXT)
        assert browser.message() == TEXT


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(compressed(bytes(LONG + 1))), 1009),
        (frame(compressed(bytes(20 * LONG))), 1009),
        (frame(b"not compressed"), 1007),
        (frame(compressed(b"\xff" * 1000), 0xC1), 1007),
        (frame(b"", 0xC9), 1002),
        (frame(b"", 0xC0), 1002),
        (frame(compressed(b"x"), 0xE2), 1002),
    ],
)
def test_what_breaks_the_rules_is_closed_with_a_code(operated, sent, code):
    with WebSocketClient(operated[0].address) as browser:
        browser.client.send(sent)
        closed = browser.event()
        assert isinstance(closed, CloseConnection) and closed.code == code


def test_a_client_that_sends_many_megabytes_in_few_bytes_gets_its_turn_as_others_do(operated):
    server, _ = operated
    message = bytes(LONG)
    bombs = frame(compressed(message)) * 100
    assert len(bombs) < 120_000
    with WebSocketClient(server.address) as greedy, WebSocketClient(server.address) as other:
        greedy.client.send(bombs)
        for number in range(20):
            other.say(str(number))
            assert other.message() == str(number)
        for _ in range(100):
            assert greedy.message() == message
        greedy.client.send(greedy.connection.send(Ping(b"after")))
        assert greedy.event() == Pong(b"after")
    server.until(lambda: figures(server.master)["connections"] == 0, "their ends")
