"""`tailrace doctor --live`: the endpoints of a running server that cost the most, from its `/status.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import click

from tailrace.findings.figures import GROWN, SURE, grown_text
from tailrace.findings.finding import Finding, counted, time_of
from tailrace.printable import printable
from tailrace_tools.doctor import show

# Endpoints that are shown.
MAX_SHOWN: Final = 10
# Without a finding, an endpoint is shown with its figures if it has this share of their cost, and this cost (seconds).
_SHARE: Final = 0.01
_MIN_COST: Final = 0.001
# Minimum growth of the endpoints that are shown, in bytes.
_MAX_GROWN: Final = 3
_GROWTH: Final = 1 << 20
_KEYS: Final = ("application", "version", "endpoints_since", "endpoints_omitted", "other_responses")


def as_json(found: Mapping[str, Any]) -> str:
    """A JSON object. found: the document."""
    endpoints = _listed(found)
    shown: dict[str, Any] = {key: found.get(key) for key in _KEYS}
    shown["endpoints_omitted"] += len(found["endpoints"]) - len(endpoints)
    return json.dumps({**shown, "endpoints": endpoints}, indent=2)


def as_text(found: Mapping[str, Any], address: str) -> str:
    """Text for a terminal of 80 columns. address: where the server was asked."""
    endpoints = _listed(found)
    if not endpoints:
        application = printable(found["application"])
        return f"{application} at {address}: its workers have not sent any responses yet."
    responses = sum(each["responses"] for each in found["endpoints"]) + found["other_responses"]
    which = f"the {len(endpoints)} endpoints that cost" if len(endpoints) > 1 else "the endpoint that costs"
    lines = show.wrapped(
        f"{found['application']} at {address}: {which} the most, of "
        f"{counted(responses, 'response')} since its workers began.",
        "",
        "",
    )
    least = _SHARE * sum(each["cost_seconds"] for each in endpoints)
    shown = [each for each in endpoints if each["findings"] or each["cost_seconds"] >= max(least, _MIN_COST)]
    for number, each in enumerate(shown, 1):
        lines += ["", *_endpoint(number, each)]
    if cheap := [f"{each['endpoint']} ({each['responses']:,})" for each in endpoints if each not in shown]:
        also = "Also nothing" if shown else "Nothing"
        lines += ["", *show.wrapped(f"{also} to fix, at little cost: {', '.join(cheap)}.", "", "")]
    lines += _memory(found)
    counts = [
        counted(number, what)
        for what in ("finding", "hint")
        if (number := sum(len(each.get(f"{what}s", ())) for each in shown))
    ]
    lines += ["", f"{' and '.join(counts)}."] if counts else []
    return "\n".join(lines).replace("--status ADDRESS", f"--status {address}")


def has_findings(found: Mapping[str, Any]) -> bool:
    """Whether there is something to fix."""
    return any(each["findings"] for each in _listed(found))


def _listed(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The endpoints with the highest cost, and those with a finding about memory growth."""
    first: list[dict[str, Any]] = found["endpoints"][:MAX_SHOWN]
    others: list[dict[str, Any]] = found["endpoints"][MAX_SHOWN:]
    return first + [each for each in others if any(one["key"] == "memory-growth" for one in each["findings"])]


def _memory(found: Mapping[str, Any]) -> list[str]:
    """The endpoints with the largest memory growth, including uncertain ones."""
    grown = [each for each in found["endpoints"] if each.get("grown_bytes", 0) >= _GROWTH and _error(each) is not None]
    grown.sort(key=lambda each: -each["grown_bytes"])
    if not grown:
        return []
    sure = [each for each in grown if each["grown_bytes"] >= SURE * (_error(each) or 0.0)]
    since = f" since {clock}" if (clock := _since(found)) else ""
    said = "; ".join(f"{each['endpoint']} {_grown(each)}" for each in (sure or grown)[:_MAX_GROWN])
    text = f"Memory growth{since}: {said}."
    if not sure:
        # The total growth is certain before it is certain which endpoint causes it.
        total = sum(each.get("grown_bytes", 0) for each in found["endpoints"])
        if total < GROWN:
            return []
        text = (
            f"Memory: the workers grew by about {total / 2**20:,.1f} MiB{since}. It is not certain yet which endpoint "
            f"causes this. Candidates: {said}. Check again after more requests."
        )
    return ["", *show.wrapped(text, "", "")]


