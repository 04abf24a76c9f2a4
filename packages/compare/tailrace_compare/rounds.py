"""The order of measurement: rounds in which every server has a turn, A B C A B C, so that changes in the speed of the
machine affect all servers.

The servers of a scenario run side by side; all but the one that is measured are stopped. A server that fails is
restarted for its next turn. After two failures without a figure, it is abandoned for the scenario.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from tailrace_compare import floor, launch, machine
from tailrace_compare.checks import CheckedCell, Wrong
from tailrace_compare.launch import NotServing, Server
from tailrace_compare.peers import FLOOR, Peer
from tailrace_compare.results import ITERATION, Cell, Column, Sample, columns_for
from tailrace_compare.scenarios.scenario import Ask, Scenario

ABANDONED_AFTER = 2
# What a server does that does not go along.
FAILS = (NotServing, OSError, subprocess.SubprocessError)

Progress = Callable[[str], None]


def admits(scenario: Scenario, peer: Peer) -> bool:
    """Whether a server takes part in this scenario. A second row takes part if its first row does and there are several
    concurrent clients: for a single client, the number of threads does not matter."""
    return scenario.admits(peer) and (scenario.at_once() > 1 or not peer.of)


class Contest:
    """One scenario between its servers."""

    def __init__(self, scenario: Scenario, peers: tuple[Peer, ...], ask: Ask, progress: Progress) -> None:
        self.scenario = scenario
        self.ask = ask
        self.progress = progress
        self.columns = columns_for(scenario.metrics)
        self.running: dict[str, Server] = {}
        self.failures: dict[str, int] = {}
        self.peers = [peer for peer in peers if admits(scenario, peer) and self.takes_part(peer)]
        if scenario.nginx is not None and FLOOR.version() is not None:
            self.peers.append(FLOOR)

    def takes_part(self, peer: Peer) -> bool:
        """A server that is missing, or does not support this, is in the table with the reason and without a figure."""
        reason = ""
        if peer.version() is None:
            reason = "not installed"
        elif self.scenario.over_unix and peer.unix is None:
            reason = "no UNIX socket"
        if reason:
            for column in self.columns.values():
                column.cells.setdefault(peer.name, Cell()).fault(Sample(note=reason))
        return not reason

    def run(self, rounds: int, until: float) -> dict[str, Column]:
        """Runs up to `rounds` rounds, at least one, but none that would probably end after `until`."""
        begun = time.perf_counter()
        try:
            for number in range(rounds):
                taken = time.perf_counter() - begun
                if number and time.perf_counter() + taken / number > until:
                    break
                self.round(number, rounds)
        finally:
            self.halt_all_but(None)
            launch.stop(list(self.running.values()))
        return self.columns

    def halt_all_but(self, turn: Server | None) -> None:
        """Stops the servers that are not being measured, because not all are idle without requests (socketify polls on
        the shared core). None: lets all continue."""
        for server in self.running.values():
            goes_on = turn is None or server is turn
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(server.process.pid, signal.SIGCONT if goes_on else signal.SIGSTOP)

    def round(self, number: int, rounds: int) -> None:
        if self.scenario.generator is not None:
            self.progress(f"round {number + 1} of {rounds}: the floor")
            values = self.scenario.floor_values(floor.measure(self.scenario.generator))
            self.note(ITERATION, Sample(values), number)
        if not self.scenario.fresh:
            self.start_missing(f"round {number + 1} of {rounds}: starting")
        # Another one begins each round: whoever follows a server meets what that one has left of the machine.
        first = number % max(1, len(self.peers))
        for peer in self.peers[first:] + self.peers[:first]:
            if self.failures.get(peer.name, 0) < ABANDONED_AFTER:
                self.progress(f"round {number + 1} of {rounds}: {peer.name}")
                self.turn(peer, number)

    def start_missing(self, what: str) -> None:
        """Starts the servers that do not run, all at once, and waits for them. Otherwise, the first turn would be
        measured while the others still load on the same core. A server that does not start is reported at its turn."""
        self.progress(what)
        for peer in self.peers:
            if peer.name not in self.running and self.failures.get(peer.name, 0) < ABANDONED_AFTER:
                with contextlib.suppress(*FAILS):
                    self.running[peer.name] = self.server(peer)
        for server in self.running.values():
            if server.ready_after is None:
                with contextlib.suppress(*FAILS):
                    server.wait_until_ready()
                    self.check_body(server)

    def server(self, peer: Peer) -> Server:
        scenario = self.scenario
        extra = scenario.extra(peer)
        cores = len(machine.CORES) if scenario.all_cores else None
        return Server(peer, scenario.app, scenario.over_unix, scenario.many, extra, scenario.place, cores)

    def turn(self, peer: Peer, number: int) -> None:
        """One round of one server."""
        try:
            if peer.name not in self.running:
                self.running[peer.name] = self.server(peer)
            server = self.running[peer.name]
            self.halt_all_but(server)
            if server.ready_after is None:
                server.wait_until_ready()
                self.check_body(server)
            elif not server.answers():
                raise NotServing("no longer responds")
            sample = self.scenario.measure(server, self.ask)
        except FAILS as error:
            sample = Sample(errors=1, note=f"{error}{self.fate(peer)}")
        self.note(peer.name, sample, number)
        if not sample.values:
            self.failures[peer.name] = self.failures.get(peer.name, 0) + 1
        if (self.scenario.fresh or not sample.values) and (over := self.running.pop(peer.name, None)):
            over.stop()

    def fate(self, peer: Peer) -> str:
        """The exit status of a server that has ended, to append to an error."""
        server = self.running.get(peer.name)
        ended = server.process.poll() if server is not None else None
        return f"; ended with status {ended}: {server.last_words()}" if server is not None and ended is not None else ""

    def check_body(self, server: Server) -> None:
        """Raises Wrong for an incorrect response, OSError without a response. The server's turn reports it; after an
        incorrect response, it is the last turn."""
        name = server.peer.name
        for column in self.columns.values():
            column.cells[name] = CheckedCell.of(column.cells.get(name))
        try:
            self.scenario.check(server)
        except (Wrong, OSError) as error:
            server.ready_after = None
            if isinstance(error, Wrong):
                self.failures[name] = ABANDONED_AFTER - 1
            raise

    def note(self, name: str, sample: Sample, number: int) -> None:
        for key, column in self.columns.items():
            if name == ITERATION and key not in sample.values:
                continue
            cell = column.cells.setdefault(name, Cell())
            cell.add(number, sample.values.get(key), sample)
