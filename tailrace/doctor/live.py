"""`tailrace doctor --live`: the endpoints of a running server that cost the most, from its `/status.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import click

from tailrace.advice.finding import SLOW, Finding, before_first_block, counted, time_of
from tailrace.doctor import show

# Endpoints that are shown.
MOST: Final = 10
# Without a finding, an endpoint is shown with its figures if it has this share of their cost, and this cost (seconds).
_SHARE: Final = 0.01
_LEAST: Final = 0.001
# A growth is shown from this many bytes a response on.
_GROWTH: Final = 4096
_KEYS: Final = ("application", "version", "endpoints_omitted", "other_responses")


def as_json(found: Mapping[str, Any]) -> str:
    """A JSON object. found: the document."""
    endpoints = found["endpoints"]
    shown: dict[str, Any] = {key: found[key] for key in _KEYS}
    shown["endpoints_omitted"] += len(endpoints[MOST:])
    return json.dumps({**shown, "endpoints": endpoints[:MOST]}, indent=2)


def as_text(found: Mapping[str, Any], address: str) -> str:
    """Text for a terminal of 80 columns. address: where the server was asked."""
    endpoints = found["endpoints"][:MOST]
    if not endpoints:
        return f"{found['application']} at {address}: its workers have not sent any responses yet."
    responses = sum(each["responses"] for each in found["endpoints"]) + found["other_responses"]
    which = f"the {len(endpoints)} endpoints that cost" if len(endpoints) > 1 else "the endpoint that costs"
    lines = show.wrapped(
        f"{found['application']} at {address}: {which} the most, of "
        f"{counted(responses, 'response')} since its workers began.",
        "",
        "",
    )
    least = _SHARE * sum(each["cost_seconds"] for each in endpoints)
    shown = [each for each in endpoints if each["findings"] or each["cost_seconds"] >= max(least, _LEAST)]
    for number, each in enumerate(shown, 1):
        lines += ["", *_endpoint(number, each, found["application"])]
    if cheap := [f"{each['endpoint']} ({each['responses']:,})" for each in endpoints if each not in shown]:
        also = "Also nothing" if shown else "Nothing"
        lines += ["", *show.wrapped(f"{also} to fix, at little cost: {', '.join(cheap)}.", "", "")]
    number = sum(len(each["findings"]) for each in endpoints)
    lines += ["", f"{counted(number, 'finding')}."] if number else []
    return "\n".join(lines)


def has_findings(found: Mapping[str, Any]) -> bool:
    """Whether there is something to fix."""
    return any(each["findings"] for each in found["endpoints"][:MOST])


def _endpoint(number: int, each: Mapping[str, Any], application: str) -> list[str]:
    title = show.wrapped(each["endpoint"], f"{number}. ", "   ")
    lines = [click.style(line, bold=True) for line in title]
    for label, text in _facts(each):
        lines += show.wrapped(text, f"   {label:13}", " " * 16)
    for one in each["findings"]:
        lines += show.finding("   - ", Finding.of_dict(one))
    if not each["findings"]:
        lines += ["   Nothing to fix in its delivery."]
    for one in _hints(each, application):
        lines += show.finding("   - ", one)
    return lines


def _hints(each: Mapping[str, Any], application: str) -> list[Finding]:
    """What is to be known of an endpoint that is slow before there is anything to deliver."""
    others = each["responses"] - each["event_streams"]
    seconds = each["held_seconds"] - each["event_stream_seconds"] - each["delivery_seconds"]
    ms = 1e3 * seconds / max(1, others)
    return [before_first_block(ms, application, " on average" * (others > 1))] if others and ms >= SLOW else []


def _facts(each: Mapping[str, Any]) -> list[tuple[str, str]]:
    responses = each["responses"]
    ways = ", ".join(f"{number:,} {path}" for path, number in each["paths"].items())
    bad = [f"{each['failed']:,} failed"] * bool(each["failed"])
    bad += [f"{counted(each['client_gone'], 'client')} gone"] * bool(each["client_gone"])
    facts = [
        ("responses", "; ".join([f"{responses:,}: {ways}", *bad])),
        *_total(each),
        ("held", _time(each["held_seconds"], responses) + " by the application"),
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
    if (measured := each.get("grown_responses")) and abs(each["grown_bytes"]) >= _GROWTH * measured:
        grown = f"{each['grown_bytes'] / measured / 1024:+,.1f} KiB a response, {each['grown_bytes'] / 2**20:+,.1f} MiB"
        facts.append(("memory", f"{grown} in total, measured after {counted(measured, 'response')}"))
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
