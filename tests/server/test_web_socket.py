"""If the application tries to take the socket of a WebSocket request, the log says once why this fails, and what to
use instead."""

import pytest
from harness.server import Server

ASKS = ("Upgrade: WebSocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
SAID = "the client asked for a WebSocket, and the application answered 500. WebSockets are not supported here. Use long"


@pytest.mark.parametrize("path", ["/echo", "/uncaught"])
@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--debug",), ("--preload",)], ids=" ".join)
def test_a_socket_that_the_application_cannot_take_is_named_once(arguments, path):
    with Server("takes_socket:application", *arguments) as server:
        # Neither of these tries to take a socket.
        assert server.get("/missing", *ASKS).status == 404
        assert server.get("/broken").status == 500
        for _ in range(2):
            assert server.get(f"{path}?room=1", *ASKS).status == 500
        assert server.logged(f"WARNING: GET {path}?room=1: {SAID}")
        # What follows in the log: the line would be before it.
        assert server.get("/broken").status == 500
    assert server.log.count(SAID) == 1
