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
import logging
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from tailrace._tailrace import Traces, __version__
from tailrace.errors import ConfigError
from tailrace.logs import log

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

# How often the queue is emptied (seconds), and how many responses a request to the collector has.
SECONDS: Final = 1.0
BATCH: Final = 256
# How many batches are sent at most before the next pause.
BATCHES: Final = 16
# How long the last batch may take when the process is to end (seconds).
LAST: Final = 3.0
# So that the workers get the processor first.
_NICE: Final = 10
# The methods that the conventions know; others may be anything.
_METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"))
_FINE: Final = ("complete", "client-gone", "cancelled")
# Characters of a message.
_MOST: Final = 300
_PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


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

    endpoint: the URL of the collector. application: the name of the service, unless the environment has one.
    """

    def __init__(self, traces: Traces, endpoint: str, application: str) -> None:
        self._traces, self._endpoint, self._application = traces, endpoint, application
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
        self._thread.join(LAST)
        if left := len(self._traces.read(BATCH)):
            log.logger.warning("--otlp-endpoint: at least %s not exported", _responses(left))

    def _run(self) -> None:
        try:
            os.nice(_NICE)
            self._export_all()
        except Exception:  # the pages are served all the same
            log.logger.exception("--otlp-endpoint: traces are no longer exported")

    def _export_all(self) -> None:
        # Here, since only this process needs them.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._complaint.attend()
        resource = resource_of(self._application)
        exporter = OTLPSpanExporter(endpoint=f"{self._endpoint}/v1/traces")
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(SECONDS)
            for _ in range(BATCHES):
                if not (batch := self._traces.read(BATCH)):
                    break
                made = list(spans(batch.responses(), resource))
                self._complaint.first = ""
                is_exported = exporter.export(made) is SpanExportResult.SUCCESS
                self._traces.free(batch, is_exported)
                self._tell(is_exported, len(batch))
                self._tell_dropped()

    def _tell(self, is_exported: bool, responses: int) -> None:
        if not is_exported and not self._fails:
            why = f": {self._complaint.first}" if self._complaint.first else ""
            log.logger.warning(
                "--otlp-endpoint: %s does not accept traces%s; those of %s are lost; trying again",
                self._endpoint,
                why,
                _responses(responses),
            )
        elif is_exported and self._fails:
            log.logger.info("--otlp-endpoint: %s accepts traces again", self._endpoint)
        self._fails = not is_exported

    def _tell_dropped(self) -> None:
        *_, dropped = self._traces.counts()
        if dropped > self._dropped and not self._dropped:
            log.logger.warning(
                "--otlp-endpoint: %s dropped, since requests are traced faster than %s accepts them; a smaller "
                "--otlp-sample traces fewer (further ones are counted by tailrace_traces_total)",
                _responses(dropped),
                self._endpoint,
            )
        self._dropped = dropped


def _responses(number: int) -> str:
    return log.counted(number, "traced response")


class _Complaint(logging.Handler):
    """The first message of the exporter's library about a batch, which says why it has failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def attend(self) -> None:
        """Gets the messages from now on, in place of standard error."""
        logger = logging.getLogger(_PACKAGE)
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage().strip().rstrip(".")[:_MOST]


def resource_of(application: str) -> Resource:
    """What the spans belong to: as the environment says (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`), or else a
    service that is called as the module of the application."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    found = Resource.create()
    if str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: application.partition(":")[0] or "tailrace"}))
    return found


def spans(responses: Iterable[Mapping[str, Any]], resource: Resource) -> Iterator[ReadableSpan]:
    """The spans of traced responses, as `TraceBatch.responses` has them."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    scope = InstrumentationScope("tailrace", __version__)
    # The monotonic clock of the record, in nanoseconds since 1970.
    offset = time.time_ns() - time.monotonic_ns()
    sampled = TraceFlags(TraceFlags.SAMPLED)
    for each in responses:
        end = offset + each["at_ns"]
        begin = end - _nanos(each["total"])
        context = SpanContext(each["trace_id"], each["span_id"], False, sampled)
        sender = SpanContext(each["trace_id"], each["parent_id"], True, sampled) if each["parent_id"] else None
        is_error = each["status"] >= 500 or each["ending"] not in _FINE

        def made(
            name: str,
            start: int,
            until: int,
            span: int | None,
            attributes: Mapping[str, Any],
            trace: int = each["trace_id"],
            parent: SpanContext = context,
        ) -> ReadableSpan:
            own = SpanContext(trace, span or random.getrandbits(64) or 1, False, sampled)
            return ReadableSpan(
                name,
                own,
                parent,
                resource,
                dict(attributes),
                start_time=start,
                end_time=until,
                instrumentation_scope=scope,
            )

        yield ReadableSpan(
            each["endpoint"],
            context,
            sender,
            resource,
            _attributes(each, is_error),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, each["ending"]) if is_error else Status(),
            start_time=begin,
            end_time=end,
            instrumentation_scope=scope,
        )
        if each["started"]:
            started = begin + _nanos(each["queued"])
            first = started + _nanos(each["application"])
            finished = first + _nanos(each["iterating"])
            yield made("queue", begin, started, None, {})
            used = {f"tailrace.{phase}_seconds": each[phase] for phase in ("cpu", "interpreter", "gc", "blocked")}
            yield made("application", started, finished, each["application_id"], used)
            sent = {"tailrace.delivery": each["path"], "tailrace.writes": each["writes"]}
            yield made("delivery", first, max(first, end), None, sent)


def _attributes(each: Mapping[str, Any], is_error: bool) -> dict[str, Any]:
    method, (path, _, query) = each["method"], each["target"].partition("?")
    found = {
        "http.request.method": method if method in _METHODS else "_OTHER",
        "url.scheme": each["scheme"],
        "url.path": path,
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
