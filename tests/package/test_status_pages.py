"""What the status process answers: its pages, the keys of the document, the names of the metrics."""

import base64
import hashlib
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from package.in_status import COUNTERS, REQUEST, Board, ended, endpoint, shared, worker
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tailrace import metrics as application
from tailrace._tailrace import Scoreboard
from tailrace.status import counts, held, metrics, pages, series, snapshot
from tailrace.status.memory import Memory
from tailrace.status.statsd import Lines
from tailrace.status.table import FIGURES, OF_BUS, OF_HOLDER, PROPORTIONAL, TABLE
from tailrace.system.addresses import parse

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def get(board, path, memory=None, method="GET"):
    said = []
    app = pages.Pages(memory or shared(worker()), board)
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path}
    body = b"".join(app(environ, lambda status, fields: said.extend((status, dict(fields)))))
    assert said[1]["Content-Length"] == str(len(body))
    assert (said[1]["Cache-Control"], said[1]["X-Content-Type-Options"]) == ("no-store", "nosniff")
    return said[0], said[1], body.decode()


def test_pages():
    assert get(Board({}), "/health")[::2] == ("200 OK", "ok\n")
    assert get(Board({}), "/ready")[::2] == ("200 OK", "ready\n")
    status, _, body = get(Board({}), "/ready", shared(worker(), stopping=True))
    assert (status, body) == (
        "503 Service Unavailable",
        "draining: the server is finishing its requests before it stops\n",
    )
    assert get(Board({}), "/nothing")[0] == "404 Not Found"
    status, fields, _ = get(Board({}), "/ready", method="DELETE")
    assert (status, fields["Allow"]) == ("405 Method Not Allowed", "GET, HEAD")


def test_a_web_page_that_has_its_name_resolve_to_this_address_reads_nothing():
    app = pages.Pages(shared(worker()), Board({}), parse(":9000"))

    def asked(path, host):
        said = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_HOST": host}
        body = b"".join(app(environ, lambda status, fields: said.append(status)))
        return said[0], body.decode()

    assert asked("/ready", "10.1.2.3:9000") == ("200 OK", "ready\n")
    for path in ("/", "/stacks", "/status.json", "/events", "/metrics", "/nothing"):
        status, body = asked(path, "evil.example:9000")
        assert (status, body.count("\n"), "or localhost" in body) == ("403 Forbidden", 1, True)


