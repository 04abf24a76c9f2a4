"""`--otlp-endpoint`: which requests are traced, what their spans say, and that none is lost without being counted."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest
from harness.addresses import free_address
from harness.collector import Collector
from harness.operated import Operated
from harness.status import metrics
from harness.wire import Client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from server.probes import eventually

from tailrace.cli.settings import from_keywords
from tailrace.errors import ConfigError

APPS = Path(__file__).resolve().parents[1] / "apps"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"traceparent: 00-{TRACE}-{PARENT}-00"
SERVER, INTERNAL = 2, 1
SPANS = 4


RATIO = "parentbased_traceidratio"


@contextlib.contextmanager
def serving(directory, collector, *arguments, app="srv_spans:app", **more):
    """A server that serves, and is stopped at the end if nothing else has ended it."""
    with started(directory, collector, *arguments, app=app, **more) as server:
        server.serves()
        yield server
        if server.process.poll() is None:
            server.stop()


def started(directory, collector, *arguments, app="srv_spans:app", **more):
    url = collector if isinstance(collector, str) else collector.url
    environment = {"COLLECTOR": url, "PYTHONPATH": str(APPS), **more}
    return Operated(directory, app, "--otlp-endpoint", url, *arguments, environment=environment)


def told(server, target="/", *fields):
    """The traceparent that the application gets, in its four parts, and tracestate."""
    parent, state = server.get(target, *fields).body.decode().split(" ", 1)
    return [*parent.split("-"), state]


def status_process(server):
    line = next(line for line in server.log.splitlines() if "traces to" in line)
    return int(line.rpartition("(process ")[2].split(")")[0])


@pytest.mark.parametrize("arguments", [(), ("--gevent",), ("--preload", "--workers", "2"), ("--threads", "1")])
def test_a_request_has_spans_for_queue_application_and_delivery(tmp_path, arguments):
    with Collector() as collector, serving(tmp_path, collector, *arguments) as server:
        server.get("/blocks/50?a=1&token=secret", SAMPLED, "tracestate: a=b")
        spans = collector.of("GET /blocks/*")
        request, queue, application, delivery = (
            spans[name] for name in ("GET /blocks/*", "queue", "application", "delivery")
        )
        assert (request.trace, request.parent, request.kind) == (TRACE, PARENT, SERVER)
        assert {(each.parent, each.kind) for each in (queue, application, delivery)} == {(request.id, INTERNAL)}
        assert request.start == queue.start <= queue.end == application.start
        assert application.start < delivery.start < application.end
        assert application.end - application.start > 50e6
        assert delivery.end == request.end >= application.end
        attributes = request.attributes
        assert attributes["http.request.method"] == "GET"
        assert (attributes["url.path"], attributes["url.scheme"]) == ("/blocks/50", "http")
        assert "a=1" in attributes["url.query"]
        assert "secret" not in attributes["url.query"]
        assert (attributes["http.response.status_code"], attributes["client.address"]) == (200, "127.0.0.1")
        assert (application.end - application.start) / 1e9 - application.attributes["tailrace.cpu_seconds"] > 0.045
        assert delivery.attributes["tailrace.delivery"] in ("direct", "coalesced")
        assert request.resource["service.name"] == "srv_spans"
        assert abs(request.end / 1e9 - time.time()) < 60


def test_spans_of_the_application_are_below_that_of_the_server(tmp_path):
    log = tmp_path / "access"
    arguments = ("--access-log", str(log), "--access-log-format", "{trace}")
    with Collector() as collector, serving(tmp_path, collector, *arguments, OTEL_SERVICE_NAME="shop") as server:
        server.get("/own")
        spans = collector.of("GET /own", 5)
        assert spans["own"].parent == spans["application"].id
        assert spans["GET /own"].parent == ""
        assert spans["GET /own"].resource["service.name"] == "shop"
        version, trace, parent, flags, _ = told(server)
        assert (version, len(trace), len(parent), flags) == ("00", 32, 16, "01")
        eventually(lambda: log.read_text() == f"{spans['GET /own'].trace}\n{trace}\n", "the traces in the access log")


def test_urls_are_as_the_client_has_sent_them(tmp_path):
    with Collector() as collector, serving(tmp_path, collector, "--url-scheme", "https") as server:
        server.get('http://test/o\'brien?q="a"&b')
        (request,) = [span for span in collector.spans(SPANS) if span.kind == SERVER]
        found = [request.attributes[f"url.{part}"] for part in ("scheme", "path", "query")]
        assert found == ["https", "/o'brien", 'q="a"&b']
        assert request.name.startswith("GET /o")


def test_a_trusted_sender_decides_and_otherwise_the_share(tmp_path):
    with Collector() as collector:
        trusted = ("--trusted-proxies", "127.0.0.1")
        with serving(tmp_path, collector, *trusted, OTEL_TRACES_SAMPLER="parentbased_always_off") as server:
            assert told(server, "/", NOT_SAMPLED, "tracestate: a=b") == ["00", TRACE, PARENT, "00", "a=b"]
            # One that states no trace decides nothing.
            assert told(server)[3] == "00"
            told(server, "/traced", SAMPLED)
            assert [span.name for span in collector.spans(SPANS) if span.kind == SERVER] == ["GET /traced"]
        distrusting = ("--trusted-proxies", "none")
        with serving(tmp_path, collector, *distrusting, OTEL_TRACES_SAMPLER="always_off") as server:
            version, trace, parent, flags, state = told(server, "/", SAMPLED, "tracestate: a=b")
            assert (version, trace, flags, state) == ("00", TRACE, "00", "a=b")
            assert parent != PARENT
        assert len(collector.spans()) == SPANS
        share = {"OTEL_TRACES_SAMPLER": RATIO, "OTEL_TRACES_SAMPLER_ARG": "0.5"}
        with serving(tmp_path, collector, *distrusting, **share) as server:
            flags = [told(server, "/", NOT_SAMPLED)[3] for _ in range(100)]
        assert 20 < flags.count("01") < 80
        assert len(collector.spans()) == SPANS * (1 + flags.count("01"))


def test_a_sampler_can_ignore_the_flag_of_a_trusted_sender(tmp_path):
    trusted = ("--trusted-proxies", "127.0.0.1")
    with Collector() as collector:
        with serving(tmp_path, collector, *trusted, OTEL_TRACES_SAMPLER="always_on") as server:
            version, trace, parent, flags, _ = told(server, "/", NOT_SAMPLED)
            assert (version, trace, flags) == ("00", TRACE, "01")
            assert parent != PARENT
        with serving(tmp_path, collector, *trusted, OTEL_TRACES_SAMPLER="sometimes") as server:
            assert told(server, "/", NOT_SAMPLED)[3] == "00"
            assert server.log.count("--otlp-endpoint: OTEL_TRACES_SAMPLER='sometimes' is unknown") == 1


@pytest.mark.parametrize("fields", [(SAMPLED, SAMPLED), (SAMPLED + "0",), (SAMPLED.replace(TRACE, "0" * 32),)])
def test_without_a_valid_traceparent_a_trace_begins(tmp_path, fields):
    with Collector() as collector, serving(tmp_path, collector, "--trusted-proxies", "*") as server:
        version, trace, _, flags, state = told(server, "/", *fields, "tracestate: a=b")
        assert (version, flags, state) == ("00", "01", "-")
        assert trace not in (TRACE, "0" * 32)
        (request,) = [span for span in collector.spans(SPANS) if span.kind == SERVER]
        assert (request.trace, request.parent) == (trace, "")


def test_errors_are_errors_and_what_the_application_never_had_has_one_span(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.txt").write_text("a")
    with Collector() as collector, serving(tmp_path, collector, "--static", "/files=files") as server:
        server.get("/fail")
        server.get("/files/a.txt")
        found = collector.spans(SPANS + 1)
        requests = {span.attributes["url.path"]: span for span in found if span.kind == SERVER}
        failed, file = requests["/fail"], requests["/files/a.txt"]
        assert (failed.is_error, failed.attributes["error.type"]) == (True, "500")
        assert (file.is_error, file.attributes["http.response.body.size"]) == (False, 1)
        assert "error.type" not in file.attributes
        assert [span.name for span in found if span.trace == file.trace] == [file.name]


def worker(server):
    """The process of its first worker."""
    line = next(line for line in server.log.splitlines() if "ready in" in line)
    return int(line.partition("(pid ")[2].partition(")")[0])


def test_a_worker_neither_has_a_thread_nor_loads_a_library_for_it(tmp_path):
    with Collector() as collector, serving(tmp_path, collector, "--threads", "1") as server:
        threads, modules = server.get("/process").body.decode().split("\n")
        collector.spans(SPANS)
        # Those of the application, and what it does without traces.
        assert all(re.fullmatch(r"MainThread|tailrace-(\d+|end)", name) for name in threads.split()), threads
        assert not {"opentelemetry.sdk", "requests", "google.protobuf"} & set(modules.split())
        # Of the status process, the library of protobuf.
        assert "_upb" in Path(f"/proc/{status_process(server)}/maps").read_text()


def test_what_is_left_is_exported_at_the_end_and_when_a_worker_is_killed(tmp_path):
    with Collector() as collector, serving(tmp_path, collector, "--workers", "1") as server:
        for _ in range(20):
            server.get("/before")
        os.kill(worker(server), signal.SIGKILL)
        server.logged("ready in", 2)
        for _ in range(20):
            server.get("/after")
        server.stop()
        names = [span.name for span in collector.spans() if span.kind == SERVER]
        # The worker may have been killed before it had accounted for its last response.
        assert names.count("GET /before") in (19, 20)
        assert names.count("GET /after") == 20


def test_the_status_process_is_replaced_and_nothing_is_lost(tmp_path):
    with Collector() as collector, serving(tmp_path, collector) as server:
        collector.answers.clear()
        server.get("/first")
        assert collector.holds.wait(20.0)
        os.kill(status_process(server), signal.SIGKILL)
        server.logged("replacing it")
        collector.answers.set()
        server.get("/second")
        found = collector.spans(2 * SPANS)
        assert sorted(span.name for span in found if span.kind == SERVER) == ["GET /first", "GET /second"]


def test_a_request_that_the_end_of_the_server_cuts_off_is_an_error(tmp_path):
    with Collector() as collector, serving(tmp_path, collector, "--graceful-timeout", "0.5") as server:
        with Client(server.address) as client:
            client.send(f"GET /wait?{tmp_path}/never HTTP/1.1\r\nHost: a\r\n{SAMPLED}\r\n\r\n".encode())
            server.until((tmp_path / "never.waits").exists, "the request")
            server.stop()
        spans = collector.of("GET /wait")
        request = spans["GET /wait"]
        assert (request.trace, request.parent, request.is_error) == (TRACE, PARENT, True)
        assert request.attributes["error.type"] == request.attributes["tailrace.ending"] == "cut"
        assert spans["application"].parent == request.id


def test_requests_that_a_new_master_leaves_to_the_old_workers_are_exported(tmp_path):
    agent, status = free_address(), free_address()
    arguments = ("--haproxy-agent", agent.bind, "--status", status.bind, "--workers", "2")
    with Collector() as collector, serving(tmp_path, collector, *arguments) as server:
        first = server.master
        with Client(server.address) as client:
            client.send(f"GET /wait?{tmp_path}/gate HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            server.until((tmp_path / "gate.waits").exists, "the request")
            server.tell(signal.SIGUSR2)
            server.logged("has taken over")
            server.until(lambda: server.master != first, "the new master")
            server.get("/new")
            # The old process neither answers nor accepts any more.
            for address in (agent, status):
                for _ in range(10):
                    with Client(address) as asking:
                        asking.send(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                        assert asking.rest()
            (tmp_path / "gate").touch()
            assert client.response().status == 200
        found = collector.spans(2 * SPANS)
        assert {span.name for span in found if span.kind == SERVER} == {"GET /wait", "GET /new"}
        assert server.process.wait(20.0) == 0
        server.tell(signal.SIGTERM)
        server.until(lambda: not server.processes(), "the end of all processes")


def counted(status):
    return {name: metrics(status)[f"tailrace_traces_total{{{name}}}"] for name in ("exported", "failed", "dropped")}


def test_a_collector_that_refuses_is_reported_once_and_its_loss_counted(tmp_path):
    status = free_address()
    with Collector(status=400) as collector, serving(tmp_path, collector, "--status", status.bind) as server:
        for number in range(3):
            server.get("/")
            server.until(lambda number=number: counted(status)["failed"] == number + 1, "the count of failures")
        assert server.log.count("does not accept traces") == 1
        assert "400" in next(line for line in server.log.splitlines() if "does not accept traces" in line)
        collector.status = 200
        server.get("/again")
        collector.of("GET /again")
        server.logged("accepts traces again")
        assert counted(status) == {"exported": 1, "failed": 3, "dropped": 0}
        assert "Traceback" not in server.log


REJECTED = ExportTraceServiceResponse()
REJECTED.partial_success.rejected_spans = 4
REJECTED.partial_success.error_message = "too old\x1b"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 301, "fields": {"Location": "https://a/"}}, "301: it redirects to https://a/"),
        (
            {"body": REJECTED.SerializeToString(), "fields": {"Content-Type": "application/x-protobuf"}},
            "it has rejected 4 spans: too old\\x1b",
        ),
    ],
)
def test_an_answer_that_only_looks_like_success_is_a_failure(tmp_path, answer, said):
    status = free_address()
    with Collector(**answer) as collector, serving(tmp_path, collector, "--status", status.bind) as server:
        server.get("/")
        server.logged("does not accept traces")
        assert said in next(line for line in server.log.splitlines() if "does not accept traces" in line)
        assert counted(status) == {"exported": 0, "failed": 1, "dropped": 0}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"fields": {"Content-Encoding": "gzip"}}, "exported"),
        ({"status": 301, "fields": {"Location": "https://a/"}}, "failed"),
    ],
)
def test_an_endless_answer_is_not_read(tmp_path, answer, outcome):
    answer = {"body": b"x" * 65536, "endless": True, **answer}
    status = free_address()
    with Collector(**answer) as collector, serving(tmp_path, collector, "--status", status.bind) as server:
        for number in range(3):
            server.get("/")
            server.until(lambda number=number: counted(status)[outcome] == number + 1, "the export")
        assert collector.sent < 100e6


def test_a_collector_that_never_answers_holds_nothing(tmp_path):
    status = free_address()
    more = {"OTEL_EXPORTER_OTLP_TIMEOUT": "8"}
    with Collector() as collector, serving(tmp_path, collector, "--status", status.bind, **more) as server:
        collector.answers.clear()
        with Client(server.address) as client:
            for _ in range(50):
                client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
                assert all(client.response().status == 200 for _ in range(100))
        # 4,096 wait, and the others are dropped.
        assert counted(status)["dropped"] in range(1, 5000 - 4096 + 1)
        server.logged("traced responses dropped")
        assert server.log.count("does not accept traces") == 1
        server.stop()
        server.logged("not exported")


def test_no_collector_at_all_leaves_the_server_alone(tmp_path):
    with serving(tmp_path, f"http://{free_address().bind}", OTEL_EXPORTER_OTLP_TIMEOUT="4") as server:
        assert server.get("/").status == 200
        server.logged("does not accept traces")
        assert "refused" in next(line for line in server.log.splitlines() if "does not accept traces" in line)
        assert "Traceback" not in server.log


def test_without_the_exporter_it_says_what_to_install(tmp_path):
    hides = tmp_path / "opentelemetry"
    hides.mkdir()
    (hides / "__init__.py").write_text("")
    with started(tmp_path, "http://127.0.0.1:4318", PYTHONPATH=f"{tmp_path}:{APPS}") as server:
        assert server.process.wait(20.0) != 0
        assert "pip install 'tailrace[otlp]'" in server.log


@pytest.mark.parametrize(
    "value", ["127.0.0.1:4318", "grpc://a:4317", "http://", "http://a:0", "http://a/?b", "http://a b"]
)
def test_what_is_no_url_of_a_collector_is_refused(value):
    with pytest.raises(ConfigError, match=r"such as http://127\.0\.0\.1:4318"):
        from_keywords({"otlp_endpoint": value})
