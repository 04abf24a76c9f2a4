"""A worker process as its master handles it, with real forks of small children."""

import os
import signal
import socket

import pytest

from tailrace.master import workers
from tailrace.master.workers import READY, Ending, Failure, Worker
from tailrace.worker.fork import fork


def worker(pid, report=-1):
    return Worker(pid, 0.0, report, number=1, place=0, generation=1)


def child(body):
    """A forked child that runs `body(forked)` and exits with what it returns; what the fork gave the parent."""
    forked = fork()
    if forked.pid == 0:
        status = 99
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, forked.mask)
            status = body(forked) or 0
        finally:
            os._exit(status)
    return forked


def ended(pid):
    """How a child ends; waits for it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ((found, ending),) = workers.reaped([pid])
    assert found == pid
    return ending


def speaking(*pieces):
    """A worker whose pipe holds these pieces and then ends."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    spoken = worker(0, reader)
    for piece in pieces:
        os.write(writer, piece)
        yield spoken
    os.close(writer)
    yield spoken


def test_a_worker_that_is_ready_says_so_once():
    forked = child(lambda forked: os.write(forked.pipe, READY) and 0)
    assert ended(forked.pid).is_clean
    made = worker(forked.pid, forked.pipe)
    assert made.read_report()
    assert made.report == -1
    assert not made.read_report()
    assert made.failure is None


def test_a_worker_that_ends_without_a_word():
    *_, spoken = speaking()
    assert not spoken.read_report()
    assert spoken.report == -1
    assert spoken.failure is None


def test_a_failure_comes_whole_however_long_and_in_whatever_pieces():
    failure = Failure("importing shop failed: caf\u00e9", 2, "Traceback\n" + "x" * 200_000)
    said = failure.report()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    spoken = worker(0, reader)
    for start in range(0, len(said), 50_001):
        assert not spoken.read_report()
        os.write(writer, said[start : start + 50_001])
    os.close(writer)
    assert not spoken.read_report()
    assert spoken.failure == failure


def test_a_worker_that_died_while_it_spoke_has_given_no_reason():
    *_, spoken = speaking(Failure("importing shop failed", 1).report()[:20])
    assert not spoken.read_report()
    assert spoken.failure is None


def test_a_worker_begins_with_all_signals_blocked_so_that_none_meets_its_masters_handlers():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(os.getpid()))
    try:
        forked = fork()
        if forked.pid == 0:
            status = 99
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
                pending = signal.SIGUSR1 in signal.sigpending()
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                signal.pthread_sigmask(signal.SIG_SETMASK, forked.mask)
                status = 0 if pending and not heard else 1
            finally:
                os._exit(status)
        os.close(forked.pipe)
        assert ended(forked.pid).exit_status == 0
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(forked.mask)
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_was_printed_before_the_fork_is_printed_once(tmp_path):
    with (tmp_path / "out").open("w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out)
        print("before")
        forked = child(lambda forked: out.flush())
        os.close(forked.pipe)
        ended(forked.pid)
    assert (tmp_path / "out").read_text() == "before\n"


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_process_without_standard_output_forks(stream, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        if stream == "closed":
            stream = (tmp_path / "out").open("w")
            stream.close()
        patch.setattr("sys.stdout", stream)
        forked = child(lambda forked: 0)
    os.close(forked.pipe)
    assert ended(forked.pid).is_clean


def test_only_the_children_that_are_meant_are_reaped():
    ours, others = child(lambda forked: 5), child(lambda forked: 6)
    for each in (ours, others):
        os.close(each.pipe)
        os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOWAIT)
    assert [(pid, ending.exit_status) for pid, ending in workers.reaped([ours.pid])] == [(ours.pid, 5)]
    assert os.waitpid(others.pid, 0) == (others.pid, 6 << 8)


def test_a_child_that_lives_is_not_reaped():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        living = child(lambda forked: theirs.recv(1) and 0)
        os.close(living.pipe)
        assert list(workers.reaped([living.pid])) == []
        ours.send(b"x")
        assert ended(living.pid).is_clean


def test_a_child_that_other_code_has_reaped_counts_as_ended():
    forked = child(lambda forked: 0)
    os.close(forked.pipe)
    os.waitpid(forked.pid, 0)
    ((pid, ending),) = workers.reaped([forked.pid])
    assert pid == forked.pid
    assert (ending.exit_status, ending.exit_signal, ending.is_clean) == (None, None, False)
    assert "other code has reaped it" in str(ending)


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (0, "exited with status 0"),
        (3 << 8, "exited with status 3"),
        (signal.SIGSEGV, "was killed by SIGSEGV"),
        (signal.SIGSEGV | 0x80, "was killed by SIGSEGV (core dumped)"),
        (signal.SIGKILL, "was killed by SIGKILL"),
        (40, "was killed by signal 40"),
    ],
)
def test_how_a_worker_ended_in_words(status, shown):
    assert str(Ending(status)) == shown


def test_a_signal_reaches_a_worker_and_no_process_after_its_end():
    forked = child(lambda forked: signal.pause())
    os.close(forked.pipe)
    made = worker(forked.pid)
    made.send(signal.SIGKILL)
    assert ended(forked.pid).exit_signal == signal.SIGKILL
    made.send(signal.SIGKILL)


def test_the_memory_of_a_worker():
    assert worker(os.getpid()).resident() > 1 << 20
    forked = child(lambda forked: 0)
    os.close(forked.pipe)
    ended(forked.pid)
    assert worker(forked.pid).resident() == 0
