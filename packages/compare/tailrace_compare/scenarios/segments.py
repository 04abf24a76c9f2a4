"""TCP segments of one small response: the client's kernel counts those that carry data."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from tailrace_compare import checks
from tailrace_compare.answer import receive
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario

TIMES = 5
# struct tcp_info of linux/tcp.h: 8 single bytes, 24 words, 4 double words, then 4 words before tcpi_data_segs_in.
DATA_SEGMENTS_IN = 8 + 24 * 4 + 4 * 8 + 4 * 4


def data_segments_in(connection: socket.socket) -> int:
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGMENTS_IN + 8)
    return int(struct.unpack_from("I", told, DATA_SEGMENTS_IN)[0])


@dataclass(frozen=True)
class Segments(Scenario):
    """The maximum over several connections."""

    def load(self, server: Server, ask: Ask) -> Sample:
        seen = []
        for _ in range(TIMES):
            with server.connect() as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                receive(connection)
                seen.append(data_segments_in(connection))
        (expected,) = self.answers(server)
        said = checks.remarks(checks.check(server.connect, expected))
        return Sample({self.metrics[0].key: float(max(seen))}, note=", ".join(said))

    def reproduce(self) -> str:
        return "tailrace compare --only segments  # getsockopt(TCP_INFO), tcpi_data_segs_in"