def test_the_live_page_may_use_its_own_style_and_script_and_nothing_else():
    status, fields, body = get(Board({}), "/")
    assert (status, fields["Content-Type"]) == ("200 OK", "text/html; charset=utf-8")
    policy = fields["Content-Security-Policy"].split("; ")
    for element in ("style", "script"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert {"default-src 'none'", "connect-src 'self'", "trusted-types 'none'"} <= set(policy)
    assert "unsafe" not in fields["Content-Security-Policy"]
    # What names another place only names the namespace of SVG.
    assert set(re.findall(r"https?://[\w./]+", body)) == {"http://www.w3.org/2000/svg"}


def test_the_events_are_a_response_without_a_length():
    said = []
    app = pages.Pages(shared(worker()), Board({}, requests=[REQUEST]))
    for method in ("HEAD", "GET"):
        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/events"}
        body = app(environ, lambda status, fields: said.append((status, dict(fields))))
        status, fields = said.pop()
        assert (status, fields["Content-Type"]) == ("200 OK", "text/event-stream")
        assert ("Content-Length" in fields) == (method == "HEAD")
    state = json.loads(next(body).decode().split("event: state\ndata: ")[1])
    assert state["document"]["requests"][0]["target"] == "/a"
    # Reading that would delay the worker.
    assert state["document"]["workers"][0]["pss_bytes"] is None
    body.close()


def test_a_state_that_cannot_be_read_is_503():
    class Broken:
        def read(self):
            raise OSError("the master has not finished writing its state")

    assert get(Board({}), "/ready", Broken())[::2] == (
        "503 Service Unavailable",
        "the master has not finished writing its state\n",
    )


@pytest.fixture
def holder(monkeypatch):
    """A process holds connections: what it says."""
    said = {
        "pid": 7,
        "age_seconds": 0.1,
        **{metric.key: 5 for metric in OF_HOLDER},
        "closed": {"complete": 1, "left": 6},
        "largest": [{"channel": "a\nb", "connections": 4}],
        "bus": {metric.key: 5 for metric in OF_BUS},
    }
    monkeypatch.setattr(held.Reader, "read", lambda reader, state: said if state.holder else None)
    return said


def test_the_document_has_the_keys_that_its_page_describes(holder):
    recent = {"slow": [ended()], "broken": [ended(ending="broken")]}
    board = Board({"requests": 3}, requests=[REQUEST], endpoints=[endpoint(failed=1)], recent=recent)
    status, fields, body = get(board, "/status.json", shared(worker(), holder=7))
    assert (status, fields["Content-Type"]) == ("200 OK", "application/json")
    found = json.loads(body)
    assert found["held"] == holder
    assert json.loads(get(board, "/status.json")[2])["held"] is None
    assert found["workers"][0]["since"] == "2023-11-14T22:13:20.000+00:00"
    # No process has that number.
    assert found["workers"][0]["counters"]["requests"] == 3
    assert found["requests"] == [{"worker": 1, "pid": 101, **REQUEST}]
    described = {
        "document": set(found),
        "worker": set(found["workers"][0]),
        "request": set(found["requests"][0]),
        "responses": set(found["responses"]),
        "paths": set(found["paths"]),
        "latency": set(found["latency"]),
        "threads": set(found["threads"]),
        "connections": set(found["connections"]),
        "held": set(found["held"]),
        "endpoint": set(found["endpoints"][0]),
        "response": set(found["slow"][0]) & set(found["broken"][0]),
        "finding": set(found["endpoints"][0]["findings"][0]),
    }
    page = (DOCS / "reference/status-json.md").read_text()
    for table, keys in described.items():
        section = re.search(rf"<!-- {table} -->\n(.*?)\n\n", page + "\n\n", re.DOTALL)
        assert section, table
        assert set(re.findall(r"^\| `([\w-]+)` \|", section[1], re.MULTILINE)) == keys, table
    described = re.findall(
        r"^\| `tailrace_\w+` \| \w+ \| `(\w+)` \|", (DOCS / "reference/metrics.md").read_text(), re.MULTILINE
    )
    assert sorted(described) == sorted(found["workers"][0]["counters"]) == sorted(found["totals"])


def test_at_most_a_thousand_requests_are_listed_the_oldest_first():
    requests = [{**REQUEST, "seconds": float(each)} for each in range(1200)]
    found = json.loads(get(Board({}, requests=requests), "/status.json")[2])
    assert (len(found["requests"]), found["requests_omitted"]) == (1000, 200)
    assert [each["seconds"] for each in found["requests"][:2]] == [1199.0, 1198.0]


def families(board, memory=None):
    status, fields, body = get(board, "/metrics", memory)
    assert (status, fields["Content-Type"]) == ("200 OK", metrics.CONTENT_TYPE)
    return list(text_string_to_metric_families(body))


def test_metrics_follow_the_conventions_of_prometheus(holder):
    more = {"certificates": [("/etc/a.pem", 2e9), ("/etc/b.pem", 3e9)], "holder": 7}
    memory = shared(worker(1), worker(2), restarts={"crash": 1, "reload": 2}, application='a"\\\n:app', **more)
    found = families(Board({"requests": 3}, {"requests": 4}), memory)
    names = [family.name for family in found]
    assert len(set(names)) == len(names)
    for family in found:
        assert re.fullmatch(r"tailrace(_[a-z]+)+", family.name), family.name
        # What `promtool check metrics` demands.
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"_(count|sum|bucket|total|gauge|counter|milliseconds|megabytes)$", family.name)
        if family.type == "histogram":
            names = {sample.name.removeprefix(family.name) for sample in family.samples}
            assert names == {"_bucket", "_count", "_sum"}, family.name
        is_counter = family.type == "counter"
        assert all(sample.name.endswith("_total") == is_counter for sample in family.samples), family.name
        labels = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert labels, family.name
        assert len(set(labels)) == len(labels), family.name
    samples = {sample.name: sample for family in found for sample in family.samples}
    assert samples["tailrace_requests_total"].value == 7
    assert samples["tailrace_held_connections"].value == 5
    (closed,) = (family for family in found if family.name == "tailrace_held_closed")
    assert {sample.labels["reason"]: sample.value for sample in closed.samples} == holder["closed"]
    assert samples["tailrace_info"].labels["application"] == 'a"\\\n:app'
    assert {family.name + "_total" * (family.type == "counter") for family in found} == {
        metric.family for metric in TABLE if metric is not PROPORTIONAL
    }


