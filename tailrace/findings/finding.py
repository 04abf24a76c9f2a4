"""A finding, the thresholds of findings, and the texts that say what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

# Blocks of which there are at least so many, and which are smaller than so many bytes on average, are small ones.
MANY: Final = 64
SMALL: Final = 1024
# A block that comes within this time of the previous one is quick (ms).
QUICK: Final = 1.0
# A pause between two blocks in which a thread is held for nothing (ms).
PAUSE: Final = 50.0
# The application took long until its first block (ms).
SLOW: Final = 100.0
# Minimum time to the first block for a hint about the slowest endpoint (ms).
SLOWEST: Final = 5.0
# Minimum length for which the server sends a file faster than an application that reads it (bytes).
WORTH_A_WRAPPER: Final = 64 << 10
# A body up to this length is better sent as a whole than in chunks (bytes).
WHOLE: Final = 1 << 20


@dataclass(frozen=True)
class Finding:
    """Something to fix.

    what: what was seen. cost: why it costs, with what was measured. ms, calls: the cost in milliseconds of the thread
    and in system calls, 0 where it has none. change: what to do; code: the lines of it.
    """

    key: str
    what: str
    cost: str
    change: str
    code: str
    ms: float = 0.0
    calls: float = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON. docs/doctor.md describes each key."""
        return {
            "key": self.key,
            "what": self.what,
            "cost": self.cost,
            "cost_ms": round(self.ms, 3),
            "cost_calls": round(self.calls, 1),
            "change": self.change,
            "code": self.code,
        }

    @classmethod
    def of_dict(cls, told: Mapping[str, Any]) -> Finding:
        """The finding of such a dict."""
        return cls(
            told["key"], told["what"], told["cost"], told["change"], told["code"], told["cost_ms"], told["cost_calls"]
        )


class Remedy(NamedTuple):
    """What to do, and lines of code for it: for each framework, since records do not say which one the application
    uses."""

    change: str
    code: str


# Lines of code by framework; "" is an application without one of these.
RAISED_CODE: Final = {
    "": "except ReportError:\n"
    '    start_response("500 Internal Server Error", fields, sys.exc_info())\n'
    "    return [page]",
    "flask": "except ReportError:\n    return page, 500",
    "django": "except ReportError:\n    return HttpResponse(page, status=500)",
}
# Flask and Django join blocks of str and of bytes.
JOINED_CODE: Final = {
    "": 'return [b"".join(blocks)]',
    "flask": "response = Response(blocks)\nresponse.data = response.get_data()\nreturn response",
    "django": "return HttpResponse(blocks)  # instead of StreamingHttpResponse",
}
WRAPPED_CODE: Final = {
    "": 'return environ["wsgi.file_wrapper"](open(path, "rb"))',
    "flask": "return send_file(path)",
    "django": 'return FileResponse(open(path, "rb"))',
}
_FRAMEWORKS: Final = {"": "plain WSGI", "flask": "Flask", "django": "Django"}


def for_each_framework(codes: Mapping[str, str]) -> str:
    """The lines of code for each framework, with its name in a comment above."""
    return "\n".join(f"# {name}:\n{codes[framework]}" for framework, name in _FRAMEWORKS.items())


RAISED: Final = Remedy(
    "Correct the cause, or catch the exception before the first block, while the response can still be replaced.",
    for_each_framework(RAISED_CODE),
)
JOINED: Final = Remedy(
    "Return them as one block or, if that is too large for memory, in blocks of 64 KiB.",
    for_each_framework(JOINED_CODE),
)
PAUSED: Final = Remedy(
    "Do the slow work before the first block. Serve a stream of events with greenlets, so that waiting occupies no "
    "thread.",
    "rows = query.all()  # then the first block\n# or:\ntailrace {application} --gevent",
)
LISTED: Final = Remedy(
    "Return a list; the server adds Content-Length and sends head and body in one write.", JOINED.code
)
WRAPPED: Final = Remedy(
    "Pass the file to the server, which sends it without reading it.", for_each_framework(WRAPPED_CODE)
)


def before_first_block(
    ms: float, application: str, on_average: str = "", spent: tuple[float, float] | None = None
) -> Finding:
    """What is to be known where most of the time passes before there is anything to deliver. application: as it was
    named. spent: the time of the application in all, and the part in which it computed (ms), if they were measured."""
    wanted = f"{ms / 2e3:.0f}s" if ms >= 2e3 else f"{ms / 2:.0f}ms"
    return Finding(
        "before-first-block",
        f"The application took {time_of(ms)} until its first block{on_average}.",
        f"{_spent(*spent) if spent else _UNKNOWN} Meanwhile, its thread was occupied.",
        "Find out where it spends the time while it runs.",
        f"tailrace threads --status ADDRESS\n# or in the log, with the stack:\n"
        f"tailrace {application} --slow-request-log {wanted}",
        ms,
    )


_UNKNOWN: Final = "It computed, or waited for a database, a lock or another service."


def _spent(ms: float, cpu: float) -> str:
    if 20 * cpu < ms:
        return f"It waited for {time_of(ms - cpu)} of {time_of(ms)}: for a database, a lock or another service."
    if 2 * cpu < ms:
        return (
            f"It waited for {time_of(ms - cpu)} of {time_of(ms)}, and computed for {time_of(cpu)}. It may wait for a "
            "database, a lock or another service, or for the GIL after each of many small calls, such as a query "
            "for each row."
        )
    return (
        f"It computed for {time_of(min(cpu, ms))} of {time_of(ms)}: in its own code, or in many small calls, such as a "
        "query for each row (SQLite computes in the process)."
    )


def counted(number: int, noun: str) -> str:
    """The number with the noun, of which the plural has an s."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def time_of(ms: float) -> str:
    """A time with as many digits as say something."""
    if ms < 0.005:
        return "less than 0.01 ms"
    return f"{ms:,.{2 if ms < 10 else 1 if ms < 100 else 0}f} ms"
