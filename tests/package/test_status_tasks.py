"""The threads of a process as the kernel shows them."""

import subprocess
import sys
import time

import pytest

from tailrace.stacks import tasks
from tailrace.stacks.tasks import Task

# A thread keeps the interpreter in a call that sleeps; another one wants it; a third waits for a lock.
PROGRAM = """
import ctypes, threading
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lock.acquire).start()
print(threading.get_native_id(), flush=True)
keeps = threading.Thread(target=lambda: (print(threading.get_native_id(), flush=True), ctypes.PyDLL(None).sleep(3600)))
keeps.start()
while True:
    sum(range(1000))
"""


def test_one_that_wants_the_interpreter_is_told_from_one_that_waits_for_a_lock():
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE)
    try:
        wants, keeps = (int(process.stdout.readline()) for _ in range(2))
        until = time.monotonic() + 30
        while not tasks.tasks(process.pid)[wants].waits_for_interpreter:
            assert time.monotonic() < until, tasks.tasks(process.pid)
            time.sleep(0.01)
        found = tasks.tasks(process.pid)
        assert len(found) == 3
        assert [number for number, each in found.items() if each.waits_for_interpreter] == [wants]
        assert not found[keeps].runs
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# What the kernel says of a thread, look by look, with the processor time that it has used by then.
AWAKE, WANTS, SLEEPS = Task("a", True, False), Task("a", False, True), Task("a", False, False)


@pytest.mark.parametrize(
    ("looks", "shown"),
    [
        # On a busy machine a thread that has woken waits for a processor. One that wants the interpreter wakes often.
        ([(AWAKE, 0), (AWAKE, 0), (AWAKE, 20_000), (WANTS, 40_000)], WANTS),
        ([(AWAKE, 0), (AWAKE, 0), (SLEEPS, 40_000)], SLEEPS),
        ([(AWAKE, 0), (AWAKE, 0), (AWAKE, 1_500_000), (WANTS, 1_500_000)], AWAKE),
        ([(AWAKE, 0), (AWAKE, 0), (None, 0)], AWAKE),
        ([(WANTS, 0), (AWAKE, 0)], WANTS),
        # As where the kernel does not tell the time.
        ([(AWAKE, 0)] * 1000, AWAKE),
    ],
)
def test_a_thread_that_wakes_for_a_moment_does_not_run(monkeypatch, looks, shown):
    coming, seen = iter(looks), []

    def look(pid, number, ranges):
        seen.append(next(coming))
        return seen[-1][0]

    monkeypatch.setattr(tasks, "_task", look)
    monkeypatch.setattr(tasks, "_processor_time", lambda pid, number: seen[-1][1])
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert tasks.tasks(process.pid) == {process.pid: shown}
        finally:
            process.kill()


def test_a_thread_that_computes_runs_and_has_its_name():
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as process:
        try:
            assert tasks.tasks(process.pid) == {process.pid: Task("sh", True, False)}
        finally:
            process.kill()


def test_a_process_that_has_ended_has_none():
    assert tasks.tasks(4194305) == {}
