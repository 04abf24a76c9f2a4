"""`tailrace.metrics` in one process and in forked ones, without a server."""

import json
import os
import subprocess
import sys
import threading

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, values
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client import Summary as PrometheusSummary

from tailrace import metrics
from tailrace._tailrace import SharedNumbers


@pytest.fixture(autouse=True)
def numbers(monkeypatch):
    """Memory of the test's own."""
    monkeypatch.setattr(metrics, "_families", {})
    monkeypatch.setattr(metrics, "_cells", [])
    monkeypatch.setattr(metrics, "_has_refused", False)
    made = SharedNumbers()
    monkeypatch.setattr(metrics, "_numbers", made)
    return made


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


def test_each_kind_is_counted_over_all_processes(numbers):
    orders = metrics.counter("orders_total", "Orders.", ["method", "country"])
    plain = metrics.counter("plain", "Without labels.")
    level = metrics.gauge("level", "A level.")
    times = metrics.histogram("times", "Times.", ["view"], buckets=[0.1, 1])

    def work():
        orders.labels("card", "de").inc()
        orders.labels(country="de", method="card").inc(2)
        plain.inc()
        level.set(7)
        level.dec(2)
        times.labels("a").observe(0.1)
        times.labels("a").observe(0.5)
        times.labels("a").observe(50)

    in_child(work)
    in_child(work)
    work()
    assert (plain.get(), level.get(), orders.labels("card", "de").get()) == (3, 5, 9)
    assert {name: kind for name, (kind, *_) in metrics.read(numbers).items()} == {
        "orders": "counter",
        "plain": "counter",
        "level": "gauge",
        "times": "histogram",
    }
    view = ("view", "a")
    assert shown(numbers) == {
        ("orders_total", ("country", "de"), ("method", "card")): 9,
        ("plain_total",): 3,
        ("level",): 5,
        ("times_bucket", ("le", "0.1"), view): 3,
        ("times_bucket", ("le", "1.0"), view): 6,
        ("times_bucket", ("le", "+Inf"), view): 9,
        ("times_count", view): 9,
        ("times_sum", view): pytest.approx(151.8),
    }


@pytest.mark.parametrize(("mode", "expected"), [("sum", 6), ("max", 3), ("min", 1)])
def test_a_gauge_that_each_process_has_is_combined_and_ends_with_its_process(numbers, mode, expected):
    busy = metrics.gauge("busy", "In progress.", mode=mode)
    busy.set(1)
    ended = [in_child(lambda: busy.set(2)), in_child(lambda: busy.set(3))]
    assert shown(numbers) == {("busy",): expected}
    # That of the parent is not the child's.
    assert busy.get() == 1
    for pid in ended:
        numbers.forget(pid)
    assert shown(numbers) == {("busy",): 1}


def test_own_values_are_those_of_workers_and_a_forked_process_has_none_at_first(numbers):
    busy = metrics.gauge("busy", "In progress.", mode="min")
    busy.set(5)
    in_child(lambda: None)
    assert shown(numbers) == {("busy",): 5}
    pid = in_child(lambda: busy.inc(2))
    samples = {workers: metrics.read(numbers, workers)["busy"][2] for workers in ((os.getpid(),), (pid,), ())}
    assert [[each.value for each in found] for found in samples.values()] == [[5], [2], []]


def test_processes_that_have_ended_make_room(numbers, caplog):
    busy = [metrics.gauge(f"busy{number}", "In progress.", mode="sum") for number in range(500)]
    for _ in range(12):
        in_child(lambda: [each.set(1) for each in busy])
    assert len(numbers.all()) < SharedNumbers.MOST
    assert numbers.refused() == 0
    assert "no room" not in caplog.text
    assert busy[0].get() == 0


def test_a_metric_that_becomes_one_of_another_kind_begins_anew(numbers, monkeypatch):
    metrics.histogram("a", "A.", buckets=[1]).observe(0.5)
    metrics.gauge("b", "B.").set(7)
    # As a worker with other code.
    monkeypatch.setattr(metrics, "_families", {})
    metrics.counter("a", "A.").inc(2)
    metrics.gauge("b", "B.", mode="sum").set(3)
    assert shown(numbers) == {("a_total",): 2, ("b",): 3}


def test_a_histogram_that_fits_in_part_is_not_shown(numbers):
    metrics.counter("c", "C.").inc()
    times = metrics.histogram("times", "T.", buckets=[1, 2, 3])
    number = 0
    while len(numbers.all()) < SharedNumbers.MOST - 3:
        numbers.number(json.dumps(["other", number]), 0)
        number += 1
    times.observe(0.5)
    assert shown(numbers) == {("c_total",): 1}
    assert numbers.refused() == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: metrics.gauge("orders_total", "O."), "the counter orders is already shown as orders_total"),
        (lambda: metrics.gauge("times_count", "T."), "the histogram times is already shown as times_count"),
        (lambda: metrics.counter("twice", "T.", ["a", "a"]), "a label is named twice"),
        (lambda: metrics.histogram("least", "L.", buckets=[float("-inf"), 1]), "finite numbers in ascending order"),
    ],
)
def test_names_that_are_taken_are_refused(make, said):
    metrics.counter("orders", "O.")
    metrics.histogram("times", "T.")
    with pytest.raises(ValueError, match=said):
        make()


def test_no_increment_is_lost_between_threads_and_processes(numbers):
    counted, times = metrics.counter("counted", "C."), metrics.histogram("times", "T.", buckets=[1])

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


