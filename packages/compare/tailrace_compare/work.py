"""The load of a client on a server, and its counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The same request, repeated on several connections.

    seconds: duration. core: the client's core, as for taskset. close: a new connection for each request. fields:
    additional header fields, as "Name: value". script: wrk's script that generates the requests; a file in this
    folder.
    """

    url: str
    connections: int
    seconds: float
    core: int | str
    close: bool = False
    fields: tuple[str, ...] = ()
    script: str = ""

    def all_fields(self) -> tuple[str, ...]:
        return (*self.fields, "Connection: close") if self.close else self.fields


@dataclass(frozen=True)
class Load:
    """The counts of a client: 2xx and 3xx responses per second, and all others. In `seconds`, it received `answers` of
    any status and used `processor` seconds. `p50` and `p99` are percentiles, and `mean` is the
    mean, in milliseconds."""

    rate: float
    errors: int
    detail: str
    answers: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    p50: float | None = None
    p99: float | None = None
    mean: float | None = None

    def unserved(self, work: Work) -> str:
        """Why the latencies are not valid: many connections got no response, so that the others had the server to
        themselves. Empty if they are valid.

        In a closed loop, the number of served connections is the rate times the mean latency (Little's law). If each
        request opens a connection, no latency includes the time for that.
        """
        if work.close or self.mean is None or not self.seconds:
            return ""
        served = max(1, round(self.answers / self.seconds * self.mean / 1000))
        if 2 * served >= work.connections:
            return ""
        return f"no latencies: about {served} of {work.connections} connections were served, while the others waited"


def counted(
    requests: int,
    seconds: float,
    faults: dict[str, int],
    p50: float | None,
    p99: float | None,
    mean: float | None,
    processor: float = 0.0,
) -> Load:
    """faults: the number of each kind; those of kind "status" are included in `requests`."""
    detail = ", ".join(f"{count} {kind}" for kind, count in faults.items() if count)
    rate = (requests - faults["status"]) / seconds if seconds else 0.0
    return Load(rate, sum(faults.values()), detail, requests, seconds, processor, p50, p99, mean)
