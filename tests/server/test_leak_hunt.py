"""From "memory grows" to the line of code: `tailrace doctor --live --memory`, with memray and gdb."""

import re
import subprocess
import sys
import threading
import time

from harness.addresses import free_address
from harness.operated import Operated
from harness.tools import need_module, need_tool

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
    command = [sys.executable, "-m", "tailrace", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_line_that_leaks_is_found(tmp_path):
    need_module("memray")
    need_tool("gdb")
    (tmp_path / "app.py").write_text(APP)
    at, is_over = free_address(), threading.Event()
    with Operated(tmp_path, "app:app", "--workers", "1", "--status", at.bind) as server:
        server.serves()

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
        server.stop()


def test_what_stands_in_the_way_is_one_line():
    at = free_address()
    wrong = doctor("--memory", "3", "--status", at.bind)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("tailrace: error: --memory needs --live")
    absent = doctor("--live", "--memory", "3", "--status", at.bind)
    assert absent.returncode == 2
    assert "Traceback" not in absent.stderr
