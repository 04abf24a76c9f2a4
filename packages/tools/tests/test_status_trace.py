"""The command that `tailrace trace` runs: which files and functions it names. bpftrace itself is in test_trace.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.tools import need_tool
from tailrace_tools.live import trace

import tailrace

EXTENSION = tailrace._tailrace.__file__


@pytest.fixture
def other():
    """A Python without Tailrace."""
    code = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def test_each_script_gets_the_extension_of_the_process():
    for script in trace.SCRIPTS:
        for pid in (None, os.getpid()):
            line = trace.command(script, pid, 0.25)
            assert Path(line[3]).name == f"{script}.bt" and Path(line[3]).exists()
            assert line[4:6] == [EXTENSION, str(pid or 0)]
            assert line[6:7] == (["250"] if script in trace.OVER else [])


def test_the_scripts_are_those_of_the_table():
    assert {path.stem for path in trace._FOLDER.iterdir()} == set(trace.SCRIPTS)


def test_gil_names_functions_that_this_python_has():
    python, *functions = trace.command("gil", None, 1.0)[7:]
    symbols = subprocess.run([need_tool("readelf"), "-sW", python], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in symbols.splitlines() if " FUNC " in line}
    assert len(functions) == 2 and set(functions) <= names


@pytest.mark.parametrize("names", [["take_gil", "drop_gil"], ["x_take_gil"], ["take_gil_of"]])
def test_a_python_without_symbols_is_watched_by_its_exported_functions(tmp_path, monkeypatch, names):
    python = tmp_path / "libpython3.so"
    python.write_bytes(b"\x7fELF\0" + b"".join(name.encode() + b"\0" for name in names))
    mapped = trace._mapped
    monkeypatch.setattr(
        trace, "_mapped", lambda pid, name: str(python) if name is trace._LIBRARY else mapped(pid, name)
    )
    has_symbols = "take_gil" in names
    assert trace.command("gil", None, 1.0)[8:] == list(trace.EXACT if has_symbols else trace.EXPORTED)


def test_a_process_that_is_no_server_is_refused(other):
    with pytest.raises(trace.TraceError, match=f"process {other} is not a Tailrace server"):
        trace.command("latency", other, 0.1)
    with pytest.raises(trace.TraceError, match="process 4194305 does not exist"):
        trace.command("latency", 4194305, 0.1)


def test_a_file_that_was_replaced_is_named(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"7f00-7f01 r-xp 0 08:01 5 {EXTENSION} (deleted)\n")
    with pytest.raises(trace.TraceError, match=r"_tailrace.* is not the file that process 7 loaded: restart"):
        trace.command("latency", 7, 0.1)


def test_what_is_missing_is_named_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install bpftrace" in trace.missing()
    (tmp_path / "bpftrace").touch(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "sudo" in trace.missing()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(trace, "_KERNEL", {"/": "all", str(tmp_path / "uprobe"): "uprobes"})
    assert trace.missing() == (
        f"the kernel lacks uprobes: {tmp_path}/uprobe does not exist; in a container, "
        "run the command on the host with --pid"
    )
    monkeypatch.setattr(trace, "_KERNEL", {"/": "all"})
    assert trace.missing() is None


def tailrace_trace(*arguments):
    # Not `python -m tailrace`, which would import the sources from the current directory.
    command = [os.path.join(os.path.dirname(sys.executable), "tailrace"), "trace", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr.splitlines()[:1]


def test_the_command_line_is_printed_or_refused():
    status, printed, _ = tailrace_trace("latency", "--print")
    assert (status, printed.split()[-2:]) == (0, [EXTENSION, "0"])
    refused = "tailrace: error: --over applies only to blocks and gil"
    assert tailrace_trace("latency", "--over", "1s") == (2, "", [refused])
    status, _, (line,) = tailrace_trace("gil", "--over", "soon")
    assert (status, line) == (2, "tailrace: error: --over must be a time in seconds such as 30, 0.5, 500ms or 2m")
    assert tailrace_trace("blocks", "--print", "--over", "2s")[1].split()[-1] == "2000"
