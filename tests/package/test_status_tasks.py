"""The threads of a process as the kernel shows them."""

import os
import subprocess
import sys
import threading
import time

from tailrace.status import tasks

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


def test_a_thread_that_computes_runs_and_has_its_name():
    found = tasks.tasks(os.getpid())
    assert found[threading.get_native_id()].runs
    with open("/proc/thread-self/comm") as name:
        assert found[threading.get_native_id()].name == name.read().strip()


def test_a_process_that_has_ended_has_none():
    assert tasks.tasks(4194305) == {}
