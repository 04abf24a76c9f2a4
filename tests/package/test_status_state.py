"""What the master tells the status process, in memory that both share."""

import mmap
import os
import signal

import pytest
from package.in_status import shared, told, worker

from tailrace.status.counts import PHASES
from tailrace.status.state import SharedState


def test_what_is_written_is_read_and_a_change_has_another_number():
    memory = shared(worker(1))
    first, state = memory.read()
    assert state == told(worker(1))
    memory.write(told(worker(1)))
    assert memory.read()[0] == first
    memory.write(told(worker(1), worker(2), restarts={"crash": 1}))
    second, state = memory.read()
    assert second != first
    assert state == told(worker(1), worker(2), restarts={"crash": 1})


def test_every_place_has_room():
    large = {
        "number": 1 << 31,
        "pid": 1 << 31,
        "place": 4095,
        "generation": 1 << 31,
        "since": 1e9 / 3,
        "clock": 5e9 / 3,
    }
    memory = shared(places=4096)
    # Each bucket of each phase has responses.
    bounds = [repr((32 + step) / 32 * 2.0**power) for power in range(-17, 7) for step in range(32)]
    delivered = {phase: dict.fromkeys([*bounds, "128.0", "+Inf", "sum_ns"], 1 << 63) for phase in PHASES}
    ended = dict.fromkeys("abcdef", 1 << 63)
    state = told(*(worker(**large) for _ in range(4096)), ended=ended, delivered=delivered)
    memory.write(state)
    assert memory.read()[1] == state


def test_a_reader_beside_a_writer_reads_whole_values():
    memory = shared(places=64)
    states = [told(*(worker(each) for each in range(1, count))) for count in (2, 60)]
    memory.write(states[0])
    child = os.fork()
    if child == 0:
        try:
            while True:
                for state in states:
                    memory.write(state)
        finally:
            os._exit(1)
    try:
        assert all(memory.read()[1] in states for _ in range(2000))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_master_that_was_killed_while_it_wrote_is_an_error(monkeypatch):
    monkeypatch.setattr("tailrace.status.state._ATTEMPTS", 3)
    monkeypatch.setattr(SharedState, "write", lambda self, state: None)
    memory = shared()
    assert isinstance(memory._memory, mmap.mmap)
    memory._memory[:20] = b"\1" * 16 + b"\0\0\0\0"
    with pytest.raises(OSError, match="not finished writing"):
        memory.read()
