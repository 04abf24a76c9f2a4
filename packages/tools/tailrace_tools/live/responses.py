"""The endpoints of `/status.json`, and its slow and broken responses, as text for `tailrace top`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

# The suffix of keys that are times of a response.
_SECONDS: Final = "_seconds"
_TITLES: Final = ("cost, s", "responses", "mean, ms", "p95, ms", "app, ms", "calls", "path")
_ENDPOINT: Final = "endpoint, with what to fix"
# Characters that an endpoint has beside its figures; with fewer, it has a line of its own above them.
_MIN_BESIDE: Final = 40


def endpoint_text(found: Mapping[str, Any], width: int) -> str:
    """The endpoints of a document, for a terminal of this width."""
    if not found["endpoints"]:
        return "the application has not sent any response yet"
    rows = [_TITLES, *map(_figures, found["endpoints"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *figures = (
        " ".join(cell.ljust(wide) if column == len(row) - 1 else cell.rjust(wide) for column, (cell, wide) in cells)
        for row in rows
        for cells in [list(enumerate(zip(row, widths, strict=True)))]
    )
    beside = width - len(head) - 1
    has_room = beside >= _MIN_BESIDE
    lines = [f"{head} {_ENDPOINT}"] if has_room else [_ENDPOINT, head.rstrip()]
    for each, row in zip(found["endpoints"], figures, strict=True):
        if has_room:
            first, *more = _pieces(each["endpoint"], beside)
            lines += [f"{row} {first}", *(" " * (len(row) + 1) + piece for piece in more)]
        else:
            lines += [*_wrapped(each["endpoint"], width), row.rstrip()]
        lines += _findings(each["findings"], "change", width)
        # Servers of earlier versions do not send hints.
        lines += _findings(each.get("hints", ()), "cost", width)
    return "\n".join(lines)


def _figures(each: Mapping[str, Any]) -> tuple[str, ...]:
    number = max(1, each["responses"])
    # Servers of earlier versions do not send them.
    mean, p95 = (_milliseconds(each.get(key)) for key in ("mean_seconds", "p95_seconds"))
    application = _milliseconds(each["application_seconds"] / number)
    cost, calls = f"{each['cost_seconds']:,.3f}", f"{each['writes'] / number:,.1f}"
    return cost, f"{each['responses']:,}", mean, p95, application, calls, f"{each['path']}"


def recent_text(found: Mapping[str, Any], width: int) -> str:
    """The slow and broken responses of a document, for a terminal of this width."""
    lines: list[str] = []
    for kind in ("slow", "broken"):
        lines += [f"the last {kind} responses", ""] if found[kind] else [f"no response was {kind}", ""]
        for each in found[kind]:
            times = ((key.removesuffix(_SECONDS), time) for key, time in each.items() if key.endswith(_SECONDS))
            phases = ", ".join(f"{phase} {_time(time)}" for phase, time in times if time)
            request_id = f" (id {each['request_id']})" if each.get("request_id") else ""
            ending = f"{each['time'][11:19]} UTC, worker {each['worker']}: {each['status']} {each['ending']}; {phases}"
            lines += [
                *_wrapped(f"{each['method']} {each['target']}{request_id}", width, 2),
                *_wrapped(ending, width, 4),
                *_findings(each["findings"], "change", width),
                "",
            ]
    return "\n".join(lines)


def _findings(findings: Sequence[Mapping[str, Any]], key: str, width: int) -> Iterator[str]:
    for one in findings:
        yield from _wrapped(f"{one['key']}: {one['what']} {one[key]}", width, 4)


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of this width; those after the first are indented by four more characters."""
    first, *more = _pieces(text, width - indent - 4)
    return [" " * indent + first, *(" " * (indent + 4) + piece for piece in more)]


def _pieces(text: str, width: int) -> list[str]:
    """Parts of this length, split after a word, or else before a part of a path or query, or else anywhere."""
    width = max(width, 8)
    pieces = []
    while len(text) > width:
        at = text.rfind(" ", 0, width + 1)
        # A method does not stand alone.
        if at < width // 2:
            at = max(text.rfind(mark, 1, width) for mark in "/?&")
        at = at if at > 0 else width
        pieces.append(text[:at])
        text = text[at:].lstrip(" ")
    return [*pieces, text]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:,.2f} ms"
