"""Molds as the master sees them: how it learns that workers have ended."""

import os
import socket
import time

import pytest

from tailrace.master.mold import Mold, Molds
from tailrace.master.workers import Worker


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


def a_mold(pid):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return Mold(Worker(0, -1, 0, pid, time.monotonic()), ours), theirs


def began(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def test_an_orphan_that_ended_before_the_master_had_looked_at_it_is_not_waited_for(child):
    """Its mold was killed while it forked: the worker ends with it, at once."""
    mold, theirs = a_mold(os.getpid())
    molds = Molds(lambda: mold)
    molds.load()
    molds.adopt()
    mold.children = {child: began(child), 999_999_998: "", 999_999_999: "12345"}
    with theirs:
        assert list(molds.ended_workers()) == []
        mold.has_ended = True
        ended = dict(molds.ended_workers())
        assert sorted(ended) == [999_999_998, 999_999_999]
        assert all(each.is_orphan for each in ended.values())
        assert list(mold.children) == [child] and molds.has_orphans
    mold.channel.close()
