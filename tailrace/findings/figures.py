"""What to fix, as far as figures of the server's records show it: those of all responses of an endpoint, or of one
response.

A record does not say what the application returned. So a finding here says what was seen of the delivery, and names the
cause that it has as a rule; `tailrace doctor APP --url PATH` looks at the application itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.findings.finding import (
    JOINED,
    LISTED,
    MANY,
    PAUSE,
    PAUSED,
    QUICK,
    RAISED,
    SLOW,
    SLOWEST,
    SMALL,
    WHOLE,
    WORTH_A_WRAPPER,
    WRAPPED,
    Finding,
    before_first_block,
    counted,
    time_of,
)

# What the same bytes as one list take at most, estimated: milliseconds of a response and of each MiB of it, and bytes
# that one system call sends.
FLOOR_MS: Final = 0.05
FLOOR_MS_EACH_MIB: Final = 0.05
FLOOR_BYTES_EACH_CALL: Final = 256 << 10
# What a system call costs beyond the time in which the application's thread is held (ms).
CALL_MS: Final = 0.005
# Ways of sending in which the blocks come one after the other.
STREAMED: Final = ("direct", "coalesced", "spilled")
# What a step of Python takes at most, if it neither waits nor computes much (ms).
STEP: Final = 0.05
# From this size on, blocks may be those of a file (bytes).
_LARGE: Final = 4096
# A block of a file takes less, also on a busy machine (ms).
_SLOW_READ: Final = 2.0
# Minimum number, and minimum fraction of all responses, for a finding about clients that leave.
_GONE: Final = 5
_GONE_PART: Final = 0.1
# Minimum growth for a finding, in bytes and in multiples of its standard error.
GROWN: Final = 4 << 20
SURE: Final = 3.0


@dataclass(frozen=True)
class Figures:
    """Those of all responses of an endpoint, added; or of one response. Times are milliseconds.

    application: it had the request. delivery: the part of it after the first block, excluding event
    streams. blocked: its thread waited for the client. paths: responses by how their bodies were sent. chunked: those
    without a length. event_streams: those that were streams of server-sent events; streaming: how long the application
    had them. cpu: the part of application in which it computed. grown: the estimated bytes by which grown_responses
    of them made the workers grow. grown_error: its standard error.
    """

    responses: int
    application: float
    delivery: float
    blocked: float
    blocks: int
    writes: int
    bytes: int
    paths: Mapping[str, int]
    chunked: int = 0
    failed: int = 0
    gone: int = 0
    event_streams: int = 0
    streaming: float = 0.0
    cpu: float = 0.0
    grown: int = 0
    grown_error: float = 0.0
    grown_responses: int = 0

    def each(self, total: float) -> float:
        """Of one response, on average."""
        return total / max(1, self.responses)

    @property
    def block(self) -> float:
        """Bytes of a block, on average."""
        return self.bytes / max(1, self.blocks)

    @property
    def path(self) -> str:
        """How most bodies were sent."""
        return max(self.paths, key=lambda path: self.paths[path]) if self.paths else "none"

    @property
    def is_streamed(self) -> bool:
        """Whether bodies were sent block after block, although they are not event streams."""
        return self.path in STREAMED and not self.is_event_stream

    @property
    def is_event_stream(self) -> bool:
        """Whether most responses are event streams."""
        return 2 * self.event_streams > self.responses

    @property
    def _may_cost_more(self) -> bool:
        """Whether responses were sent block after block. If the kernel did not accept all of another response at once,
        the application could not have avoided that cost."""
        return not self.is_event_stream and any(self.paths.get(path) for path in STREAMED)

    @property
    def floor_ms(self) -> float:
        """How long a response of so many bytes holds the thread as one list, on average."""
        return FLOOR_MS + FLOOR_MS_EACH_MIB * self.each(self.bytes) / (1 << 20)

    @property
    def floor_calls(self) -> int:
        """The system calls of that."""
        return 1 + int(self.each(self.bytes)) // FLOOR_BYTES_EACH_CALL

    @property
    def more_ms(self) -> float:
        """How much longer than the floor all responses have held threads."""
        if not self._may_cost_more:
            return 0.0
        return max(0.0, self.delivery - self.responses * self.floor_ms)

    @property
    def more_calls(self) -> float:
        """How many more system calls than the floor have sent them."""
        if not self._may_cost_more:
            return 0.0
        return max(0.0, float(self.writes - self.responses * self.floor_calls))

    @property
    def cost(self) -> float:
        """The key by which endpoints are ordered: the milliseconds until the first block, plus what the delivery cost
        beyond the floor. Event streams cost nothing: they wait for events."""
        before_delivery = max(0.0, self.application - self.streaming - self.delivery)
        return before_delivery + self.more_ms + CALL_MS * self.more_calls


def findings(figures: Figures, application: str) -> list[Finding]:
    """All that fits, the gravest first. application: as it was named at the start."""
    return [
        say(key, figures, application)
        for key, fits, say, unless in _RULES
        if fits(figures) and not any(rule(figures) for rule in unless)
    ]


def hints(figures: Figures, application: str, *, is_slowest: bool) -> list[Finding]:
    """Hints about an endpoint that is slow before it delivers anything.

    is_slowest: it costs the most of all endpoints.
    """
    others = figures.responses - figures.event_streams
    ms = (figures.application - figures.streaming - figures.delivery) / max(1, others)
    if not others or ms < (SLOWEST if is_slowest else SLOW):
        return []
    # The time spent on event streams is not counted separately.
    spent = None if figures.event_streams else (figures.each(figures.application), figures.each(figures.cpu))
    return [before_first_block(ms, application, " on average" * (others > 1), spent)]


def _fails(figures: Figures) -> bool:
    return figures.failed > 0


def _has_small_blocks(figures: Figures) -> bool:
    """Many small blocks that come quickly, on average."""
    return (
        figures.is_streamed
        and figures.each(figures.blocks) >= MANY
        and figures.block < SMALL
        and (figures.delivery - figures.blocked) / max(1, figures.blocks) < QUICK
    )


def _clients_leave(figures: Figures) -> bool:
    """While the application still had their requests."""
    return (
        figures.gone >= min(_GONE, figures.responses)
        and figures.gone >= _GONE_PART * figures.responses
        and not figures.is_event_stream
        and figures.each(figures.application) >= PAUSE
    )


def _grows(figures: Figures) -> bool:
    return figures.grown >= max(GROWN, SURE * figures.grown_error)


def _waits_for_clients(figures: Figures) -> bool:
    return figures.each(figures.blocked) >= PAUSE


def _pauses(figures: Figures) -> bool:
    """A thread was held for long, and not by the number of blocks."""
    occupied = figures.delivery - figures.blocked
    return figures.is_streamed and figures.each(occupied) >= PAUSE and occupied / max(1, figures.blocks) >= STEP


def _may_be_file(figures: Figures) -> bool:
    return figures.is_streamed and figures.each(figures.bytes) >= WORTH_A_WRAPPER and figures.block >= _LARGE


def _is_file(figures: Figures) -> bool:
    """Large blocks that come as quickly as those of a file."""
    occupied = figures.delivery - figures.blocked
    return _may_be_file(figures) and occupied / max(1, figures.blocks) < _SLOW_READ


def _lacks_length(figures: Figures) -> bool:
    return (
        figures.is_streamed
        and 2 * figures.chunked > figures.responses
        and 0 < figures.each(figures.bytes) <= WHOLE
        and figures.each(figures.delivery) < PAUSE
    )


def _failed(key: str, figures: Figures, _application: str) -> Finding:
    of = f"{figures.failed:,} of {counted(figures.responses, 'response')}" if figures.responses > 1 else "The response"
    return Finding(
        key,
        f"{of} failed: with a status of 500 or more, broken off, past the deadline, or cut by the end of the server.",
        "Their clients did not get a complete, successful response. The log contains the uncaught exceptions.",
        *RAISED,
    )


def _small_blocks(key: str, figures: Figures, _application: str) -> Finding:
    where = " The server coalesced them." if figures.path == "coalesced" else ""
    return Finding(
        key,
        f"{_about(figures.each(figures.blocks), 'block')} of {figures.block:,.0f} bytes on average.",
        f"Each block costs a step in Python.{where} {_more(figures)}",
        *JOINED,
        *_costs(figures),
    )


def _waiting(key: str, figures: Figures, application: str) -> Finding:
    return Finding(
        key,
        f"A thread waited for its client for {time_of(figures.each(figures.blocked))}{_on_average(figures)}.",
        "A thread waits if the unread part of the response exceeds 4 MiB and --response-spill has no room for it, or "
        "if the client is still sending the body (--stream-body). Meanwhile, it runs no other request.",
        "Let the server queue more of a response, or serve with greenlets, so that waiting occupies no thread.",
        f"tailrace {application} --response-spill 20GiB\n# or:\ntailrace {application} --gevent",
        figures.each(figures.blocked),
    )


def _paused(key: str, figures: Figures, application: str) -> Finding:
    occupied = figures.each(figures.delivery - figures.blocked)
    return Finding(
        key,
        f"After its first block, a response occupied a thread for {time_of(occupied)}{_on_average(figures)}, for "
        f"{_about(figures.each(figures.blocks), 'block')}.",
        f"The application paused between blocks, or spent the time computing them. {_more(figures)}",
        PAUSED.change,
        PAUSED.code.format(application=application),
        occupied,
        _costs(figures)[1],
    )


def _file(key: str, figures: Figures, _application: str) -> Finding:
    return Finding(
        key,
        f"{figures.each(figures.bytes):,.0f} bytes{_on_average(figures)} pass through Python, in blocks of "
        f"{figures.block:,.0f} bytes.",
        _more(figures),
        f"If it is a file: {WRAPPED.change[0].lower()}{WRAPPED.change[1:]}"
        + f" Otherwise: {LISTED.change[0].lower()}{LISTED.change[1:]}" * _lacks_length(figures),
        WRAPPED.code,
        *_costs(figures),
    )


def _unknown_length(key: str, figures: Figures, _application: str) -> Finding:
    return Finding(
        key,
        f"The length of {figures.each(figures.bytes):,.0f} bytes{_on_average(figures)} was unknown when the head was "
        "sent.",
        f"They were sent in chunks. {_more(figures)}",
        *LISTED,
        *_costs(figures),
    )


def _gone(key: str, figures: Figures, application: str) -> Finding:
    of = f"{figures.gone:,} of {counted(figures.responses, 'client')}" if figures.responses > 1 else "The client"
    return Finding(
        key,
        f"{of} disconnected before the response was sent.",
        f"The application continued without a client. A request occupied its thread for "
        f"{time_of(figures.each(figures.application))}{_on_average(figures)}.",
        "Cancel requests whose clients disconnect; `safe` cancels only GET, HEAD, OPTIONS and TRACE.",
        f"tailrace {application} --cancel-on-disconnect safe",
        figures.each(figures.application),
    )


def _growth(key: str, figures: Figures, _application: str) -> Finding:
    return Finding(
        key,
        f"Its responses made the workers grow by an estimated {grown_text(figures.grown, figures.grown_error)}, "
        f"{figures.grown / max(1, figures.grown_responses) / 1024:,.1f} KiB each.",
        "A leak grows with every response until the worker is replaced or killed. A cache stops growing when full.",
        "Check again in a few minutes. If the estimate has grown, find the line that keeps the memory.",
        "tailrace doctor --live --memory 10 --status ADDRESS",
    )


def grown_text(grown: int, error: float) -> str:
    """The growth, with ± two standard errors."""
    return f"{grown / 2**20:,.1f} MiB (± {2 * error / 2**20:,.1f})"


def _costs(figures: Figures) -> tuple[float, float]:
    return figures.each(figures.more_ms), figures.each(figures.more_calls)


def _more(figures: Figures) -> str:
    """What the delivery costs beyond the floor."""
    return (
        f"After the first block, the thread was occupied for {time_of(figures.each(figures.delivery))}, and "
        f"{_about(figures.each(figures.writes), 'system call')} sent the response{_on_average(figures)}. The same "
        f"bytes as one list, estimated: {time_of(figures.floor_ms)}, {counted(figures.floor_calls, 'system call')}."
    )


def _on_average(figures: Figures) -> str:
    return " on average" if figures.responses > 1 else ""


def _about(number: float, noun: str) -> str:
    """A mean with its noun; a fraction is shown where it says something."""
    whole = round(number)
    return counted(whole, noun) if number >= 10 or abs(number - whole) < 0.05 else f"{number:.1f} {noun}s"


# Key, when it fits, what it says, and rules that say the same better.
_Rule = Callable[[Figures], bool]
_RULES: Final[tuple[tuple[str, _Rule, Callable[[str, Figures, str], Finding], tuple[_Rule, ...]], ...]] = (
    ("exception", _fails, _failed, ()),
    ("memory-growth", _grows, _growth, ()),
    ("client-disconnected", _clients_leave, _gone, ()),
    ("waiting-for-client", _waits_for_clients, _waiting, (_clients_leave,)),
    ("starving", _pauses, _paused, (_clients_leave, _is_file)),
    ("small-blocks", _has_small_blocks, _small_blocks, ()),
    ("file-through-python", _may_be_file, _file, ()),
    ("no-length", _lacks_length, _unknown_length, (_has_small_blocks, _may_be_file)),
)
KEYS: Final = tuple(key for key, *_ in _RULES)
