"""The table of all metrics: those that the workers count, from the core, and those of the master and its processes.

`/metrics`, statsd, `/status.json`, the explanations of the live page and the tables of docs/reference/metrics.md follow
from it. A metric that a worker counts is a row in crates/observe/src/metrics.rs, any other one a row here and a
value in `series.py`. Counters include workers that have ended; gauges do not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace._tailrace import METRICS

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


class Metric(NamedTuple):
    """A metric.

    group: its heading in the documentation. source, key: where `series.py` finds its value. kind: COUNTER, GAUGE or
    HISTOGRAM. label: tells its values apart; empty: there is one value. name: in Prometheus, without `_total`. help: a
    sentence. details: what the documentation and the live page add, sentences in Markdown; or empty.
    """

    group: str
    source: str
    kind: str
    key: str
    label: str
    name: str
    help: str
    details: str = ""

    @property
    def family(self) -> str:
        """Its name in Prometheus."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


INFO: Final = Metric(
    *("workers", "", GAUGE, "", "", "tailrace_info"),
    "Version of the server.",
    "1, with the labels `version` and `application`.",
)
_OF_MASTER: Final = (
    Metric("workers", "master", GAUGE, "uptime", "", "tailrace_uptime_seconds", "Time since the master started."),
    Metric("workers", "master", GAUGE, "ready", "", "tailrace_ready", "1 while /ready answers 200, else 0."),
    Metric(
        *("workers", "master", GAUGE, "wanted", "", "tailrace_workers_wanted"),
        "Number of workers that the master keeps running.",
    ),
    Metric(
        *("workers", "master", GAUGE, "workers", "state", "tailrace_workers"),
        "Workers by state.",
        "`starting`, `serving`, `draining` or `hung`.",
    ),
    Metric(
        *("workers", "master", COUNTER, "restarts", "reason", "tailrace_worker_restarts"),
        "Workers that were replaced or failed to load, by reason.",
    ),
)
# Of the process that holds connections.
OF_HOLDER: Final = (
    Metric(
        "held", "holder", GAUGE, "connections", "", "tailrace_held_connections", "Connections held without a thread."
    ),
    Metric(
        *("held", "holder", GAUGE, "channels", "", "tailrace_held_channels"),
        "Channels that have held connections or stored events.",
    ),
    Metric("held", "holder", COUNTER, "published", "", "tailrace_published", "Published events."),
    Metric(
        *("held", "holder", COUNTER, "delivered", "", "tailrace_published_deliveries"),
        "Events sent to held connections; an event counts once per connection.",
    ),
    Metric(
        *("held", "holder", COUNTER, "sent_bytes", "", "tailrace_held_sent_bytes"), "Bytes sent to held connections."
    ),
    Metric(
        *("held", "holder", GAUGE, "kept_bytes", "", "tailrace_held_kept_bytes"),
        "Memory of the events that are stored for slow and reconnecting clients.",
    ),
    Metric(
        *("held", "holder", GAUGE, "waiting_bytes", "", "tailrace_held_waiting_bytes"),
        "Bytes waiting to be sent to held connections.",
    ),
    Metric(
        *("held", "holder", COUNTER, "closed", "reason", "tailrace_held_closed"),
        "Closed held connections, by reason.",
        "See [held connections](status-json.md#held-connections).",
    ),
)
# Of what servers share by `--publish-bus`.
OF_BUS: Final = (
    Metric("bus", "holder", GAUGE, "connected", "", "tailrace_bus_connected", "1 if events can be sent and received."),
    Metric("bus", "holder", GAUGE, "servers", "", "tailrace_bus_servers", "Other servers seen in the last 15 s."),
    Metric(
        *("bus", "holder", COUNTER, "published", "", "tailrace_bus_published"),
        "Publications made on this server.",
    ),
    Metric("bus", "holder", GAUGE, "waiting", "", "tailrace_bus_waiting", "Publications waiting to be sent."),
    Metric(
        *("bus", "holder", COUNTER, "received", "", "tailrace_bus_received"),
        "Publications received from other servers.",
    ),
    Metric(
        *("bus", "holder", COUNTER, "lost", "", "tailrace_bus_lost"),
        "Publications from other servers that were missed and could not be resent.",
    ),
)
RESIDENT: Final = Metric(
    *("memory", "", GAUGE, "", "", "tailrace_workers_resident_memory_bytes"),
    "Total resident memory of the workers; a shared page counts once per worker.",
)
PROPORTIONAL: Final = Metric(
    *("memory", "", GAUGE, "", "", "tailrace_workers_proportional_memory_bytes"),
    "Memory of the workers; a shared page counts once.",
    "Absent if it cannot be read.",
)
EXPIRY: Final = Metric(
    *("workers", "", GAUGE, "", "file", "tailrace_certificate_expiry_timestamp_seconds"),
    "When a certificate of an https:// address expires, in Unix time.",
    "`- time()` gives the seconds that are left.",
)
REFUSED: Final = Metric(
    *("workers", "", COUNTER, "", "", "tailrace_application_metrics_refused"),
    "Metrics of the application that found no room.",
    "The log names the first one. See [Add your application's metrics](#add-your-applications-metrics).",
)
TRACES: Final = Metric(
    *("workers", "", COUNTER, "", "result", "tailrace_traces"),
    "Responses traced for `--otlp-endpoint`, by result.",
    "`exported`, `failed` (the collector did not accept them) or `dropped` (the queue was full, or a worker died).",
)
# Those of a snapshot, in the order of `/metrics`.
OF_SNAPSHOT: Final = (*_OF_MASTER, *(Metric(*row) for row in METRICS))
TABLE: Final = (INFO, *OF_SNAPSHOT, *OF_HOLDER, *OF_BUS, RESIDENT, PROPORTIONAL, EXPIRY, REFUSED, TRACES)
# Those with a key in `counters` and `totals` of `/status.json`.
FIGURES: Final = tuple(metric for metric in TABLE if metric.source == "counters")
# Counters of these.
GROWING: Final = tuple(metric.key for metric in FIGURES if metric.kind == COUNTER)
