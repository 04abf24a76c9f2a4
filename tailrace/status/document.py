"""`/status.json`: a snapshot as a dictionary that can be JSON. docs/reference/status-json.md describes each key."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tailrace.status import counts, responses
from tailrace.status.clock import shown
from tailrace.status.memory import Memory
from tailrace.status.snapshot import MAX_REQUESTS, Snapshot, WorkerSnapshot


def document(
    taken: Snapshot, memory: Mapping[int, Memory], version: str, held: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The document. memory: by process. held: as `held.Reader` reads it."""
    state = taken.state
    requests = sorted(
        (request(worker, each) for worker in taken.workers for each in worker.requests),
        key=lambda each: -each["seconds"],
    )
    return {
        "version": version,
        "application": state.application,
        "time": shown(time.time()),
        "uptime_seconds": round(taken.now - state.began, 3),
        "master": state.master,
        "ready": not taken.not_ready,
        "reason": taken.not_ready,
        "draining": state.stopping,
        "listeners": state.listeners,
        "certificates": [
            {"file": file, "expires": shown(expires), "seconds_left": round(expires - time.time())}
            for file, expires in state.certificates
        ],
        "workers_wanted": state.wanted,
        "threads_each": state.threads_each,
        "workers": [
            {
                "number": worker.number,
                "pid": worker.pid,
                "place": worker.place,
                "generation": worker.generation,
                "state": worker.state,
                "since": shown(worker.clock),
                "seconds": round(worker.seconds, 3),
                "rss_bytes": memory[worker.pid].rss,
                "pss_bytes": memory[worker.pid].pss,
                "counters": worker.counters,
                **worker.states,
            }
            for worker in taken.workers
        ],
        "totals": taken.totals,
        **taken.states,
        **_responses(taken.deliveries),
        "held": held,
        "restarts": state.restarts,
        "requests": requests[:MAX_REQUESTS],
        "requests_omitted": max(0, len(requests) - MAX_REQUESTS),
        "endpoints_since": shown(state.counted),
        **responses.endpoints(taken.endpoints, state.application),
        **responses.recent(taken.recent, state.application),
    }


def _responses(delivered: counts.Counts) -> dict[str, Any]:
    """The keys `responses`, `paths` and `latency`."""
    return {
        "responses": {
            "classes": delivered["classes"],
            "endings": delivered["endings"],
            **delivered["sizes"],
            "writes": _histogram(counts.writes(delivered), "sum"),
        },
        "paths": delivered["paths"],
        "latency": {name: _histogram(counts.phase(delivered, name), "sum_seconds") for name in counts.PHASES},
    }


def _histogram(found: counts.Histogram, total: str) -> dict[str, Any]:
    return {"count": found.count, total: found.sum, "buckets": found.buckets}


def request(at: WorkerSnapshot, found: Mapping[str, Any]) -> dict[str, Any]:
    """A request in flight for a document."""
    return {
        "worker": at.number,
        "pid": at.pid,
        **{key: found[key] for key in ("thread", "id", "request_id", "method", "target", "client", "phase")},
        "seconds": round(found["seconds"], 3),
    }