def test_without_a_process_that_holds_connections_there_are_no_metrics_of_it():
    names = {family.name for family in families(Board({}))}
    assert names.isdisjoint(metric.name for metric in OF_HOLDER)


def test_a_histogram_has_in_each_bucket_what_is_at_most_its_bound():
    delivered = {
        # Of two workers, so not in order.
        "queued": {"0.125": 3, "0.001007080078125": 2, "+Inf": 1, "sum_ns": 190_250_000_000},
        "calls": {"1.0": 4, "2.0": 2},
        "sizes": {"writes": 8},
    }
    board = Board({}, deliveries=delivered)
    found = {family.name: family for family in families(board)}
    phases = [each for each in found["tailrace_request_phase_seconds"].samples if each.labels["phase"] == "queued"]
    buckets = {float(each.labels["le"]): each.value for each in phases if "le" in each.labels}
    assert list(buckets) == sorted(buckets)
    bounds = (0.0009765625, 0.001220703125, 0.109375, 0.125, 1.0, 64.0, float("inf"))
    assert [buckets[bound] for bound in bounds] == [0, 2, 2, 5, 5, 5, 6]
    # Fine enough for `histogram_quantile`, and few enough to be stored by the thousand.
    finite = list(buckets)[:-1]
    assert (len(buckets), max(later / bound for bound, later in itertools.pairwise(finite))) == (78, 1.25)
    empty = [each for each in found["tailrace_request_phase_seconds"].samples if each.labels["phase"] == "total"]
    assert len(empty) == len(phases)
    assert [each.value for each in phases if "le" not in each.labels] == [6, 190.25]
    writes = [each.value for each in found["tailrace_response_writes"].samples]
    assert writes[:4] == [0, 4, 6, 6]
    assert writes[-2:] == [6, 8]
    document = json.loads(get(board, "/status.json")[2])
    queued = document["latency"]["queued"]
    assert queued == {"count": 6, "sum_seconds": 190.25, "buckets": {"0.001007080078125": 2, "0.125": 5, "+Inf": 6}}
    assert list(queued["buckets"]) == ["0.001007080078125", "0.125", "+Inf"]
    assert document["latency"]["total"]["buckets"] == {"+Inf": 0}
    assert document["responses"]["writes"]["buckets"]["1.0"] == 4


def test_percentiles_are_those_of_the_times_between_two_documents():
    def histogram(buckets, seconds=0.0):
        return {"count": buckets["+Inf"], "sum_seconds": seconds, "buckets": buckets}

    before = histogram({"0.5": 100, "60.0": 1000, "+Inf": 1000}, 7.0)
    # 80 in 2 ms, none in half a second, 15 in three seconds, 5 in a hundred.
    now = histogram({"0.002": 80, "0.5": 180, "3.0": 195, "60.0": 1095, "100.0": 1100, "+Inf": 1100}, 17.0)
    assert counts.percentiles(now, before) == {"p50": 0.002, "p90": 3.0, "p99": 100.0, "mean": 0.1}
    longer = histogram({**now["buckets"], "+Inf": 5000}, 17.0)
    assert counts.percentiles(longer, now)["p50"] == 128.0
    assert counts.percentiles(now, now) is None
    assert counts.percentiles(before, now) is None


