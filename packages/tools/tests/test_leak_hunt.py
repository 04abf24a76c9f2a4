"""From "memory grows" to the line of code: `tailrace doctor --live --memory`, with memray and gdb."""

import re
import threading
import time

import pytest
from harness.addresses import free_address
from harness.operated import Operated, operating
from harness.programs import tailrace
from harness.tools import need_module, need_tool
from tailrace_tools.doctor import memory

APP = """
kept = []

def app(environ, start_response):
    if environ["PATH_INFO"] == "/leak":
        keep(1 << 18)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done"]

def keep(size):
    kept.append(bytearray(size))
"""


def doctor(*arguments):
    return tailrace("doctor", *arguments, timeout=120)


def test_the_line_that_leaks_is_found(tmp_path):
    need_module("memray")
    need_tool("gdb")
    (tmp_path / "app.py").write_text(APP)
    at, is_over = free_address(), threading.Event()
    with operating(tmp_path, "app:app", "--workers", "1", "--status", at.bind) as server:

        def leak():
            while not is_over.is_set():
                server.get("/leak")
                server.get("/")
                time.sleep(0.02)

        client = threading.Thread(target=leak)
        client.start()
        try:
            found = doctor("--live", "--memory", "3", "--status", at.bind)
        finally:
            is_over.set()
            client.join()
        assert found.returncode == 0, found.stderr
        first = re.search(r"^ +(\d+\.\d) MiB  (\S+) in (\w+) ", found.stdout, re.MULTILINE)
        assert first, found.stdout
        line = APP.splitlines().index("    kept.append(bytearray(size))") + 1
        assert (first[2], first[3]) == (f"{tmp_path}/app.py:{line}", "keep")
        assert float(first[1]) > 2
        assert "called at" in found.stdout
        # The worker goes on.
        assert server.get("/").body == b"done"


def test_a_worker_that_memray_cannot_enter_is_left_as_it_was(tmp_path, monkeypatch):
    need_module("memray")
    need_tool("gdb")
    (tmp_path / "app.py").write_text(APP)
    # It runs no Python code.
    monkeypatch.setattr(memory, "_ATTACHING", 5.0)
    with Operated(tmp_path, "app:app", "--workers", "1") as server:
        pid = int(re.search(r"worker 1 \(pid (\d+)\) ready", server.serves().log)[1])
        with pytest.raises(memory.MemoryUnknown, match="the worker must run Python code meanwhile"):
            memory._attach(pid, tmp_path / "allocations", 1.0)
        assert server.get("/").body == b"done"
        server.stop()
        assert "SIGTRAP" not in server.log


def test_what_stands_in_the_way_is_one_line():
    at = free_address()
    wrong = doctor("--memory", "3", "--status", at.bind)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("tailrace: error: --memory needs --live")
    absent = doctor("--live", "--memory", "3", "--status", at.bind)
    assert absent.returncode == 2
    assert "Traceback" not in absent.stderr
