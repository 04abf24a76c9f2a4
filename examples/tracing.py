"""A span for each response, by OpenTelemetry: `pip install opentelemetry-sdk`, then `tailrace examples/tracing.py`.

Each span ends when the last byte was given to the kernel, and has the way of sending and the phases of the request as
attributes. Here they are written to standard output; a collector gets them by another exporter. Without the package the
application runs, too, and says what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tailrace

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PHASES = ("queued_ms", "app_ms", "first_block_ms", "waited_ms", "held_ms")


def trace_deliveries() -> None:
    """Makes a span of each record."""
    try:
        from opentelemetry import trace  # type: ignore[import-not-found, unused-ignore]
        from opentelemetry.sdk.trace import TracerProvider  # type: ignore[import-not-found, unused-ignore]
        from opentelemetry.sdk.trace.export import (  # type: ignore[import-not-found, unused-ignore]
            ConsoleSpanExporter,
            SimpleSpanProcessor,
        )
    except ImportError:
        print("there are no spans without OpenTelemetry: pip install opentelemetry-sdk", file=sys.stderr, flush=True)
        return
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    tracer = provider.get_tracer("tailrace")

    def record_span(record: dict[str, Any]) -> None:
        lasted = (record["queued_ms"] or 0.0) + (record["drained_ms"] or 0.0)
        span = tracer.start_span(
            record["method"],
            kind=trace.SpanKind.SERVER,
            start_time=int((record["ended"] - lasted / 1e3) * 1e9),
            attributes={
                "http.request.method": record["method"],
                "url.path": record["target"].partition("?")[0],
                "http.response.status_code": record["status"],
                "http.response.body.size": record["bytes"],
                "tailrace.delivery": record["delivery"],
                "tailrace.writes": record["writes"],
                **{f"tailrace.{phase}": record[phase] for phase in PHASES if record[phase] is not None},
            },
        )
        if record["status"] >= 500 or record["ending"] not in ("complete", "client-gone"):
            span.set_status(trace.StatusCode.ERROR, record["ending"])
        span.end(end_time=int(record["ended"] * 1e9))

    tailrace.on_delivery(record_span)


trace_deliveries()


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answers everything with a sentence."""
    body = b"Each response is a span.\n"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
