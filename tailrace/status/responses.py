"""What the workers' responses have cost: by endpoint, the worst first, and the last slow and broken ones, each with
what to fix. Keys of `/status.json`; docs/reference/status-json.md describes each.

Thread: any; no function changes what it is given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

from tailrace._tailrace import SIZES
from tailrace.findings import figures, response
from tailrace.findings.figures import Figures
from tailrace.status import counts
from tailrace.status.clock import shown

# Maximum number of listed endpoints, and of additional ones with the largest growth.
MAX_ENDPOINTS: Final = 20
MAX_GROWN: Final = 3
_GROWN: Final = 1 << 20
# What the scoreboard has of an endpoint beside its counts.
_OTHERS: Final = frozenset(("endpoint", "paths", "times", "grown_variance"))
# Slow and broken responses that are listed of each kind.
MAX_RESPONSES: Final = 16
_REQUEST: Final = ("worker", "pid", "method", "target", "endpoint", "request_id", "client")


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
    listed, others_found = found[:MAX_ENDPOINTS], found[MAX_ENDPOINTS:]
    grown = [each for each in others_found if each[2].grown >= max(_GROWN, figures.SURE * each[2].grown_error)]
    listed += sorted(grown, key=lambda each: -each[2].grown)[:MAX_GROWN]
    slowest = max((each[2] for each in listed), key=lambda of: of.cost, default=None)
    return {
        "endpoints": [_endpoint(*each, application, is_slowest=each[2] is slowest) for each in listed],
        "endpoints_omitted": len(found) - len(listed),
        "other_responses": others["responses"],
    }


def _figures(row: Mapping[str, Any]) -> Figures:
    return Figures(
        responses=row["responses"],
        application=row["application_ns"] / 1e6,
        delivery=row["delivery_ns"] / 1e6,
        blocked=row["blocked_ns"] / 1e6,
        blocks=row["blocks"],
        writes=row["writes"],
        bytes=row["body_bytes"],
        paths=row["paths"],
        chunked=row["chunked"],
        failed=row["failed"],
        gone=row["client_disconnected"],
        event_streams=row["event_streams"],
        streaming=row["event_stream_ns"] / 1e6,
        cpu=row["cpu_ns"] / 1e6,
        grown=row["grown_bytes"],
        grown_error=1024 * math.sqrt(row["grown_variance"]),
        grown_responses=row["grown_responses"],
    )


def _endpoint(name: str, row: Mapping[str, Any], of: Figures, application: str, *, is_slowest: bool) -> dict[str, Any]:
    return {
        "endpoint": name,
        "application_seconds": round(of.application / 1e3, 6),
        "delivery_seconds": round(of.delivery / 1e3, 6),
        "event_stream_seconds": round(of.streaming / 1e3, 6),
        "cost_seconds": round(of.cost / 1e3, 6),
        **{f"{part}_seconds": round(row[f"{part}_ns"] / 1e9, 6) for part in counts.PARTS},
        **_times(row),
        **{key: number for key, number in row.items() if key not in _OTHERS and not key.endswith("_ns")},
        "grown_error_bytes": round(of.grown_error),
        "path": of.path,
        "paths": {path: number for path, number in row["paths"].items() if number},
        "findings": [one.as_dict() for one in figures.findings(of, application)],
        "hints": [one.as_dict() for one in figures.hints(of, application, is_slowest=is_slowest)],
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
            _response(each, now, application) for each in sorted(found, key=lambda each: each["ago"])[:MAX_RESPONSES]
        ]
        for kind, found in kinds.items()
    }


def _response(record: Mapping[str, Any], now: float, application: str) -> dict[str, Any]:
    return {
        **{key: record[key] for key in _REQUEST},
        "time": shown(now - record["ago"]),
        **{key: record[key] for key in ("status", "ending", "path", *SIZES)},
        **{f"{phase}_seconds": round(record[phase], 6) for phase in counts.PHASES},
        "findings": [one.as_dict() for one in response.findings(record, application)],
    }
