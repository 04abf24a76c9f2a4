"""The threads of workers: states, names, which stack belongs to which request, and how often they are read."""

import re
import threading

import pytest
from harness.pages import DOCS, ROOT, codes, rows
from package.in_status import REQUEST, Board, shared
from package.in_status import worker as told

from tailrace.stacks import process, pyspy, tasks
from tailrace.stacks.pyspy import Frame, Stack, Unreadable
from tailrace.stacks.tasks import Task
from tailrace.status import snapshot, threads

FRAMES = [Frame("app", "/shop.py", 3)]
SLEEPS, RUNS, WANTS = Task("tailrace-0", False, False), Task("tailrace-0", True, False), Task("tailrace-0", False, True)


def taken(*requests, gevent=False):
    board = Board({}, requests=requests)
    return snapshot.take(shared(told(), gevent=gevent), board, lambda: 10.0, with_requests=True)


def shown(before, after, stack, task, **more):
    found = threads.worker(
        taken(*before, **more).workers[0],
        taken(*after, **more).workers[0],
        {42: stack} if stack else {},
        None,
        {42: task} if task else {},
        greenlets=more.get("gevent", False),
    )
    return found["threads"]


@pytest.mark.parametrize(
    ("task", "stack", "request_", "state"),
    [
        (RUNS, Stack(None, True, FRAMES), REQUEST, "running"),
        (RUNS, None, REQUEST, "running"),
        (SLEEPS, Stack(None, False, FRAMES), REQUEST, "waiting"),
        (SLEEPS, Stack(None, True, FRAMES), REQUEST, "waiting"),
        (WANTS, Stack(None, False, FRAMES), REQUEST, "waiting for the interpreter"),
        (SLEEPS, Stack(None, False, []), {**REQUEST, "phase": "sending"}, "sending"),
        (SLEEPS, None, None, "idle"),
        (SLEEPS, Stack(None, False, [Frame("_wait", process.__file__, 3)]), None, "idle"),
        (SLEEPS, Stack("work", False, FRAMES), None, "waiting"),
        (None, None, REQUEST, "unknown"),
    ],
)
def test_states(task, stack, request_, state):
    requests = [request_] if request_ else []
    (found,) = shown(requests, requests, stack, task)
    assert found["state"] == state
    assert state in process.EXPLAINED
    assert found["holds_interpreter"] == (stack.holds_interpreter if stack else None)


def test_a_request_that_began_during_the_read_has_no_stack():
    stack = Stack(None, True, FRAMES)
    (found,) = shown([REQUEST], [REQUEST], stack, RUNS)
    assert [each["function"] for each in found["frames"]] == ["app"]
    (found,) = shown([REQUEST], [{**REQUEST, "id": 8}], stack, RUNS)
    assert (found["request"]["id"], found["frames"]) == (8, [])


def test_the_calls_that_begin_a_thread_are_left_out():
    begin = [Frame("Thread.run", threading.__file__, 9), Frame("work", process.__file__, 1)]
    waits = Frame("Condition.wait", threading.__file__, 5)
    (found,) = shown([REQUEST], [REQUEST], Stack(None, False, [waits, *FRAMES, *begin]), SLEEPS)
    assert [each["function"] for each in found["frames"]] == ["Condition.wait", "app"]


def test_requests_in_greenlets_of_one_thread_are_each_shown():
    requests = [REQUEST, {**REQUEST, "id": 8, "seconds": 2.0, "phase": "sending"}]
    found = shown(requests, requests, Stack("MainThread", True, FRAMES), RUNS, gevent=True)
    assert [each["request"] and each["request"]["id"] for each in found] == [8, 7, None]
    assert [each["state"] for each in found] == ["sending", "in a greenlet", "running"]
    assert [len(each["frames"]) for each in found] == [0, 0, 1]


def test_names():
    named = [
        # A thread inherits the kernel's name of the one that starts it.
        (Task("tailrace-w1", True, False), Stack("tailrace-0", True, []), "tailrace-0"),
        (Task("tailrace-w1", True, False), Stack("Dummy-1", True, []), "Dummy-1"),
        (Task("tailrace: worke", True, False), Stack("Dummy-1", True, []), "Dummy-1"),
        (Task("tailrace-w1", True, False), None, "tailrace-w1"),
        # The kernel cuts off names.
        (Task("tailrace-certif", True, False), Stack("tailrace-certificates", True, []), "tailrace-certificates"),
        # Threads of the core.
        (Task("tailrace-log", True, False), Stack("Dummy-1", True, []), "tailrace-log"),
        (Task("tailrace-memory", True, False), Stack(None, True, []), "tailrace-memory"),
        (Task("tailrace-alone", False, False), None, "tailrace-alone"),
        (Task("tailrace-w1", True, False), Stack("MainThread", True, []), "MainThread"),
        (Task("python", True, False), Stack("the work", True, []), "the work"),
        (Task("python", True, False), Stack(None, True, []), "python"),
        (None, Stack("Dummy-1", True, []), "Dummy-1"),
        (None, None, ""),
    ]
    assert [process._name(task, stack) for task, stack, _ in named] == [name for *_, name in named]


