"""What the workers' responses have cost: by endpoint, the worst first, and the last slow and broken ones, each with
what to fix. Keys of `/status.json`; docs/reference/status-json.md describes each.

Thread: any; no function changes what it is given.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from tailrace.advice import figures, response
from tailrace.advice.figures import Figures
from tailrace.logs import log
from tailrace.status import counts
from tailrace.status.clock import shown

# Endpoints that are listed.
MOST_ENDPOINTS: Final = 20
# Slow and broken responses that are listed of each kind.
MOST_RESPONSES: Final = 16
_COUNTS: Final = (
    *("blocks", "writes", "body_bytes", "chunked", "failed", "client_gone", "slow", "event_streams"),
    *("grown_bytes", "grown_responses"),
)
_PHASES: Final = ("queued", "application", "iterating", "blocked", "cpu", "interpreter", "gc", "total")
_USED: Final = ("cpu", "interpreter", "gc")


def endpoints(of_workers: Iterable[list[dict[str, Any]]], application: str) -> dict[str, Any]:
    """The keys `endpoints`, `endpoints_omitted` and `other_responses`. of_workers: of each what the scoreboard has."""
    added: dict[str, dict[str, Any]] = {}
    for rows in of_workers:
        for row in rows:
            into = added.setdefault(row["endpoint"], {"paths": {}, "times": {}})
            for key, value in row.items():
                if key in ("paths", "times"):
                    for name, number in value.items():
                        into[key][name] = into[key].get(name, 0) + number
                elif key != "endpoint":
                    into[key] = into.get(key, 0) + value
    others = added.pop("", {"responses": 0})
    found = [(name, row, _figures(row)) for name, row in added.items()]
    found.sort(key=lambda each: (-each[2].cost, -each[1]["responses"], each[0]))
    return {
        "endpoints": [_endpoint(*each, application) for each in found[:MOST_ENDPOINTS]],
        "endpoints_omitted": max(0, len(found) - MOST_ENDPOINTS),
        "other_responses": others["responses"],
    }


def _figures(row: Mapping[str, Any]) -> Figures:
    return Figures(
        responses=row["responses"],
        held=row["held_ns"] / 1e6,
        delivery=row["delivery_ns"] / 1e6,
        blocked=row["blocked_ns"] / 1e6,
        blocks=row["blocks"],
        writes=row["writes"],
        bytes=row["body_bytes"],
        paths=row["paths"],
        chunked=row["chunked"],
        failed=row["failed"],
        gone=row["client_gone"],
        event_streams=row["event_streams"],
        streaming=row["event_stream_ns"] / 1e6,
    )


def _endpoint(name: str, row: Mapping[str, Any], of: Figures, application: str) -> dict[str, Any]:
    return {
        "endpoint": name,
        "responses": row["responses"],
        "held_seconds": round(of.held / 1e3, 6),
        "delivery_seconds": round(of.delivery / 1e3, 6),
        "blocked_seconds": round(of.blocked / 1e3, 6),
        "event_stream_seconds": round(of.streaming / 1e3, 6),
        "cost_seconds": round(of.cost / 1e3, 6),
        **{f"{used}_seconds": round(row[f"{used}_ns"] / 1e9, 6) for used in _USED},
        **_times(row),
        **{key: row[key] for key in _COUNTS},
        "path": of.path,
        "paths": {path: number for path, number in row["paths"].items() if number},
        "findings": [one.as_dict() for one in figures.findings(of, application)],
    }


def _times(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Mean and percentile of the times, event streams excluded; None: there is no other response. The percentile is the
    upper bound of its bucket."""
    buckets = sorted((float(bound), number) for bound, number in row["times"].items())
    number = sum(count for _, count in buckets)
    if not number:
        return {"mean_seconds": None, "p95_seconds": None}
    reached = accumulate(count for _, count in buckets)
    bound = next(bound for (bound, _), until in zip(buckets, reached, strict=True) if until >= 0.95 * number)
    # Nothing more is known about a longer time.
    p95 = min(bound, counts.LONGEST)
    return {"mean_seconds": round(row["total_ns"] / 1e9 / number, 6), "p95_seconds": round(p95, 6)}


def recent(of_workers: Iterable[Mapping[str, list[dict[str, Any]]]], application: str) -> dict[str, Any]:
    """The keys `slow` and `broken`. of_workers: of each what the scoreboard has, with `worker` and `pid`."""
    kinds: dict[str, list[dict[str, Any]]] = {"slow": [], "broken": []}
    for told in of_workers:
        for kind, records in told.items():
            kinds[kind] += records
    now = time.time()
    return {
        kind: [
            _response(each, now, application) for each in sorted(found, key=lambda each: each["ago"])[:MOST_RESPONSES]
        ]
        for kind, found in kinds.items()
    }


def _response(record: Mapping[str, Any], now: float, application: str) -> dict[str, Any]:
    return {
        "worker": record["worker"],
        "pid": record["pid"],
        "method": record["method"],
        "target": record["target"],
        "endpoint": record["endpoint"],
        "request_id": record["request_id"],
        "client": record["client"],
        "time": shown(now - record["ago"]),
        "status": record["status"],
        "ending": record["ending"],
        "path": record["path"],
        "body_bytes": record["body_bytes"],
        "blocks": record["blocks"],
        "writes": record["writes"],
        **{f"{phase}_seconds": round(record[phase], 6) for phase in _PHASES},
        "findings": [one.as_dict() for one in response.findings(record, application)],
    }


def endpoint_text(found: Mapping[str, Any]) -> str:
    """The endpoints of a document, for a terminal."""
    lines = [
        f"{'cost, s':>9} {'responses':>10} {'mean, ms':>9} {'p95, ms':>9} {'held, ms':>9} {'calls':>6} {'path':9} "
        "endpoint, with what to fix"
    ]
    for each in found["endpoints"]:
        number = max(1, each["responses"])
        # A server of an earlier version does not say them.
        mean, p95 = (_milliseconds(each.get(key)) for key in ("mean_seconds", "p95_seconds"))
        lines.append(
            f"{each['cost_seconds']:>9,.3f} {each['responses']:>10,} {mean:>9} {p95:>9} "
            f"{_milliseconds(each['held_seconds'] / number):>9} {each['writes'] / number:>6,.1f} {each['path']:9} "
            f"{each['endpoint']}"
        )
        lines += [f"    {one['key']}: {one['what']} {one['change']}" for one in each["findings"]]
    return "\n".join(lines if found["endpoints"] else ["the application has not sent any response yet"])


def recent_text(found: Mapping[str, Any]) -> str:
    """The slow and broken responses of a document, for a terminal."""
    lines: list[str] = []
    for kind in ("slow", "broken"):
        lines += [f"the last {kind} responses", ""] if found[kind] else [f"no response was {kind}", ""]
        for each in found[kind]:
            phases = ", ".join(f"{phase} {_time(each[f'{phase}_seconds'])}" for phase in _PHASES)
            lines += [
                f"  {log.request_name(each)}",
                f"    {each['time'][11:19]} UTC, worker {each['worker']}: {each['status']} {each['ending']}; {phases}",
                *(f"    {one['key']}: {one['what']} {one['change']}" for one in each["findings"]),
                "",
            ]
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:,.2f} ms"
