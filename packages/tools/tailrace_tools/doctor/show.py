"""What `tailrace doctor` prints: text for a terminal of 80 columns, or JSON. docs/doctor.md describes each key."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import Any, Final

import click

from tailrace.findings.finding import Finding, counted, time_of
from tailrace.printable import printable
from tailrace_tools.doctor.measured import FILE, GENERATOR, ITERABLE, WRAPPER, Delivery, Measured

_WIDTH: Final = 79
_LABEL: Final = 14
_PATHS: Final = {
    "none": "none: no block from the application was sent",
    "one-write": "one-write: head and body in one write",
    "direct": "direct: each block at once, by the thread that produced it",
    "coalesced": "coalesced: quick blocks, collected while earlier ones are sent",
    "sendfile": "sendfile: the file, by the kernel",
    "compressed": "compressed: by another thread of the server",
    "held": "held: the holder process sends the response, without a thread",
    "spilled": "spilled: the client was slow, so the rest waited in a file",
}


def as_json(measured: Measured, found: list[Finding], hints: list[Finding]) -> str:
    """A JSON object."""
    request, response, known = measured.request, measured.response, measured.known
    shown: dict[str, Any] = {
        "application": measured.application,
        "request": {"method": request.method, "target": request.target},
        "response": {
            "status": response.status,
            "body_bytes": response.body_bytes,
            "framing_bytes": response.framing_bytes,
            "content_length": response.header("Content-Length") is not None,
            "head_with_body": response.shares_read,
            "cut": response.is_cut,
        },
        "asked": measured.is_asked,
        "shape": measured.shape,
        "returned": {"name": measured.returned.name, "place": measured.returned.place},
        "producer": {"name": measured.producer.name, "place": measured.producer.place},
        "layers": [{"name": layer.name, "place": layer.place} for layer in measured.layers],
        "blocks": None
        if known is None
        else {
            "count": known.count,
            "bytes": known.bytes,
            "smallest": known.smallest,
            "largest": known.largest,
            "longest_gap_ms": round(known.longest_gap, 3) if known.is_timed else None,
        },
        "delivery": _delivery(measured.delivery),
        "floor": _delivery(measured.floor),
        "as_file": _delivery(measured.as_file),
        "findings": [one.as_dict() for one in found],
        "hints": [one.as_dict() for one in hints],
    }
    return json.dumps(shown, indent=2)


def _delivery(delivery: Delivery | None) -> dict[str, Any] | None:
    if delivery is None:
        return None
    return {
        "application_ms": round(delivery.application, 3),
        "called_ms": round(delivery.called, 3),
        "first_block_ms": round(delivery.first_block, 3),
        "last_byte_ms": round(delivery.until_last, 3),
        "blocks": delivery.blocks,
        "bytes": delivery.bytes,
        "writes": delivery.writes,
        "path": delivery.path,
        "compression": asdict(delivery.compression) if delivery.compression else None,
        "ending": delivery.ending,
        "runs": delivery.runs,
    }


def as_text(measured: Measured, found: list[Finding], hints: list[Finding]) -> str:
    """Lines for people, with the colors of a terminal (which `click.echo` removes elsewhere)."""
    request, response = measured.request, measured.response
    title = f"{request.method} {request.target}: {response.status} {response.reason}"
    lines = [click.style(line, bold=True) for line in wrapped(title, "", "")]
    if not measured.is_asked:
        return "\n".join(
            [*lines, *wrapped("The server answered this request itself; the application was not called.", "", "")]
        )
    for label, value in _facts(measured):
        first, *more = wrapped(value, f"  {label:<{_LABEL}}", " " * (_LABEL + 2))
        lines += [click.style(first[: _LABEL + 2], dim=True) + first[_LABEL + 2 :], *more]
    for number, one in enumerate(found, 1):
        lines += ["", *finding(f"{number}. ", one)]
    for one in hints:
        lines += ["", *finding("- ", one)]
    well = "Nothing to fix in the delivery." if hints else "Nothing to fix."
    if response.is_cut and measured.is_held:
        well = "Nothing to fix. The response is held and occupies no thread."
    elif response.is_cut:
        well = "Nothing to fix so far. A response that does not end is not measured any further."
    elif response.status >= 400:
        well = "Nothing to fix in the delivery of this error response."
    verdict = well if not found else f"{counted(len(found), 'finding')}."
    shown = wrapped(verdict, "", "")
    return "\n".join([*lines, "", *(click.style(line, fg="yellow" if found else "green", bold=True) for line in shown)])


def _facts(measured: Measured) -> list[tuple[str, str]]:
    response, known, delivery, floor = measured.response, measured.known, measured.delivery, measured.floor
    facts = [("returned", _returned(measured))]
    if len(measured.layers) > 1:
        facts.append(("through", ", ".join(dict.fromkeys(layer.name for layer in measured.layers))))
    if measured.producer.name and measured.producer != measured.returned:
        facts.append(("made by", f"generator {measured.producer}"))
    if known is not None and known.count:
        sizes = (
            f"of {counted(known.smallest, 'byte')}"
            if known.smallest == known.largest
            else f"of {known.smallest:,} to {known.largest:,} bytes"
        )
        gap = f", up to {time_of(known.longest_gap)} apart" if known.is_timed and known.count > 1 else ""
        facts.append(("blocks", f"{counted(known.count, 'block')} {sizes}{gap}"))
    kind = response.header("Content-Type")
    facts.append(("body", f"{counted(response.body_bytes, 'byte')}{f', {kind}' if kind else ''}"))
    facts.append(("length", _length(measured)))
    if delivery is None:
        return facts
    path = _PATHS.get(delivery.path, delivery.path)
    if compression := delivery.compression:
        path = (
            f"compressed with {compression.coding} by another thread, from {counted(compression.of, 'byte')} to "
            f"{compression.into:,}, in {time_of(compression.ms)}"
        )
    if delivery.path == "one-write" and delivery.writes > 1:
        path = f"one-write: head and body together, which the socket accepted in {delivery.writes:,} writes"
    facts.append(("path", path))
    if response.body_bytes:
        facts.append(("first read", "head and body together" if response.shares_read else "the head alone"))
    listed = "" if floor is None else f"; as one list {floor.writes:,}"
    facts.append(("system calls", f"{delivery.writes:,} to write it{listed}"))
    parts = f" ({time_of(delivery.called)} until it returned)" if floor is not None else ""
    listed = "" if floor is None else f"; as one list {time_of(floor.application)}"
    facts.append(("application", f"{time_of(delivery.application)}{parts}{listed}"))
    if not response.is_cut:
        listed = "" if floor is None else f"; as one list {time_of(floor.until_last)}"
        facts.append(("last byte", f"after {time_of(delivery.until_last)} for the client{listed}"))
    if delivery.ending != "complete":
        facts.append(("ending", delivery.ending))
    if response.is_cut:
        said = "the response stayed open" if measured.is_held else "the response did not end"
        when = "for --timeout" if measured.is_held else "within --timeout"
        facts.append(("cut", f"{said} {when}, so the client disconnected"))
    elif delivery.runs > 1:
        facts.append(("measured", f"{delivery.runs} times; the fastest is shown"))
    return facts


def _returned(measured: Measured) -> str:
    kinds = {GENERATOR: "generator ", FILE: "file ", WRAPPER: "", ITERABLE: ""}
    if measured.failures and not measured.returned.name:
        return "nothing: it raised an exception"
    if measured.shape == WRAPPER:
        return "wsgi.file_wrapper"
    return f"{kinds.get(measured.shape, '')}{measured.returned}"


def _length(measured: Measured) -> str:
    response = measured.response
    if (length := response.header("Content-Length")) is not None:
        return f"known: {length}, {'from the application' if measured.declared is not None else 'added by the server'}"
    if (response.header("Transfer-Encoding") or "").lower() == "chunked":
        return "unknown: sent in chunks"
    return "unknown: ended by closing the connection" if measured.has_body else "none"


def finding(first: str, one: Finding) -> list[str]:
    """A finding; `first` stands before it, and as many spaces before its further lines."""
    indent = " " * len(first)
    head, *more = wrapped(one.what, first, indent)
    return [
        click.style(head, fg="yellow"),
        *(click.style(line, fg="yellow") for line in more),
        *wrapped(one.cost, f"{indent}Cost: ", indent),
        *wrapped(one.change, f"{indent}Fix: ", indent),
        *(f"{indent}    {printable(line)}" for line in one.code.splitlines()),
        click.style(f"{indent}[{printable(one.key)}]", dim=True),
    ]


def wrapped(text: str, first: str, following: str) -> list[str]:
    """The text in lines of the terminal, with what stands before them."""
    words = "".join(each if each.isprintable() else " " for each in text)
    return textwrap.wrap(words, _WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False) or [
        first.rstrip()
    ]
