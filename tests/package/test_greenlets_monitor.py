"""When a hub is reported as blocked. The core's results are scripted; the hub's thread is a real thread that waits."""

import sys
import threading
from types import SimpleNamespace

import pytest
from gevent.hub import Hub
from greenlet import greenlet

from tailrace.greenlets import scheduling
from tailrace.greenlets.monitor import WARN, Monitor

from .fake_core import Core


def next_begins(core):
    """Meanwhile another request begins."""
    core.requests += 1


class Scripted(Core):
    """answers: for each call of `blocked`, what it answers, and what happens to the core meanwhile."""

    def __init__(self, answers):
        super().__init__()
        self.answers = list(answers)
        self.asked = []

    def blocked(self, age, ring=0):
        self.asked.append((round(age, 3), ring))
        ring, seconds, *happens = self.answers.pop(0) if self.answers else (-1, 0.0)
        for each in happens:
            each(self)
        return ring, seconds


@pytest.fixture
def blocker():
    """A thread in a function named `blocks`; its number."""
    entered, release = threading.Event(), threading.Event()

    def blocks():
        entered.set()
        release.wait()

    thread = threading.Thread(target=blocks)
    thread.start()
    entered.wait()
    yield thread.ident
    release.set()
    thread.join()


def watched(ident, answers, greenlets=None):
    core = Scripted(answers)
    named = set()
    monitor = Monitor(core, ident, 0, greenlets or {}, named)
    monitor._over.acquire()
    return monitor, core, named


@pytest.fixture
def kernel(monkeypatch):
    """What the kernel says at one look after the other: of the hub's thread, and how long this one was delayed."""
    says = SimpleNamespace(of_thread=[], delay=[])
    monkeypatch.setattr(scheduling, "of_thread", lambda native: says.of_thread.pop(0))
    monkeypatch.setattr(scheduling, "delay", lambda: says.delay.pop(0) if says.delay else 0.0)
    return says


def logged(core):
    """What was said, without whose fault it was."""
    return [text.partition(" by ")[0] for _, text in core.logged]


def test_a_blocked_hub_is_reported_when_detected_and_when_it_is_over(blocker):
    monitor, core, _ = watched(blocker, [(5, 0.05), (5, 0.101), (5, 0.351), (0, 3.204)])
    monitor._run()
    (level, first), (_, second) = core.logged
    assert level == "warning"
    assert first.startswith(
        "the hub has been blocked for 0.101 s by a greenlet of the application, which is at (innermost first)\n  File "
    )
    assert "in blocks\n    release.wait()" in first
    assert first.index("in wait\n") < first.index("in blocks\n"), "where it waits comes first"
    assert first.splitlines()[-1].startswith("  meanwhile no other greenlet runs: use ")
    assert second == "the hub was blocked for 3.204 s by a greenlet of the application"
    # Halfway, at the limit, and then now and then until it is answered.
    assert core.asked == [(0.05, 0), (0.1, 5), (0.351, 5), (0.601, 5), (0.05, 0)]


@pytest.fixture
def clock(monkeypatch):
    """What the monitor reads as the time, set by the test."""
    says = SimpleNamespace(now=100.0)
    monkeypatch.setattr("tailrace.greenlets.monitor.time", SimpleNamespace(monotonic=lambda: says.now))
    return says


def test_a_hub_that_is_blocked_repeatedly_is_reported_once_a_second(blocker, clock):
    blockade = [(5, 0.05), (5, 0.101), (0, 0.15)]

    def later(core):
        clock.now += 1.0

    monitor, core, _ = watched(blocker, [*blockade * 4, (5, 0.05, later), *blockade[1:]])
    monitor._run()
    assert logged(core) == ["the hub has been blocked for 0.101 s", "the hub was blocked for 0.150 s"] * 2
    assert "since the last report" not in core.logged[0][1]
    assert core.logged[2][1].endswith("\n  and 3 times since the last report, for 0.450 s in all")
    # One that stays blocked is reported when the second is over.
    monitor, core, _ = watched(blocker, [*blockade, (5, 0.05), (5, 0.101), (5, 0.201, later), (0, 3.0)])
    monitor._run()
    assert logged(core)[2:] == ["the hub has been blocked for 0.201 s", "the hub was blocked for 3.000 s"]


def test_calls_that_hold_the_interpreter_are_reported_once_a_second(blocker, clock):
    monitor, core, _ = watched(blocker, [(5, 0.4), (0, 0.401, next_begins)] * 3)
    monitor._run()
    [(_, text)] = core.logged
    assert text.splitlines()[-1].startswith("  meanwhile no other thread of the process runs: run the call ")


@pytest.mark.parametrize(
    "answers",
    [
        [(5, 0.05), (0, 0.08)],
        # Busy with many greenlets.
        [(5, 0.05), *[(5, 0.1 * step, next_begins) for step in range(1, 9)], (0, 0.9)],
        # The wakeup was answered before the monitor ran.
        [(5, 0.2), (0, 0.056, next_begins)],
    ],
    ids=["in time", "busy", "late monitor"],
)
def test_a_hub_that_answers_is_not_reported(blocker, answers):
    monitor, core, _ = watched(blocker, answers)
    monitor._run()
    assert not core.logged


