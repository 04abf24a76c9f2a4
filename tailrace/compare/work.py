"""What a client does to a server, and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The same request again and again, on each of some connections.

    seconds: how long. core: the client's, as taskset takes it. close: each request on a connection of its own. fields:
    further ones of each request, as "Name: value". upload: each is a POST of `served.files.FORM_BYTES`.
    """

    url: str
    connections: int
    seconds: float
    core: int | str
    close: bool = False
    fields: tuple[str, ...] = ()
    upload: bool = False

    def all_fields(self) -> tuple[str, ...]:
        return (*self.fields, "Connection: close") if self.close else self.fields


@dataclass(frozen=True)
class Load:
    """What a client counted: answers that were 2xx or 3xx each second, and everything that was not. In `seconds` it had
    `answers` of any status, and used `processor` seconds. Half of them took `p50` milliseconds or less, 99 % `p99`, and
    one took `mean` milliseconds on average."""

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
        """What is wrong with the latencies: nothing, or that many of the connections got no answer, so that the others
        had the server to themselves.

        In a closed loop, the connections that are served are the answers of a second times the seconds of one (Little's
        law). Where each request opens a connection, the time for that is in no latency.
        """
        if work.close or self.mean is None or not self.seconds:
            return ""
        served = max(1, round(self.answers / self.seconds * self.mean / 1000))
        if 2 * served >= work.connections:
            return ""
        return f"no latencies: about {served} of {work.connections} connections were served, the others waited"


def counted(
    requests: int,
    seconds: float,
    faults: dict[str, int],
    p50: float | None,
    p99: float | None,
    mean: float | None,
    processor: float = 0.0,
) -> Load:
    """faults: how many of each kind; those of the kind "status" are among `requests`."""
    detail = ", ".join(f"{count} {kind}" for kind, count in faults.items() if count)
    rate = (requests - faults["status"]) / seconds if seconds else 0.0
    return Load(rate, sum(faults.values()), detail, requests, seconds, processor, p50, p99, mean)
