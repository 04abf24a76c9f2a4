"""What a waiting thread waits for, of real threads."""

import subprocess
import sys
import time

import pytest

from tailrace.stacks import tasks, waits

# Each waits in its own way, in the main thread of a program.
WAITS = {
    "sleep": "time.sleep(3600)",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "socket": "one, other = socket.socketpair(); one.recv(1)",
    "pipe": "read, write = os.pipe(); os.read(read, 1)",
    "events": "select.epoll().poll()",
    "process": "process = subprocess.Popen(['cat'], stdin=subprocess.PIPE); process.wait()",
    "file lock": "files = [open(sys.argv[1], 'a') for _ in 'ab']; [fcntl.flock(each, fcntl.LOCK_EX) for each in files]",
}
# With a timeout Python asks `poll` first, which has the descriptor in memory.
TIMED = "one, other = socket.socketpair(); one.settimeout(3600); one.recv(1)"
MODULES = "import fcntl, os, select, socket, subprocess, sys, threading, time"


@pytest.mark.parametrize(("kind", "code"), [*WAITS.items(), ("socket", TIMED)])
def test_the_system_call_tells_what_a_thread_waits_for(tmp_path, kind, code):
    command = [sys.executable, "-c", f"{MODULES}\nprint(flush=True)\n{code}", str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            process.stdout.readline()
            until = time.monotonic() + 30
            while (found := tasks.tasks(process.pid)[process.pid]).waits_for != kind:
                assert time.monotonic() < until, found
                time.sleep(0.01)
            assert not found.runs
        finally:
            process.kill()


def frame(function, file):
    return {"function": function, "file": file, "line": 1}


def test_the_innermost_calls_name_the_lock():
    wait = frame("Condition.wait", "/usr/lib/python3.11/threading.py")
    queue = [wait, frame("Queue.get", "/usr/lib/python3.11/queue.py"), frame("app", "/shop.py")]
    future = [wait, frame("Future.result", "/usr/lib/python3.11/concurrent/futures/_base.py")]
    assert waits.by_stack("lock", queue) == "queue"
    assert waits.by_stack("lock", future) == "future"
    assert waits.by_stack("lock", [wait, frame("get", "/shop.py")]) == "lock"
    assert waits.by_stack("lock", []) == "lock"
    # What is deep in the stack is not what it waits in.
    assert waits.by_stack("lock", [*[frame("app", "/shop.py")] * 5, queue[1]]) == "lock"
    assert waits.by_stack("socket", queue) == "socket"
    assert waits.by_stack(None, queue) is None


def test_what_the_kernel_does_not_tell_is_unknown():
    for said in ([], ["running"], ["99999", "0x0", "0x0", "0x0"], ["-1", "0x0", "0x0"]):
        assert waits.by_call(1, said) is None
