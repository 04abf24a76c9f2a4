"""When a worker counts as hung, without a process: time and heartbeats are arguments."""

import pytest

from tailrace.master.hang import LEAST, MOST_PER_LOOK, Watch

TIMEOUT = 30.0


def told(watch, signs, every=1.0, now=0.0):
    """What it says at the last of these looks; it says nothing before."""
    for heartbeat, asked in signs:
        said = watch.hangs(now, heartbeat, asked)
        now += every
        if said:
            break
    return said, now - every


def test_a_heart_that_stands_still():
    said, when = told(Watch(TIMEOUT, 0.0), [(5, None)] * 100)
    assert (said, when) == ("has given no heartbeat for 30 s (--hang-timeout)", TIMEOUT)


def test_a_heart_that_never_beat():
    assert told(Watch(TIMEOUT, 0.0), [(0, None)] * 100)[1] == TIMEOUT


def test_an_interpreter_that_is_never_released_counts_as_a_hang():
    said, when = told(Watch(TIMEOUT, 0.0), [(look, 7) for look in range(100)])
    assert (said, when) == ("has a thread that has held the interpreter for 30 s (--hang-timeout)", TIMEOUT)


def test_a_worker_that_lives():
    assert told(Watch(TIMEOUT, 0.0), [(look, None) for look in range(100)])[0] == ""
    # A long computation: asked again and again, and answered.
    assert told(Watch(TIMEOUT, 0.0), [(look, look // 2) for look in range(100)])[0] == ""
    # Heartbeats with long pauses.
    assert told(Watch(TIMEOUT, 0.0), [(look // 29, None) for look in range(300)])[0] == ""


@pytest.mark.parametrize("asked", [None, 7])
def test_a_machine_that_slept_counts_as_one_look(asked):
    watch = Watch(TIMEOUT, 0.0)
    assert watch.hangs(0.0, 1, asked) == ""
    assert watch.hangs(3600.0, 1, asked) == ""
    assert watch.hangs(3600.0 + TIMEOUT - MOST_PER_LOOK, 2, None) == ""


@pytest.mark.parametrize("asked", [None, 7])
def test_a_pause_of_all_processes_is_no_hang_whatever_the_timeout(asked):
    """The worker's next heartbeat was due when all stood still, and the master may look first afterwards."""
    watch = Watch(LEAST, 0.0)
    assert told(watch, [(5, asked)] * 6, every=0.25) == ("", 1.25)
    assert watch.hangs(3600.0, 5, asked) == ""


def test_a_timeout_shorter_than_a_few_heartbeats_is_as_long_as_those():
    assert told(Watch(0.1, 0.0), [(5, None)] * 100, every=0.25)[1] == LEAST


def test_0_is_never():
    assert told(Watch(0.0, 0.0), [(5, 7)] * 10_000, every=2.0)[0] == ""
