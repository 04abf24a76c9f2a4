"""When a worker counts as hung, without a process: time and heartbeats are arguments."""

import pytest

from tailrace.master.hang import MAX_PER_LOOK, MIN_TIMEOUT, Watch

TIMEOUT = 30.0
STILL = "has given no heartbeat for {:.0f} s (--hang-timeout)"
HELD = "has a thread that has held the interpreter for 30 s (--hang-timeout)"


def told(watch, signs, every=1.0, now=0.0):
    """What it says at the last of these looks; it says nothing before."""
    for heartbeat, asked in signs:
        said = watch.hangs(now, heartbeat, asked)
        now += every
        if said:
            break
    return said, now - every


@pytest.mark.parametrize(
    ("timeout", "signs", "every", "said", "when"),
    [
        # A heart that stands still, or never beat.
        (TIMEOUT, [(5, None)] * 100, 1.0, STILL.format(30), TIMEOUT),
        (TIMEOUT, [(0, None)] * 100, 1.0, STILL.format(30), TIMEOUT),
        # An interpreter that is never released.
        (TIMEOUT, [(look, 7) for look in range(100)], 1.0, HELD, TIMEOUT),
        # A timeout shorter than a few heartbeats is as long as those.
        (0.1, [(5, None)] * 100, 0.25, STILL.format(MIN_TIMEOUT), MIN_TIMEOUT),
        # A worker that lives; one that computes for long, is asked again and again, and answers; one with long pauses.
        (TIMEOUT, [(look, None) for look in range(100)], 1.0, "", 99.0),
        (TIMEOUT, [(look, look // 2) for look in range(100)], 1.0, "", 99.0),
        (TIMEOUT, [(look // 29, None) for look in range(300)], 1.0, "", 299.0),
        # 0 is never.
        (0.0, [(5, 7)] * 10_000, 2.0, "", 19_998.0),
    ],
)
def test_a_worker_without_signs_of_life_hangs(timeout, signs, every, said, when):
    assert told(Watch(timeout, 0.0), signs, every) == (said, when)


@pytest.mark.parametrize("asked", [None, 7])
def test_a_machine_that_slept_counts_as_one_look(asked):
    watch = Watch(TIMEOUT, 0.0)
    assert watch.hangs(0.0, 1, asked) == ""
    assert watch.hangs(3600.0, 1, asked) == ""
    assert watch.hangs(3600.0 + TIMEOUT - MAX_PER_LOOK, 2, None) == ""


@pytest.mark.parametrize("asked", [None, 7])
def test_a_pause_of_all_processes_is_no_hang_whatever_the_timeout(asked):
    """The worker's next heartbeat was due when all stood still, and the master may look first afterwards."""
    watch = Watch(MIN_TIMEOUT, 0.0)
    assert told(watch, [(5, asked)] * 6, every=0.25) == ("", 1.25)
    assert watch.hangs(3600.0, 5, asked) == ""
