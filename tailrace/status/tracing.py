"""`--otlp-endpoint`: the spans of traced responses, from their records, to a collector of OpenTelemetry.

A response has a span for the request and, below it, one each for the queue, the application and the delivery. Spans
that the application makes itself are below its span here. The delivery begins with the first block, so it overlaps the
application where blocks are sent one by one.

Names and attributes are those of the semantic conventions for HTTP servers, version 1.23 and later
(https://opentelemetry.io/docs/specs/semconv/http/http-spans/), and `tailrace.*`.

Thread: that of the exporter, but for `start` and `stop`.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tailrace._tailrace import TraceBatch, Traces, __version__
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.printable import printable
from tailrace.status import counts

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

# Interval at which the queue is emptied (seconds), and maximum number of responses per request to the collector.
SECONDS: Final = 0.25
BATCH: Final = 256
# Maximum time for exporting what is left when the process ends, and if the collector fails (seconds). A process that
# yields to others needs time on a busy machine.
LAST: Final = 10.0
_LAST_OF_FAILING: Final = 3.0
# So that the workers get the processor first.
_NICE: Final = 10
# The methods that the conventions know; others may be anything.
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
# What the ids of two spans differ by from that of the request.
_QUEUE: Final = 0x5175657565000000
_DELIVERY: Final = 0x44656C6976657279
_FINE: Final = ("complete", "client-disconnected", "cancelled")
# Characters of a message.
_MAX_TEXT: Final = 300
# Bytes of a collector's answer that are read.
_ANSWER: Final = 4096
# How long to wait for the answer's end (seconds), and before the exporter is made again.
_PATIENCE: Final = 5.0
_LATER: Final = 5.0


def check() -> None:
    """Raises ConfigError unless the exporter is installed."""
    try:
        is_there = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ImportError:
        is_there = False
    if not is_there:
        raise ConfigError(
            "--otlp-endpoint needs the package opentelemetry-exporter-otlp-proto-http, which is not installed; `pip "
            "install 'tailrace[otlp]'`"
        )


class Exporter:
    """Exports the responses of a queue, on a thread of its own.

    endpoint: the URL of the collector. application: the name of the service, unless the environment has one. scheme: of
    requests whose scheme no proxy states.
    """

    def __init__(self, traces: Traces, endpoint: str, application: str, scheme: str) -> None:
        self._traces, self._endpoint = traces, endpoint
        self._application, self._scheme = application, scheme
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-otlp", daemon=True)
        self._complaint = _Complaint()
        # The last batch was not accepted.
        self._fails = False
        self._dropped = 0

    def start(self) -> None:
        """Begins to export."""
        self._thread.start()

    def stop(self) -> None:
        """Exports what is left, for at most `LAST`."""
        self._is_over.set()
        self._thread.join(_LAST_OF_FAILING)
        if not self._fails:
            self._thread.join(LAST - _LAST_OF_FAILING)
        if left := self._traces.waiting():
            log.logger.warning("--otlp-endpoint: stopped with %s not exported", _responses(left))

    def _run(self) -> None:
        try:
            os.nice(_NICE)
            self._export_all()
        except Exception:  # the pages are served all the same
            log.logger.exception("--otlp-endpoint: traces are no longer exported; please report it")

    def _export_all(self) -> None:
        self._complaint.attend()
        has_failed = False
        while True:
            try:
                resource, exporter = resource_of(self._application), _exporter(self._endpoint)
                break
            except Exception as error:  # there may be more memory, or another thread, later
                if not has_failed:
                    log.logger.warning("--otlp-endpoint: cannot export traces yet: %s; trying again", _named(error))
                has_failed = True
            if self._is_over.wait(_LATER):
                return
        if self._complaint.first:
            log.logger.warning("--otlp-endpoint: %s", self._complaint.first)
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(SECONDS)
            while batch := self._traces.read(BATCH):
                began = time.thread_time()
                failure = self._export(exporter, batch, resource)
                self._traces.free(batch, failure is None)
                self._tell(failure is None, len(batch), failure)
                self._tell_dropped()
                # At most half a processor: a container may have no more than one.
                self._is_over.wait(time.thread_time() - began)

    def _export(self, exporter: SpanExporter, batch: TraceBatch, resource: Resource) -> str | None:
        """Returns why it has failed; None: it has not."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._complaint.first = ""
        try:
            made = list(spans(batch.responses(), resource, self._scheme))
            is_exported = exporter.export(made) is SpanExportResult.SUCCESS
        except Exception as error:  # the next batch may be accepted
            return _named(error)
        return None if is_exported else self._complaint.first

    def _tell(self, is_exported: bool, responses: int, why: str | None) -> None:
        if not is_exported and not self._fails:
            log.logger.warning(
                "--otlp-endpoint: %s does not accept traces%s; %s lost; later ones will still be sent",
                self._endpoint,
                f": {why}" if why else "",
                _responses(responses),
            )
        elif is_exported and self._fails:
            log.logger.info("--otlp-endpoint: %s accepts traces again", self._endpoint)
        self._fails = not is_exported

    def _tell_dropped(self) -> None:
        *_, dropped = self._traces.counts()
        if dropped > self._dropped and not self._dropped:
            log.logger.warning(
                "--otlp-endpoint: %s dropped, because no more can wait for the collector; set OTEL_TRACES_SAMPLER "
                "to trace fewer (tailrace_traces_total counts further drops)",
                _responses(dropped),
            )
        self._dropped = dropped


def _responses(number: int) -> str:
    return log.counted(number, "traced response")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_short(str(error))}"


