"""The meaning of a further figure of any experiment, by the suffix of its key."""

from __future__ import annotations

from tailrace_compare.results import Metric

PARTS = {
    "_cost": "Processor time per request in microseconds, including the application.",
    "_p50": "The median: half of the requests take longer.",
    "_p99": "One request in a hundred takes longer.",
    "_app": "How long the response occupies an application thread.",
    "_memory": "Memory that the server uses in addition to its idle state.",
    "_held": "Application threads that slow clients occupy.",
    "_pace": "Throughput of the slow clients. If it is below their pace, the server starves them.",
    "_refusal": "How long a client waits for the response that says that the server is full.",
}


def part_of(metric: Metric) -> str:
    """The sentence for one figure of a scenario; empty if there is none."""
    return next((text for end, text in PARTS.items() if metric.key.endswith(end)), "")
