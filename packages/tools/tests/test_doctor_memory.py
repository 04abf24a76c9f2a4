"""`tailrace doctor --live --memory`, without memray: what happens when it cannot attach."""

import sys
import time
from pathlib import Path

import pytest
from tailrace_tools.doctor import memory


def test_a_worker_that_runs_no_python_code_is_given_up_and_leaves_no_process(tmp_path, monkeypatch):
    program = tmp_path / "python"
    # It starts a debugger, which outlives it unless both are ended.
    program.write_text(f"#!/bin/sh\nsleep 300 & echo $! > {tmp_path}/debugger\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(memory, "_ATTACHING", 1.0)
    with pytest.raises(memory.MemoryUnknown, match="so send it requests"):
        memory._attach(1, tmp_path / "file", 1.0)
    debugger = (tmp_path / "debugger").read_text().strip()
    # The kernel closes its files, which ends the wait for it, before it is gone.
    deadline = time.monotonic() + 10
    while _runs(debugger):
        assert time.monotonic() < deadline, f"process {debugger} still runs"
        time.sleep(0.01)


def _runs(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def test_what_memray_says_is_the_reason(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho first\necho 'no debugger' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(memory.MemoryUnknown, match="memray cannot attach to process 1: no debugger"):
        memory._attach(1, tmp_path / "file", 1.0)