def _short(text: str) -> str:
    """What a library or a collector says, for the log: of an error of the system, only that."""
    if found := re.search(r"\[Errno -?\d+\] ([^'\")(\]]+)|([Rr]ead timed out)", text):
        text = found[1] or found[2]
    return printable(text.strip().rstrip("."))[:_MAX_TEXT]


class _Complaint(logging.Handler):
    """The first message of the exporter's library about a batch, which says why it has failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def attend(self) -> None:
        """Captures the messages from now on, so that they do not reach standard error."""
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or _short(record.getMessage())


def _exporter(endpoint: str) -> SpanExporter:
    # Here, since only this process needs them.
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    class Session(requests.Session):
        """Reads the beginning of each answer alone: an endless one would fill the memory."""

        def get_redirect_target(self, resp: requests.Response) -> None:
            """Returns None so that requests does not follow redirects: it would read the whole body of the redirect."""

        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            """Raises RequestException, also for what the exporter takes for a success."""
            request.headers["Accept-Encoding"] = "identity"
            response = super().send(request, **{**options, "stream": True})
            with response:
                until, body = time.monotonic() + _PATIENCE, b""
                while (
                    len(body) < _ANSWER
                    and time.monotonic() < until
                    and (byte := response.raw.read(1, decode_content=False))
                ):
                    body += byte
            response.raw = io.BytesIO(body)
            if 300 <= response.status_code < 400:
                where = response.headers.get("Location", "nowhere")
                raise requests.RequestException(f"{response.status_code}: it redirects to {where}")
            if response.ok and "protobuf" in response.headers.get("Content-Type", ""):
                refused = ExportTraceServiceResponse.FromString(body).partial_success
                if refused.rejected_spans:
                    raise requests.RequestException(
                        f"it has rejected {log.counted(refused.rejected_spans, 'span')}: {refused.error_message}"
                    )
            return response

    return OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", session=Session())


def resource_of(application: str) -> Resource:
    """The resource of the spans, from the environment (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`). If the
    environment does not name the service, its name is the application's module."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    found = Resource.create()
    if str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: application.partition(":")[0] or "tailrace"}))
    return found


def spans(responses: Iterable[Mapping[str, Any]], resource: Resource, scheme: str) -> Iterator[ReadableSpan]:
    """The spans of traced responses, as `TraceBatch.responses` has them. scheme: see `Exporter`."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    scope = InstrumentationScope("tailrace", __version__)
    # The monotonic clock of the record, in nanoseconds since 1970.
    offset = time.time_ns() - time.monotonic_ns()

    def context(trace: int, span: int, is_remote: bool = False) -> SpanContext:
        return SpanContext(trace, span, is_remote, TraceFlags(TraceFlags.SAMPLED))

    for each in responses:
        trace, span = each["trace_id"], each["span_id"]
        end = offset + each["at_ns"]
        begin = end - _nanos(each["total"])
        is_broken = each["ending"] not in _FINE
        is_error = is_broken or each["status"] >= 500
        name = each["endpoint"]
        if each["method"] not in _METHODS:
            name = f"HTTP{name.removeprefix(each['method'])}"
        yield ReadableSpan(
            name,
            context(trace, span),
            context(trace, each["parent_id"], is_remote=True) if each["parent_id"] else None,
            resource,
            _attributes(each, is_error, scheme),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, each["ending"] if is_broken else None) if is_error else Status(),
            start_time=begin,
            end_time=end,
            instrumentation_scope=scope,
        )
        if not each["started"]:
            continue
        started = begin + _nanos(each["queued"])
        first = started + _nanos(each["application"])
        used = {f"tailrace.{phase}_seconds": each[phase] for phase in counts.PARTS}
        sent = {"tailrace.delivery": each["path"], "tailrace.writes": each["writes"]}
        # The same ids when a process that replaces this one exports them again.
        phases: tuple[tuple[str, int, int, int, dict[str, Any]], ...] = (
            ("queue", span ^ _QUEUE, begin, started, {}),
            ("application", each["application_id"], started, first + _nanos(each["iterating"]), used),
            ("delivery", span ^ _DELIVERY, first, max(first, end), sent),
        )
        for name, own, start, until, attributes in phases:
            yield ReadableSpan(
                name,
                context(trace, own or 1),
                context(trace, span),
                resource,
                attributes,
                start_time=start,
                end_time=until,
                instrumentation_scope=scope,
            )


def _attributes(each: Mapping[str, Any], is_error: bool, scheme: str) -> dict[str, Any]:
    method, query = each["method"], each["url_query"]
    found = {
        "http.request.method": method if method in _METHODS else "_OTHER",
        "url.scheme": each["scheme"] or scheme,
        "url.path": each["url_path"],
        "http.response.body.size": each["body_bytes"],
        "tailrace.ending": each["ending"],
        "tailrace.blocks": each["blocks"],
        "tailrace.worker": each["worker"],
        "process.pid": each["pid"],
    }
    if method not in _METHODS:
        found["http.request.method_original"] = method
    if query:
        found["url.query"] = query
    if each["status"]:
        found["http.response.status_code"] = each["status"]
    if each["client"]:
        found["client.address"] = _host(each["client"])
    if each["request_id"]:
        found["tailrace.request_id"] = each["request_id"]
    if each["proxied"]:
        found["tailrace.proxied_seconds"] = each["proxied"]
    if is_error:
        found["error.type"] = str(each["status"]) if each["status"] >= 500 else each["ending"]
    return found


def _host(client: str) -> str:
    """The address without the port."""
    if client.startswith("["):
        return client[1:].partition("]")[0]
    return client.partition(":")[0] if client.count(":") == 1 else client


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)
