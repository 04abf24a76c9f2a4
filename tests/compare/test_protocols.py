"""The requests of both protocols, and the table."""

from __future__ import annotations

import pytest

from bench.protocols import HTTP, PROTOCOL, Way, request, table


def variables(packet: bytes) -> dict[str, str]:
    """What a packet says, by the protocol's description."""
    size = int.from_bytes(packet[1:3], "little")
    assert (packet[0], packet[3], len(packet)) == (0, 0, 4 + size)
    texts, at = [], 4
    while at < len(packet):
        length = int.from_bytes(packet[at : at + 2], "little")
        texts.append(packet[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_a_packet_asks_for_the_same_as_an_http_request() -> None:
    said = variables(request(PROTOCOL, "/times"))
    assert (said["REQUEST_METHOD"], said["REQUEST_URI"], said["PATH_INFO"]) == ("GET", "/times", "/times")
    assert request(HTTP, "/times").startswith(b"GET /times HTTP/1.1\r\n")


def test_the_table_has_medians_and_gaps() -> None:
    way = object.__new__(Way)
    way.protocol, way.place = PROTOCOL, "UNIX"
    way.client, way.application = [3.0, 1.0, 2.0], [0.5, 0.7, 0.6]
    way.peer = type("Peer", (), {"name": "uwsgi"})()  # type: ignore[assignment]
    rows = table([way]).splitlines()
    assert "| uwsgi | uwsgi | - | 2.0, 0.6 |" in rows
    assert "| gunicorn | HTTP | - | - |" in rows


@pytest.mark.parametrize("path", ["/", "/ready"])
def test_a_packet_has_the_size_that_it_states(path: str) -> None:
    assert variables(request(PROTOCOL, path))["REQUEST_URI"] == path
