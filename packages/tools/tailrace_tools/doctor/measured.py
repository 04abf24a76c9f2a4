"""What was measured of one response. The findings are functions of this value and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tailrace_tools.doctor.asking import Request, Response
from tailrace_tools.doctor.blocks import Blocks
from tailrace_tools.doctor.layers import Failure

LIST: Final = "list"
TUPLE: Final = "tuple"
BYTES: Final = "bytes"
TEXT: Final = "str"
GENERATOR: Final = "generator"
FILE: Final = "file"
WRAPPER: Final = "file wrapper"
ITERABLE: Final = "iterable"
NOTHING: Final = "nothing"


@dataclass(frozen=True)
class Compression:
    """What the server made of a body, by `--compress`. coding: as in Content-Encoding. of: bytes before; into: bytes
    after; ms: processor time that it took."""

    coding: str
    of: int
    into: int
    ms: float


@dataclass(frozen=True)
class Delivery:
    """One delivery, by the server's record. Times are milliseconds.

    application: how long it had the request: from its call to the end of its blocks. called: the part of it until
    it returned; first_block: until its first block. until_last: until the last byte, for the client. writes: system
    calls that wrote. path, ending: the names of the record. runs: of how many deliveries this is the one with the
    shortest `application`.
    """

    application: float
    called: float
    first_block: float
    until_last: float
    waited: float
    blocks: int
    bytes: int
    writes: int
    path: str
    ending: str
    compression: Compression | None = None
    runs: int = 1

    @property
    def handing(self) -> float:
        """From the first block, or the application's return, to the end of its blocks (ms)."""
        return max(0.0, self.application - max(self.called, self.first_block))


@dataclass(frozen=True)
class Named:
    """A name, and where its code stands; either may be empty."""

    name: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.place})" if self.place and self.name else self.name or self.place


@dataclass(frozen=True)
class Compressed:
    """What gzip makes of the body. of: how many bytes of it were compressed; into: how many they became; ms: how long
    that took."""

    of: int
    into: int
    ms: float


@dataclass(frozen=True)
class SpoiltWrapper:
    """A file wrapper that was made and not returned. by: what iterated it, or else what was returned instead."""

    made_by: Named
    by: Named


@dataclass(frozen=True)
class Measured:
    """A response, how the application made it, and how it was delivered.

    shape: one of the constants above. returned: the class of the object, or the function of the generator. layers: the
    applications and middlewares, the outermost first. producer: the generator that makes the blocks, or else what was
    returned. known: the blocks that could be counted; None: the server took them without iterating. given: bytes that
    the application gave; None: not known. declared: its Content-Length; None: it gave none. floor: the same bytes as
    one list; None: not measured. as_file: the same by a file wrapper, where the body was a file or a wrapper was made.
    file: one that the request opened and whose bytes are the body's. unclosed: the layer, and what it returned.
    is_asked: False when the server answered without the application. has_responded: `start_response` was called.
    """

    request: Request
    response: Response
    shape: str
    returned: Named
    delivery: Delivery | None
    producer: Named = Named("")
    floor: Delivery | None = None
    as_file: Delivery | None = None
    layers: tuple[Named, ...] = ()
    known: Blocks | None = None
    given: int | None = None
    declared: int | None = None
    written: tuple[int, ...] = ()
    file: str | None = None
    spoilt: SpoiltWrapper | None = None
    unclosed: tuple[tuple[Named, str], ...] = ()
    failures: tuple[Failure, ...] = ()
    compressed: Compressed | None = None
    is_asked: bool = True
    has_responded: bool = True
    application: str = field(default="app:application")

    @property
    def has_body(self) -> bool:
        """Whether such a response may have a body."""
        return self.request.method != "HEAD" and self.response.status not in (204, 304) and self.response.status >= 200

    @property
    def is_held(self) -> bool:
        """Whether it was passed to the process that holds connections without threads."""
        return self.delivery is not None and self.delivery.path == "held"

    @property
    def waits_for_events(self) -> bool:
        """Whether it is an event stream, or held: its time is that of its events."""
        return self.is_event_stream or self.is_held

    @property
    def is_event_stream(self) -> bool:
        """Whether it is a stream of server-sent events, by its Content-Type."""
        return (self.response.header("Content-Type") or "").partition(";")[0].strip().lower() == "text/event-stream"

    @property
    def more_time(self) -> float:
        """How much longer than the floor the application was held after its return (ms)."""
        if self.delivery is None or self.floor is None:
            return 0.0
        return max(0.0, self.delivery.handing - self.floor.handing)

    @property
    def more_calls(self) -> int:
        """How many more system calls than the floor."""
        if self.delivery is None or self.floor is None:
            return 0
        return max(0, self.delivery.writes - self.floor.writes)