def test_every_figure_of_the_scoreboard_has_its_metric_its_line_for_statsd_and_its_key():
    figures = {metric.key: metric for metric in FIGURES}
    assert set(COUNTERS) == {*figures, "stuck_ms"}
    first = {key: 100 + place for place, key in enumerate(figures)}
    board = Board(first, {"requests": 1000})
    memory = shared(worker(1), worker(2), ended={"accepted": 5000})
    values = {**first, "requests": first["requests"] + 1000, "accepted": first["accepted"] + 5000}
    samples = {sample.name: sample.value for family in families(board, memory) for sample in family.samples}
    assert {key: samples[metric.family] for key, metric in figures.items()} == values
    lines = set(Lines().of(snapshot.take(memory, board, lambda: 10.0)))
    for key, metric in figures.items():
        assert f"{metric.name.replace('_', '.', 1)}:{values[key]}|{metric.kind[0]}" in lines
    assert json.loads(get(board, "/status.json", memory)[2])["totals"] == values


def test_every_figure_has_its_help_as_its_explanation_on_the_live_page():
    explained = json.loads(re.search(r"^const EXPLAINED = (.*);$", get(Board({}), "/")[2], re.MULTILINE)[1])
    assert set(explained) == {metric.key for metric in FIGURES} | {f"latency-{phase}" for phase in counts.PHASES}
    assert explained["connections"] == "Open connections."
    assert explained["given_up"] == "Incomplete requests shed to make room for others. See --client-memory."


class Parsed:
    """Metrics as the official client has them once it has read ours."""

    def __init__(self, body):
        self._body = body

    def collect(self):
        return text_string_to_metric_families(self._body)


@pytest.mark.parametrize("now", [1.0, 1.5, 999_999.5, 1_000_001.0, 12_345_678.25, 1e17])
def test_metrics_are_the_bytes_that_the_official_client_writes(now):
    counters = {"requests": 1_234_567, "accepted": 10_000_000, "client_memory": 1 << 33}
    memory = shared(worker(1), worker(2), restarts={"crash": 3}, application='a"\\n\\\n:b{c="d"}, ü')
    taken = snapshot.take(memory, Board(counters, {"requests": 1}), lambda: now)
    ours = metrics.exposition(taken, {101: Memory(1 << 30, 1 << 29)}, "1.0", Scoreboard(1, 1, "secrets"), None).decode()
    assert generate_latest(Parsed(ours)).decode() == ours
    assert 'tailrace_info{application="a\\"\\\\n\\\\\\n:b{c=\\"d\\"}, ü",version="1.0"} 1.0\n' in ours
    assert "tailrace_requests_total 1.234568e+06\n" in ours


def test_metrics_of_the_application_are_the_bytes_that_the_official_client_writes():
    board = Board({})
    numbers = [("total", 1e9), ("nan", float("nan")), ("most", float("inf")), ("least", -float("inf")), ("less", -1.5)]
    for name, value in numbers:
        board.numbers.number(application.family_name("gauge", name, "One\nmore.", "last")).add(0)
        board.numbers.number(application.sample_name("gauge", "last", name, "", [("a", 'b"\n')])).set(value)
    _, _, body = get(board, "/metrics")
    assert generate_latest(Parsed(body)).decode() == body
    assert 'least{a="b\\"\\n"} -Inf\n' in body and 'most{a="b\\"\\n"} +Inf\n' in body


def test_a_help_text_is_escaped(monkeypatch):
    said = 'One\\two "three"\nfour.'
    odd = [each._replace(help=said) if each.key == "requests" else each for each in series.OF_SNAPSHOT]
    monkeypatch.setattr(series, "OF_SNAPSHOT", odd)
    _, _, body = get(Board({"requests": 3}), "/metrics")
    assert '# HELP tailrace_requests_total One\\\\two "three"\\nfour.\n' in body
    (found,) = (each for each in text_string_to_metric_families(body) if each.name == "tailrace_requests")
    assert found.documentation == said


def test_a_name_that_utf_8_does_not_have_is_no_error():
    # What Python makes of an argument that is not UTF-8.
    _, _, body = get(Board({}), "/metrics", shared(worker(), application="caf\udce9:app"))
    assert 'application="caf?:app"' in body


def test_metrics_need_no_other_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert get(Board({}), "/metrics")[0] == "200 OK"


@pytest.mark.parametrize("path", ["/", "/events", "/health", "/ready", "/status.json", "/stacks", "/metrics"])
def test_its_page_describes_each_address(path):
    assert f"`{path}`" in (DOCS / "status.md").read_text()