def test_the_time_of_a_block_is_counted_also_if_it_raises(numbers):
    times = metrics.histogram("times", "Times.")
    with times.time():
        pass
    with pytest.raises(KeyError), times.time():
        raise KeyError
    assert shown(numbers)[("times_count",)] == 2


def test_the_same_metric_may_be_made_again_and_no_other_one_of_its_name():
    orders = metrics.counter("orders", "Orders.", ["method"])
    assert metrics.counter("orders_total", "Orders.", ["method"]) is orders
    times = metrics.histogram("times", "T.", buckets=[1, 2])
    assert metrics.histogram("times", "T.", buckets=[1, 2, float("inf")]) is times
    level = metrics.gauge("level", "L.", mode="max")
    assert metrics.gauge("level", "L.", mode="max") is level
    for again in (
        lambda: metrics.counter("orders", "Orders.", ["country"]),
        lambda: metrics.gauge("orders", "Orders.", ["method"]),
        lambda: metrics.histogram("times", "T.", buckets=[1, 3]),
        lambda: metrics.gauge("level", "L."),
    ):
        with pytest.raises(ValueError, match="with other labels or of another kind"):
            again()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: metrics.counter("a b", "."), "'a b' is no name of a metric"),
        (lambda: metrics.counter("tailrace_x", "."), "names of the server's own metrics"),
        (lambda: metrics.counter("a", ".", ["1"]), "'1' is no name of a label"),
        (lambda: metrics.counter("a", ".", ["le"]), "'le' is no name of a label"),
        (lambda: metrics.counter("a", ".", "ab"), "labels must be a list"),
        (lambda: metrics.counter("a", ".").inc(-1), "only grows"),
        (lambda: metrics.counter("a", ".").inc(float("nan")), "only grows"),
        (lambda: metrics.counter("a", ".", ["b"]).inc(), "a: the labels are b"),
        (lambda: metrics.counter("a", ".", ["b"]).labels(c=1), "a: the labels are b"),
        (lambda: metrics.counter("a", ".", ["b"]).labels(1, b=1), "a: the labels are b"),
        (lambda: metrics.histogram("a", ".", buckets=[2, 1]), "ascending"),
        (lambda: metrics.histogram("a", ".", buckets=[]), "ascending"),
        (lambda: metrics.gauge("a", ".", mode="mean"), 'mode must be "last"'),
    ],
)
def test_what_is_wrong_is_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


def test_beyond_the_limit_the_application_goes_on_and_one_line_says_so(numbers, caplog):
    paths = metrics.counter("paths", "One for each path.", ["path"])
    for number in range(SharedNumbers.MOST + 10):
        paths.labels(number).inc()
    # The number by which the metric itself is known takes a place, too.
    assert len(shown(numbers)) == SharedNumbers.MOST - 1
    assert numbers.refused() == 11
    paths.labels("x" * 500).inc()
    (line,) = [each.getMessage() for each in caplog.records if "metrics: no room" in each.getMessage()]
    assert "paths" in line and "Use fewer label values" in line


def test_a_long_help_text_and_odd_labels_are_shown(numbers):
    metrics.counter("long", "é" * 1_000, ["path"]).labels('a"\\\n\u2028').inc()
    kind, said, samples = metrics.read(numbers)["long"]
    assert (kind, set(said), len(said)) == ("counter", {"é"}, 100)
    assert [each.labels for each in samples] == [{"path": 'a"\\\n\u2028'}]


def test_what_no_encoding_has_is_replaced(numbers):
    metrics.counter("odd", "\udce9", ["path"]).labels("caf\udce9").inc()
    _, said, samples = metrics.read(numbers)["odd"]
    assert said == "?" and [each.labels for each in samples] == [{"path": "caf?"}]


def test_a_metric_that_found_no_room_itself_does_not_harm_others(numbers):
    filled = metrics.counter("filled", ".", ["number"])
    for number in range(SharedNumbers.MOST):
        filled.labels(number).inc()
    numbers.number("a place that is free again", 7)
    late = metrics.gauge("late", ".", mode="sum")
    late.set(1)
    assert ("late",) not in shown(numbers) and late.get() == 1
    assert shown(numbers)[("filled_total", ("number", "0"))] == 1


def test_other_memory_gets_what_was_counted_before(numbers):
    early = metrics.counter("early", "E.")
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
    early = PrometheusCounter("early", "E.")
    try:
        metrics.share_prometheus_client()
        # Once is enough.
        metrics.share_prometheus_client()
    finally:
        REGISTRY.unregister(early)
    assert caplog.text.count("after these metrics had been made, so they are not shared: early") == 1


def test_the_values_of_prometheus_client_are_shared(numbers, monkeypatch):
    monkeypatch.setattr(values, "ValueClass", metrics.PrometheusValue)
    registry = CollectorRegistry()
    counted = PrometheusCounter("counted", "C.", ["a"], registry=registry)
    summed = PrometheusSummary("summed", "S.", registry=registry)
    times = PrometheusHistogram("times", "T.", registry=registry, buckets=[1, 2])
    gauges = {
        mode: PrometheusGauge(f"gauge_{mode}", "G.", registry=registry, multiprocess_mode=mode)
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
    code = """
import sys
sys.modules["prometheus_client"] = None
from tailrace import metrics
metrics.counter("a", "b").inc()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
