"""Who used the server's core."""

from __future__ import annotations

import os
from typing import cast

from tailrace.compare import machine
from tailrace.compare.launch import Server, processor_seconds
from tailrace.compare.use import Use, watched


class Process:
    """In a server's place: this process."""

    def processor_seconds(self) -> float:
        return processor_seconds(os.getpid())


def test_the_shares_are_parts_of_the_time_by_the_clock() -> None:
    assert Use(2.0, 1.0, 0.5).told() == "server 50% of its core, other processes 25%"
    assert Use().told() == ""


def test_what_the_server_works_is_its_own() -> None:
    with watched(cast(Server, Process())) as use:
        # Until the clock, which counts in nanoseconds, has seen some of it.
        sum(range(1_000_000))
    assert use.server > 0
    assert use.others >= 0


def test_every_core_has_been_idle_at_some_time() -> None:
    assert all(machine.idle_seconds(core) > 0 for core in (machine.SERVER_CORE, machine.LOAD_CORE))
