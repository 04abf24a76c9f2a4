"""What is read from strace's summary."""

import os
from pathlib import Path

import pytest
from tailrace_compare import strace

SUMMARY = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.006000           3      2001           epoll_wait
 40.00    0.004000           2      2003         3 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.010000           2      4004         3 total
"""


def test_calls_are_counted_with_and_without_errors() -> None:
    assert strace.read(SUMMARY) == {"recvfrom": 2003, "epoll_wait": 2001}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('echo "strace: attach: ptrace(PTRACE_SEIZE): Operation not permitted" >&2; exit 1', "Operation not permitted"),
        # The process that it is to attach to is the last word.
        ('for pid; do :; done; echo "strace: Process $pid attached" >&2; exec sleep 60', ""),
    ],
    ids=["forbidden", "allowed"],
)
def test_whether_strace_may_attach_is_tried(
    lines: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "strace"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = strace.hindrance()
    assert found.endswith(why)
    assert bool(found) == bool(why)
