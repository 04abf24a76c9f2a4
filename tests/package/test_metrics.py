"""`tailrace.metrics` in one process and in forked ones, without a server."""

import json
import os
import threading

import pytest
from harness.programs import printed
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Summary, values

from tailrace import metrics
from tailrace._tailrace import SharedNumbers


@pytest.fixture(autouse=True)
def numbers(monkeypatch):
    """Memory of the test's own."""
    monkeypatch.setattr(metrics, "_cells", [])
    monkeypatch.setattr(metrics, "_has_refused", False)
    made = SharedNumbers()
    monkeypatch.setattr(metrics, "_numbers", made)
    return made


@pytest.fixture
def registry(monkeypatch):
    """One of the test's own, whose metrics are in the shared memory."""
    monkeypatch.setattr(values, "ValueClass", metrics.PrometheusValue)
    return CollectorRegistry()


def shown(numbers):
    """All samples: name and labels, and the value."""
    return {
        (name + each.suffix, *sorted(each.labels.items())): each.value
        for name, (_, _, samples) in metrics.read(numbers).items()
        for each in samples
    }


def in_child(work):
    """Does it in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


@pytest.mark.parametrize(("mode", "expected"), [("sum", 6), ("max", 3), ("min", 1)])
def test_a_gauge_that_each_process_has_is_combined_and_ends_with_its_process(numbers, registry, mode, expected):
    busy = Gauge("busy", "In progress.", registry=registry, multiprocess_mode=mode)
    busy.set(1)
    ended = [in_child(lambda: busy.set(2)), in_child(lambda: busy.set(3))]
    assert shown(numbers) == {("busy",): expected}
    # That of the parent is not the child's.
    assert registry.get_sample_value("busy") == 1
    for pid in ended:
        numbers.forget(pid)
    assert shown(numbers) == {("busy",): 1}


def test_own_values_are_those_of_workers_and_a_forked_process_has_none_at_first(numbers, registry):
    busy = Gauge("busy", "In progress.", registry=registry, multiprocess_mode="min")
    busy.set(5)
    in_child(lambda: None)
    assert shown(numbers) == {("busy",): 5}
    pid = in_child(lambda: busy.inc(2))
    samples = {workers: metrics.read(numbers, workers)["busy"][2] for workers in ((os.getpid(),), (pid,), ())}
    assert [[each.value for each in found] for found in samples.values()] == [[5], [2], []]


def test_processes_that_have_ended_make_room(numbers, registry, caplog):
    busy = [Gauge(f"busy{number}", "In progress.", registry=registry, multiprocess_mode="sum") for number in range(500)]
    for _ in range(12):
        in_child(lambda: [each.set(1) for each in busy])
    assert len(numbers.all()) < SharedNumbers.MAX
    assert numbers.refused() == 0
    assert "no room" not in caplog.text
    assert registry.get_sample_value("busy0") == 0


def test_a_metric_that_becomes_one_of_another_kind_begins_anew(numbers, registry):
    Histogram("a", "A.", registry=registry, buckets=[1]).observe(0.5)
    Gauge("b", "B.", registry=registry, multiprocess_mode="mostrecent").set(7)
    # As a worker with other code.
    other = CollectorRegistry()
    Counter("a", "A.", registry=other).inc(2)
    Gauge("b", "B.", registry=other, multiprocess_mode="sum").set(3)
    assert shown(numbers) == {("a_total",): 2, ("b",): 3}


def test_a_histogram_that_fits_in_part_is_not_shown(numbers, registry):
    Counter("c", "C.", registry=registry).inc()
    number = 0
    while len(numbers.all()) < SharedNumbers.MAX - 4:
        numbers.number(json.dumps(["other", number]), 0)
        number += 1
    Histogram("times", "T.", registry=registry, buckets=[1, 2, 3]).observe(0.5)
    assert shown(numbers) == {("c_total",): 1}
    assert numbers.refused() == 2


def test_no_increment_is_lost_between_threads_and_processes(numbers, registry):
    counted = Counter("counted", "C.", registry=registry)
    times = Histogram("times", "T.", registry=registry, buckets=[1])

    def work():
        def count():
            for _ in range(2_000):
                counted.inc()
                times.observe(0.5)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    assert shown(numbers)[("counted_total",)] == 24_000
    assert shown(numbers)[("times_sum",)] == 12_000


def test_beyond_the_limit_the_application_goes_on_and_one_line_says_so(numbers, registry, caplog):
    paths = Counter("paths", "One for each path.", ["path"], registry=registry)
    for number in range(SharedNumbers.MAX + 10):
        paths.labels(number).inc()
    # The number by which the metric itself is known takes a place, too.
    assert len(shown(numbers)) == SharedNumbers.MAX - 1
    assert numbers.refused() == 11
    paths.labels("x" * 500).inc()
    (line,) = [each.getMessage() for each in caplog.records if "metrics: no room" in each.getMessage()]
    assert "paths" in line and "Use fewer label values" in line


def test_without_room_processes_that_have_ended_are_looked_for_once(numbers, registry, monkeypatch):
    monkeypatch.setattr(metrics, "_looks_at", 0.0)
    busy = Gauge("busy", "In progress.", ["path"], registry=registry, multiprocess_mode="sum")
    for number in range(SharedNumbers.MAX - 1):
        busy.labels(number).set(1)
    monkeypatch.setattr(metrics.time, "monotonic", lambda: 1000.0)
    looks = []
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: looks.append(path) or exists(path))
    for number in range(50):
        busy.labels(f"further {number}").set(1)
    assert numbers.refused() == 50
    assert len(looks) == 1


def test_a_long_help_text_and_odd_labels_are_shown(numbers, registry):
    Counter("long", "é" * 1_000, ["path"], registry=registry).labels('a"\\\n\u2028').inc()
    kind, said, samples = metrics.read(numbers)["long"]
    assert (kind, set(said), len(said)) == ("counter", {"é"}, 100)
    assert [each.labels for each in samples] == [{"path": 'a"\\\n\u2028'}]


def test_what_no_encoding_has_is_replaced(numbers, registry):
    Counter("odd", "\udce9", ["path"], registry=registry).labels("caf\udce9").inc()
    _, said, samples = metrics.read(numbers)["odd"]
    assert said == "?" and [each.labels for each in samples] == [{"path": "caf?"}]


def test_a_metric_that_found_no_room_itself_does_not_harm_others(numbers, registry):
    filled = Counter("filled", ".", ["number"], registry=registry)
    for number in range(SharedNumbers.MAX):
        filled.labels(number).inc()
    numbers.number("a place that is free again", 7)
    late = Gauge("late", ".", registry=registry, multiprocess_mode="sum")
    late.set(1)
    assert ("late",) not in shown(numbers) and registry.get_sample_value("late") == 1
    assert shown(numbers)[("filled_total", ("number", "0"))] == 1


def test_other_memory_gets_what_was_counted_before(numbers, registry):
    early = Counter("early", "E.", registry=registry)
    early.inc(3)
    later = SharedNumbers()
    metrics.use(later)
    early.inc()
    assert shown(later) == {("early_total",): 4}
    assert shown(numbers) == {("early_total",): 3}


def test_metrics_of_prometheus_client_that_were_made_before_are_named(monkeypatch, caplog):
    original = values.ValueClass
    monkeypatch.setattr(values, "ValueClass", original)
    metrics.share_prometheus_client()
    assert caplog.text == ""
    values.ValueClass = original
    early = Counter("early", "E.")
    try:
        metrics.share_prometheus_client()
        # Once is enough.
        metrics.share_prometheus_client()
    finally:
        REGISTRY.unregister(early)
    assert caplog.text.count("after these metrics had been made, so they are not shared: early") == 1


def test_the_values_of_prometheus_client_are_shared(numbers, registry, caplog):
    counted = Counter("counted", "C.", ["a"], registry=registry)
    ours = Counter("tailrace_requests", "C.", ["a"], registry=registry)
    for value in ("x", "y"):
        ours.labels(value).inc()
    assert "tailrace_requests is omitted: names that begin with tailrace_ are reserved" in caplog.text
    assert caplog.text.count("tailrace_requests") == 1
    summed = Summary("summed", "S.", registry=registry)
    times = Histogram("times", "T.", registry=registry, buckets=[1, 2])
    gauges = {
        mode: Gauge(f"gauge_{mode}", "G.", registry=registry, multiprocess_mode=mode)
        for mode in ("all", "liveall", "sum", "livesum", "max", "livemax", "min", "mostrecent")
    }

    def work(value=2):
        counted.labels("x").inc()
        summed.observe(3)
        times.observe(1.5)
        for each in gauges.values():
            each.set(value)

    work(1)
    pid = in_child(work)
    found = shown(numbers)
    ours, theirs = ("pid", str(os.getpid())), ("pid", str(pid))
    assert found == {
        ("counted_total", ("a", "x")): 2,
        ("summed_count",): 2,
        ("summed_sum",): 6,
        ("times_bucket", ("le", "1.0")): 0,
        ("times_bucket", ("le", "2.0")): 2,
        ("times_bucket", ("le", "+Inf")): 2,
        ("times_count",): 2,
        ("times_sum",): 3,
        ("gauge_all", ours): 1,
        ("gauge_all", theirs): 2,
        ("gauge_liveall", ours): 1,
        ("gauge_liveall", theirs): 2,
        ("gauge_sum",): 3,
        ("gauge_livesum",): 3,
        ("gauge_max",): 2,
        ("gauge_livemax",): 2,
        ("gauge_min",): 1,
        ("gauge_mostrecent",): 2,
    }
    # The client shows what all processes have counted, too.
    assert registry.get_sample_value("counted_total", {"a": "x"}) == 2


def test_prometheus_client_is_not_needed():
    printed(
        """
        import sys
        sys.modules["prometheus_client"] = None
        from tailrace import metrics
        from tailrace._tailrace import SharedNumbers
        assert metrics.read(SharedNumbers()) == {}
        """
    )