def _error(each: Mapping[str, Any]) -> float | None:
    """The standard error of the growth; None if the server is an earlier version."""
    error: float | None = each.get("grown_error_bytes")
    return error


def _grown(each: Mapping[str, Any]) -> str:
    error = _error(each) or 0.0
    one = f"{each['grown_bytes'] / max(1, each['grown_responses']) / 1024:+,.1f} KiB a response"
    return f"+{grown_text(each['grown_bytes'], error)}, {one}"


def _since(found: Mapping[str, Any]) -> str:
    """When the server began to count, as `12:30:05 UTC`; empty if the server is an earlier version."""
    return f"{since[11:19]} UTC" if (since := found.get("endpoints_since")) else ""


def _endpoint(number: int, each: Mapping[str, Any]) -> list[str]:
    title = show.wrapped(each["endpoint"], f"{number}. ", "   ")
    lines = [click.style(line, bold=True) for line in title]
    for label, text in _facts(each):
        lines += show.wrapped(text, f"   {label:13}", " " * 16)
    for one in each["findings"]:
        lines += show.finding("   - ", Finding.of_dict(one))
    if not each["findings"] and not each.get("hints"):
        lines += ["   Nothing to fix in its delivery."]
    # Servers of earlier versions do not send hints.
    for one in each.get("hints", ()):
        lines += show.finding("   - ", Finding.of_dict(one))
    return lines


def _facts(each: Mapping[str, Any]) -> list[tuple[str, str]]:
    responses = each["responses"]
    ways = ", ".join(f"{number:,} {path}" for path, number in each["paths"].items())
    bad = [f"{each['failed']:,} failed"] * bool(each["failed"])
    bad += [f"{counted(each['client_disconnected'], 'client')} disconnected"] * bool(each["client_disconnected"])
    facts = [
        ("responses", "; ".join([f"{responses:,}: {ways}", *bad])),
        *_total(each),
        ("application", _time(each["application_seconds"], responses)),
        *_used(each),
        ("delivery", _time(each["delivery_seconds"], responses) + " of that after the first block"),
        ("events", _time(each["event_stream_seconds"], responses) + " of that for event streams"),
        ("blocked", _time(each["blocked_seconds"], responses) + " on clients"),
        (
            "sent",
            f"{counted(each['blocks'], 'block')}, {counted(each['body_bytes'], 'byte')}, "
            f"{counted(each['writes'], 'system call')} ({each['writes'] / max(1, responses):,.1f} a response)",
        ),
        (
            "cost",
            _time(each["cost_seconds"], responses)
            + " until the first block, plus delivery beyond that of one list (estimated)",
        ),
    ]
    seconds = {"delivery": "delivery", "events": "event_stream", "blocked": "blocked", "cost": "cost"}
    small = {label for label, key in seconds.items() if each[f"{key}_seconds"] < 0.00001}
    return [(label, text) for label, text in facts if label not in small]


def _used(each: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the application has used; nothing if an earlier version serves."""
    if "cpu_seconds" not in each:
        return []
    responses = each["responses"]
    facts = [("cpu", _time(each["cpu_seconds"], responses) + " of that; the rest is waiting")]
    for label, key, text in (
        ("interpreter", "interpreter", " until the server had the interpreter"),
        ("gc", "gc", " of garbage collection"),
    ):
        if each[f"{key}_seconds"] >= 0.00001:
            facts.append((label, _time(each[f"{key}_seconds"], responses) + text))
    if (error := _error(each)) is not None and each["grown_bytes"] >= max(_GROWTH, SURE * error):
        facts.append(("memory", f"{_grown(each)}, measured after {counted(each['grown_responses'], 'response')}"))
    return facts


def _total(each: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Mean and 95th percentile; nothing if there are only event streams, or if an earlier version serves."""
    mean, p95 = each.get("mean_seconds"), each.get("p95_seconds")
    if mean is None or p95 is None:
        return []
    others = ", without event streams" * bool(each["event_streams"])
    return [("total", f"mean {_seconds(mean)}, p95 {_seconds(p95)} to the last byte{others}")]


def _seconds(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else time_of(1e3 * seconds)


def _time(seconds: float, responses: int) -> str:
    """A time of all responses, and of one."""
    whole = _seconds(seconds)
    return f"{whole} ({time_of(1e3 * seconds / responses)} each)" if responses > 1 else whole
