"""`tailrace doctor --live --memory`, without memray: what happens when it cannot attach."""

import sys

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
    status = memory.Path(f"/proc/{debugger}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_memray_says_is_the_reason(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho first\necho 'no debugger' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(memory.MemoryUnknown, match="memray cannot attach to process 1: no debugger"):
        memory._attach(1, tmp_path / "file", 1.0)