def test_the_table_has_the_threads_of_workers():
    core, package = ROOT / "crates", ROOT / "tailrace"
    native = re.compile(r'(?:\.name\((?:String::from\()?|\bstart\(|name_thread\()"(tailrace-[a-z]+)"')
    named = {
        name[:15]
        for path in [*core.glob("*/src/**/*.rs"), *package.glob("**/*.py")]
        for name in native.findall(path.read_text())
    }
    python = re.compile(r'name="(tailrace-[a-z]+)"')
    named |= {name for path in package.glob("worker/*.py") for name in python.findall(path.read_text())}
    assert {"tailrace-alone", "tailrace-leavin", "tailrace-watch", "tailrace-warmup"} <= named
    table = [name for row in rows(DOCS / "status.md", "threads") for name in codes(row[0])]
    assert sorted(table) == sorted(named)


def test_text_has_a_block_for_each_thread():
    requests = [REQUEST]
    worker = threads.worker(
        taken(*requests).workers[0],
        taken(*requests).workers[0],
        {42: Stack(None, True, FRAMES)},
        None,
        {42: RUNS, 43: Task("tailrace-1", False, False)},
        greenlets=False,
    )
    assert process.text([worker]) == (
        "worker 1, process 101: 2 threads: 1 running, 1 idle\n"
        "  thread 42 tailrace-0: running, holds the interpreter\n"
        "    GET /a (id abc) from ::1, for 1.250 s\n"
        "      app (/shop.py:3)\n"
        "  thread 43 tailrace-1: idle\n"
    )
    assert "no stacks: why\n" in process.text([{**worker, "error": "why"}])


def test_what_a_thread_of_a_process_does_is_not_known_without_its_stack(monkeypatch):
    def read(pid, timeout):
        raise Unreadable("not here")

    monkeypatch.setattr(pyspy, "read", read)
    monkeypatch.setattr(tasks, "tasks", lambda pid: {42: SLEEPS, 43: RUNS, 44: WANTS})
    found = process.of_process(1, 101)
    assert {each["thread"]: each["state"] for each in found["threads"]} == {
        42: "unknown",
        43: "running",
        44: "waiting for the interpreter",
    }
    assert "use `tailrace threads --status ADDRESS`" in found["note"]
    # A stack that can be read tells.
    monkeypatch.setattr(pyspy, "read", lambda pid, timeout: {42: Stack(None, False, [])})
    assert process.of_process(1, 101)["threads"][-1]["state"] == "idle"


@pytest.fixture
def reads(monkeypatch):
    """The processes that were read."""
    found = []

    def read(pid, timeout):
        found.append(pid)
        raise Unreadable("not here")

    monkeypatch.setattr(pyspy, "read", read)
    return found


def test_what_was_read_is_the_answer_for_a_while(reads, monkeypatch):
    reader = threads.Reader()
    first = reader.read(taken(REQUEST), taken)
    assert first[0]["error"] == "not here"
    assert reader.read(taken(REQUEST), taken) == first
    assert reads == [101]
    monkeypatch.setattr(threads, "AGE", 0.0)
    reader.read(taken(REQUEST), taken)
    assert reads == [101, 101]


def test_only_the_worker_that_was_asked_for_is_read(reads):
    reader = threads.Reader()
    before = snapshot.take(shared(told(1), told(2)), Board({}, {}), lambda: 10.0, with_requests=True)
    assert [each["number"] for each in reader.read(before, lambda: before, 102)] == [2]
    assert reads == [102]


def test_workers_that_there_is_no_time_for_are_named(reads, monkeypatch):
    monkeypatch.setattr(threads, "BUDGET", 0.0)
    (found,) = threads.Reader().read(taken(REQUEST), lambda: taken(REQUEST))
    assert found["error"].startswith("not read: ")
    assert [each["request"]["id"] for each in found["threads"]] == [7]
    assert reads == []


def test_one_read_goes_on_at_a_time(monkeypatch):
    monkeypatch.setattr(threads, "AGE", 0.01)
    begun, go_on = threading.Event(), threading.Event()

    def read(pid, timeout):
        begun.set()
        assert go_on.wait(30)
        return {}

    monkeypatch.setattr(pyspy, "read", read)
    reader = threads.Reader()
    other = threading.Thread(target=reader.read, args=(taken(), taken))
    other.start()
    assert begun.wait(30)
    with pytest.raises(threads.Busy):
        reader.read(taken(), taken)
    go_on.set()
    other.join()
