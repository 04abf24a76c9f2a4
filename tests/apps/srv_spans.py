"""Answers with its traceparent and tracestate. /blocks/MS gives a block and then sleeps, /fail raises, /wait?FILE makes
FILE.waits and answers when FILE exists, /process tells of threads and modules. /own makes a span by OpenTelemetry, for $COLLECTOR, as an application
does that follows its documentation."""

import os
import sys
import threading
import time
from pathlib import Path


def own_span(environ):
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.propagate import extract
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{os.environ['COLLECTOR']}/v1/traces")))
    context = extract({"traceparent": environ["HTTP_TRACEPARENT"]})
    with provider.get_tracer("shop").start_as_current_span("own", context, kind=trace.SpanKind.INTERNAL):
        pass
    provider.shutdown()


def blocks(milliseconds):
    yield b"first\n"
    time.sleep(milliseconds / 1e3)
    yield b"second\n"


def app(environ, start_response):
    _, kind, *rest = environ["PATH_INFO"].split("/")
    if kind == "fail":
        raise RuntimeError("it fails")
    if kind == "own":
        own_span(environ)
    if kind == "process":
        start_response("200 OK", [("Content-Type", "text/plain")])
        threads = " ".join(thread.name for thread in threading.enumerate())
        return [f"{threads}\n{' '.join(sys.modules)}".encode()]
    if kind == "wait":
        Path(environ["QUERY_STRING"] + ".waits").touch()
        while not Path(environ["QUERY_STRING"]).exists():
            time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "text/plain")])
    if kind == "blocks":
        return blocks(int(rest[0]))
    return [f"{environ.get('HTTP_TRACEPARENT', '-')} {environ.get('HTTP_TRACESTATE', '-')}".encode()]