def test_a_block_after_a_busy_time_is_measured_from_its_own_start(blocker):
    monitor, core, _ = watched(blocker, [(5, 0.05), (5, 0.1, next_begins), (5, 0.201), (0, 0.401)])
    monitor._run()
    assert logged(core) == ["the hub has been blocked for 0.101 s", "the hub was blocked for 0.301 s"]


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        # Seen by the delay of the monitor itself, and between two checks.
        ([(5, 2.5), (0, 2.501, next_begins)], "2.501"),
        ([(5, 0.05), (5, 1.5, next_begins), (0, 1.51)], "1.510"),
    ],
)
def test_a_call_that_holds_the_interpreter_is_reported_afterwards(blocker, answers, seconds):
    monitor, core, _ = watched(blocker, answers)
    monitor._run()
    [(level, text)] = core.logged
    assert level == "warning"
    assert text.startswith(
        f"the hub was blocked for {seconds} s by a greenlet of the application, in a call that held the interpreter, "
        "which is at (innermost first)\n  File "
    )
    assert "in blocks" in text


@pytest.mark.parametrize(
    ("of_thread", "delay", "answers", "reports"),
    [
        # The hub gets no processor; it computes; the monitor gets none.
        ([(True, 5.0)] * 4, [], [(5, 0.05), (5, 0.1), (5, 0.2), (0, 0.25)], 0),
        ([(True, 5.0), *[(True, 6.0)] * 3], [], [(5, 0.05), (5, 0.1), (0, 0.25)], 2),
        ([(False, 5.0)] * 9, [1.0, 3.4], [(5, 2.5), (0, 2.501, next_begins)], 0),
    ],
)
def test_time_without_a_processor_is_not_reported(blocker, kernel, of_thread, delay, answers, reports):
    kernel.of_thread, kernel.delay = list(of_thread), list(delay)
    monitor, core, _ = watched(blocker, answers)
    monitor._run()
    assert len(core.logged) == reports


def test_what_the_kernel_says_of_this_thread():
    while scheduling.of_thread(threading.get_native_id())[1] == 0:
        sum(range(100_000))
    assert scheduling.of_thread(threading.get_native_id())[0]
    assert scheduling.of_thread(0) == (False, 0.0)
    assert scheduling.delay() >= 0


@pytest.mark.parametrize(("request_id", "shown"), [(None, "request 17"), ("abc", "request 17, id abc")])
def test_the_request_that_runs_is_named(blocker, request_id, shown):
    running = greenlet(lambda: None)  # no frame of its own, as the one that runs has none
    monitor, core, _ = watched(blocker, [(5, 0.05), (5, 0.1), (0, 0.3)], greenlets={3: running, 4: greenlet()})
    core.running[3] = (17, test_the_request_that_runs_is_named)
    core.request_id = request_id
    monitor._run()
    assert core.logged[1][1].endswith(f" by GET /test_the_request_that_runs_is_named ({shown})")


def test_a_callback_of_the_hub_is_named(blocker, monkeypatch):
    frame = SimpleNamespace(f_back=None, f_code=Hub.run.__code__, f_lineno=1)
    monitor, core, _ = watched(blocker, [(5, 0.05), (5, 0.1), (0, 0.3)])
    monkeypatch.setattr(monitor, "_stack", lambda: "  (no Python code)")
    monkeypatch.setattr(sys, "_current_frames", lambda: {blocker: frame})
    monitor._run()
    assert core.logged[1][1].endswith(" by a callback of the hub")


def test_a_request_that_keeps_the_hub_is_ended_at_its_deadline_and_named_once(blocker):
    running = greenlet()
    late = (3, 17, "GET /x", 2.0, "the response is 504")
    monitor, core, named = watched(blocker, [], greenlets={3: running})
    core.running[3] = (17, watched)
    interrupted = []
    core.interrupt = lambda *which: interrupted.append(which) or True
    core.answers = [(5, 0.05), (5, 0.1), (5, 0.3, lambda core: core.overdue_now.append(late)), (5, 0.6), (0, 0.7)]
    monitor._run()
    assert interrupted == [(3, 17, running)], "the next time after a second"
    assert named == {17}
    [text] = [text for level, text in core.logged if level == "error"]
    assert "RequestTimeout is raised in its greenlet, which is at\n" in text
    assert "in blocks" in text


def test_a_request_that_another_one_keeps_from_its_deadline_is_left_to_the_hub(blocker):
    monitor, core, named = watched(blocker, [(5, 0.05), (5, 0.1), (0, 0.7)], greenlets={3: greenlet()})
    core.overdue_now = [(3, 17, "GET /x", 2.0, "the response is 504")]
    core.interrupt = lambda *which: False
    monitor._run()
    assert not named
    assert not [text for level, text in core.logged if level == "error"]


def test_a_monitor_that_fails_says_so_and_ends(blocker):
    monitor, core, _ = watched(blocker, [(5, 0.05, lambda core: 1 // 0)])
    monitor._run()
    [(level, text)] = core.logged
    assert level == "error"
    said = "the hub monitor ended with an exception, so a blocked hub is no longer logged; please report it\n"
    assert text.startswith(f"{said}Traceback")
    assert monitor._over.acquire(timeout=0)


def test_the_thread_ends_with_the_server_and_pings_eight_times_within_the_limit():
    monitor, core, _ = watched(0, [])
    monitor._over.release()
    monitor.start()
    monitor.join(30)
    assert core.ping == WARN / 8
    assert monitor._over.acquire(timeout=0)
