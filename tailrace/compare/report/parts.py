"""What a further figure of an experiment means, whatever the experiment is: by the end of its key."""

from __future__ import annotations

from tailrace.compare.results import Metric

PARTS = {
    "_cost": "Microseconds of a core, the time of the application included.",
    "_p50": "Half of them take longer.",
    "_p99": "One of a hundred takes longer.",
    "_app": "How long the response occupies a thread of the application.",
    "_memory": "What the server needs beyond its idle state.",
    "_held": "Threads of the application that slow clients occupy.",
    "_pace": "What the slow clients receive: less than their pace means that the server starves them.",
    "_refusal": "How long a client waits to be told that the server is full.",
}


def part_of(metric: Metric) -> str:
    """The sentence for one figure of a scenario, empty where there is none."""
    return next((text for end, text in PARTS.items() if metric.key.endswith(end)), "")
