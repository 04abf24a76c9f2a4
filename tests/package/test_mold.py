"""Molds as the master sees them: how it learns that workers have ended."""

import errno
import os
import socket
import time

import pytest
from harness.settings import server_settings
from package.plan_bench import a_worker

from tailrace.master.mold import _LEFT, Birth, Mold, Molds
from tailrace.master.plan import Plan
from tailrace.worker.mold import LARGEST


@pytest.fixture
def child():
    """A process that lives until the test kills it."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    yield pid
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def began(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def test_an_orphan_that_ended_before_the_master_had_looked_at_it_is_not_waited_for(child):
    """Its mold was killed while it forked: the worker ends with it, at once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    mold = Mold(os.getpid(), 0.0, channel=ours, has_ended=True)
    for pid, since in ((child, began(child)), (999_999_998, ""), (999_999_999, "12345")):
        channel, other = socket.socketpair()
        other.close()
        mold.births[pid] = Birth(a_worker(pid=pid), mold, channel, since)
    with theirs:
        ended = dict(mold.ended())
        assert sorted(ended) == [999_999_998, 999_999_999]
        assert all(each.is_orphan for each in ended.values())
    mold.close()


def test_a_reload_without_workers_whose_mold_cannot_be_forked_is_tried_again(monkeypatch):
    """Otherwise the workers that come next would be forked with the old code."""
    molds = Molds(Plan(1, 4, 1.0), server_settings(), lambda channel, forked: None)
    with socket.socket() as channel:
        molds._current = Mold(os.getpid(), 0.0, channel=channel)
        monkeypatch.setattr(molds, "_start", lambda now: (_ for _ in ()).throw(OSError(errno.EAGAIN, "no process")))
        molds.reload(time.monotonic())
    assert molds.is_reloading
    assert molds.wake_at(time.monotonic()) is not None


def test_the_loop_learns_that_no_mold_listens_any_more_and_waits_for_none(child):
    plan = Plan(1, 4, 1.0)
    plan.stop(100.0)
    molds = Molds(plan, server_settings(), lambda channel, forked: None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    molds._all.append(Mold(child, 0.0, channel=ours))
    with theirs:
        molds.leave(100.0)
        assert theirs.recv(LARGEST) == b'{"leave": true}'
        assert not molds.has_left(100.0)
        assert (molds.descriptors(), molds.wake_at(100.0)) == ([ours.fileno()], 100.0 + _LEFT)
        assert molds.has_left(100.0 + _LEFT), "one that hangs is not waited for"
        theirs.send(b'{"left": true}')
        assert not list(molds.events(100.1))
        assert molds.has_left(100.1)
        assert molds.wake_at(100.1) is None
    molds.close()
