"""The exporter of spans, with a library that fails, and the ids of its spans."""

import threading
import time

import pytest

from tailrace.status import tracing
from tailrace.status.counts import PHASES

RESPONSE = {
    "trace_id": 7,
    "parent_id": None,
    "span_id": 8,
    "application_id": 9,
    "at_ns": 10**9,
    "started": True,
    "scheme": None,
    "url_path": "/",
    "url_query": None,
    "method": "BREW",
    "endpoint": "BREW /",
    "status": 500,
    "ending": "complete",
    "path": "one-write",
    "client": "[2001:db8::1]:80",
    "request_id": "abc",
    "body_bytes": 3,
    "blocks": 1,
    "writes": 1,
    "worker": 2,
    "pid": 3,
    **dict.fromkeys(PHASES, 0.0),
    "queued": 0.1,
    "application": 0.2,
    "iterating": 0.3,
    "total": 0.7,
}


class Batch:
    def __init__(self, responses):
        self._responses = responses

    def __len__(self):
        return len(self._responses)

    def responses(self):
        return self._responses


class Traces:
    """Batches, of which each is read until it is freed."""

    def __init__(self, *batches):
        self.batches, self.freed = [Batch(each) for each in batches], []
        self.is_empty = threading.Event()

    def read(self, _most):
        return self.batches[0] if self.batches else Batch([])

    def free(self, batch, is_exported):
        assert self.batches.pop(0) is batch
        self.freed.append(is_exported)
        if not self.batches:
            self.is_empty.set()

    def counts(self):
        return 0, 0, 0

    def waiting(self):
        return len(self.batches)


@pytest.mark.parametrize("broken", [[{"trace_id": "none"}], [dict(RESPONSE, url_path=object())]])
def test_a_batch_that_cannot_be_exported_ends_nothing(monkeypatch, caplog, broken):
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Exporter:
        def __init__(self, endpoint, session):
            assert endpoint == "http://a/v1/traces"

        def export(self, made):
            if any(not isinstance(span.attributes.get("url.path", ""), str) for span in made):
                raise RuntimeError("it cannot be encoded")
            return SpanExportResult.SUCCESS

    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", Exporter)
    monkeypatch.setattr(tracing.os, "nice", lambda _: 0)
    traces = Traces([RESPONSE], broken, [RESPONSE])
    exporter = tracing.Exporter(traces, "http://a", "shop:app", "http")
    exporter.start()
    assert traces.is_empty.wait(20.0)
    exporter.stop()
    assert traces.freed == [True, False, True]


def test_spans_that_are_made_again_have_the_same_ids_and_an_error_says_why():
    resource = tracing.resource_of("shop:app")
    first, again = (list(tracing.spans([RESPONSE], resource, "https")) for _ in range(2))
    assert [span.context.span_id for span in first] == [span.context.span_id for span in again]
    assert len({span.context.span_id for span in first}) == 4
    assert [span.name for span in first] == ["HTTP /", "queue", "application", "delivery"]
    request = first[0]
    assert resource.attributes["service.name"] == "shop"
    assert (request.attributes["http.request.method"], request.attributes["http.request.method_original"]) == (
        "_OTHER",
        "BREW",
    )
    assert (request.attributes["client.address"], request.attributes["url.scheme"]) == ("2001:db8::1", "https")
    assert (request.attributes["error.type"], request.status.description) == ("500", None)
    assert request.end_time - request.start_time == 700_000_000
    assert [span.end_time - span.start_time for span in first[1:]] == [100_000_000, 500_000_000, 400_000_000]


def test_the_exporter_is_made_again_after_a_failure(monkeypatch, caplog):
    made = []

    def failing(endpoint):
        made.append(endpoint)
        raise OSError("no memory\x1b")

    monkeypatch.setattr(tracing, "_exporter", failing)
    monkeypatch.setattr(tracing, "_LATER", 0.01)
    monkeypatch.setattr(tracing.os, "nice", lambda _: 0)
    exporter = tracing.Exporter(Traces([RESPONSE]), "http://a", "shop:app", "http")
    exporter.start()
    while len(made) < 3:
        time.sleep(0.01)
    exporter.stop()
    assert caplog.text.count("cannot export traces yet: OSError: no memory\\x1b") == 1
    assert "stopped with 1 traced response not exported" in caplog.text
