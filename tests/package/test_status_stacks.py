"""Reading the stacks of a process: what py-spy prints, and what is said when it cannot."""

import json
import os
import threading

import pytest

from tailrace.stacks import pyspy
from tailrace.stacks.pyspy import Frame, Stack, Unreadable

PRINTED = {
    "pid": 7,
    "thread_id": 1,
    "thread_name": "work",
    "os_thread_id": 8,
    "active": True,
    "owns_gil": True,
    "frames": [{"name": "Shop.sell", "filename": "/shop.py", "short_filename": "shop.py", "line": 3}],
}


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """Makes a program that does this in place of py-spy."""

    def make(script):
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(pyspy, "program", lambda: str(path))

    return make


def test_what_it_prints_is_read_by_the_kernels_number(py_spy):
    py_spy(f"echo '{json.dumps([PRINTED])}'")
    assert pyspy.read(7) == {8: Stack("work", True, [Frame("Shop.sell", "/shop.py", 3)])}
    (found,) = pyspy.as_json(pyspy.read(7)[8])
    assert found == {"function": "Shop.sell", "file": "/shop.py", "line": 3}


def test_a_thread_without_a_number_is_found_by_the_c_library():
    """So it is with Python 3.10."""
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append((threading.get_ident(), threading.get_native_id())))
    thread.start()
    thread.join()
    assert pyspy._number(os.getpid(), threading.get_ident()) == threading.get_native_id()
    assert pyspy._number(os.getpid(), 0) is None


def test_a_read_that_fails_once_is_tried_again(py_spy, tmp_path):
    py_spy(f"mkdir {tmp_path}/once 2>/dev/null && exit 1; echo '[]'")
    assert pyspy.read(os.getpid()) == {}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'Error: Failed to find a python version' >&2; exit 1",
            "cannot read process %d: Failed to find a python",
        ),
        ("echo 'Permission Denied: Try running again' >&2; exit 1", "no permission to read the memory of process %d"),
        ("exit 3", "py-spy cannot read process %d: exit status 3"),
        ("echo '[{}]'", "cannot understand the output of py-spy"),
        ("echo nothing", "cannot understand the output of py-spy"),
        ("exec sleep 60", "py-spy did not read process %d within 0.1 s"),
    ],
)
def test_why_it_could_not_read_is_one_line(py_spy, script, said):
    py_spy(script)
    with pytest.raises(Unreadable) as raised:
        pyspy.read(os.getpid(), 0.1 if "sleep" in script else 10)
    assert (said % os.getpid() if "%" in said else said) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_process_that_has_ended_is_named(py_spy):
    py_spy("exit 1")
    with pytest.raises(Unreadable, match="process 4194305 has ended"):
        pyspy.read(4194305)


def test_without_py_spy_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(pyspy, "program", lambda: None)
    with pytest.raises(Unreadable, match=r"pip install 'tailrace\[status\]'"):
        pyspy.read(os.getpid())


def test_the_program_is_that_of_this_environment():
    assert os.access(pyspy.program(), os.X_OK)
