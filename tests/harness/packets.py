"""uwsgi packets, and the responses to them."""

import struct
from typing import NamedTuple

from harness.addresses import Address


class Answer(NamedTuple):
    """A response that was read to the end of its connection; names of fields are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


def packet(variables: dict[str, str], body: bytes = b"") -> bytes:
    """A packet of a WSGI request, and the body behind it. Text is latin-1."""
    texts = [text.encode("latin-1") for pair in variables.items() for text in pair]
    block = b"".join(struct.pack("<H", len(text)) + text for text in texts)
    return struct.pack("<BHB", 0, len(block), 0) + block + body


def variables(target: str = "/", method: str = "GET", **more: str) -> dict[str, str]:
    """What nginx sends at least."""
    path, _, query = target.partition("?")
    basic = {"REQUEST_METHOD": method, "REQUEST_URI": target, "PATH_INFO": path, "QUERY_STRING": query}
    return basic | {"SERVER_PROTOCOL": "HTTP/1.1", "CONTENT_LENGTH": "", "CONTENT_TYPE": "", "HTTP_HOST": "test"} | more


def ask(address: Address, data: bytes) -> Answer:
    """Sends these bytes over a connection of their own, and reads the response."""
    with address.connect() as sock:
        sock.sendall(data)
        received = bytearray()
        while block := sock.recv(65536):
            received += block
    head, blank, body = bytes(received).partition(b"\r\n\r\n")
    assert blank, received
    line, *lines = head.decode("latin-1").split("\r\n")
    fields = (text.split(": ", 1) for text in lines)
    return Answer(int(line.split()[1]), {name.lower(): value for name, value in fields}, body)
