"""`--status`, `--haproxy-agent` and `--otlp-endpoint`, the master's side: the addresses, and the status process, which
is forked, watched and replaced.

The master keeps the listening sockets, so that the process can be replaced, and that a new master (SIGUSR2) gets them.
It tells the process the state of the workers through shared memory. It ends the process by closing a pipe, or by
SIGKILL where that takes too long.

Thread: the master's only one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from tailrace._tailrace import Certificates, Scoreboard
from tailrace.cli import envfile
from tailrace.cli.sampler import sampling
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import BindError
from tailrace.logs import log
from tailrace.master.companion import Process, Supervised
from tailrace.master.workers import Booting, Hung, Killed, Serving, Worker
from tailrace.status import state, tracing
from tailrace.status.state import SharedState, State, WorkerState
from tailrace.system import sockets, status_address
from tailrace.system.status_address import StatusAddress

_BACKLOG: Final = 128
# How much longer than it should a status process may take to export its last traces (seconds).
_SLACK: Final = 1.0
_NO_STACKS: Final = ", without Python stacks, which need `pip install 'tailrace[status]'`"


class Status:
    """The sockets of `--status` and `--haproxy-agent`, by the name of the option, and the process that answers on them
    and exports traces.

    application: its name, for the title. otlp_endpoint: where traces are exported to. scheme: of URLs for which no
    proxy states it.
    """

    def __init__(
        self,
        listeners: dict[str, sockets.Listener],
        application: str,
        otlp_endpoint: str | None = None,
        scheme: str = "http",
    ) -> None:
        self._listeners = listeners
        self._application, self._otlp_endpoint, self._scheme = application, otlp_endpoint, scheme
        self._shared: SharedState | None = None
        # The last state did not fit.
        self._is_full = False
        self._supervised = Supervised("the status process")
        self._was_announced = False

    @property
    def listeners(self) -> list[sockets.Listener]:
        """The sockets."""
        return list(self._listeners.values())

    def descriptors(self) -> list[int]:
        """Descriptors to wait for: readable when the process has ended."""
        return self._supervised.descriptors()

    def wake_at(self) -> float | None:
        """When a process is to be forked; None: one lives, or there is nothing to tell it yet."""
        return self._supervised.wake_at() if self._shared is not None else None

    def publish(self, told: State, places: int) -> None:
        """Tells the process the state."""
        if self._shared is None:
            self._shared = SharedState(told, places)
            return
        try:
            self._shared.write(told)
        except ValueError as error:
            # The master's own work does not depend on it: what was told before stays.
            if not self._is_full:
                log.logger.warning("cannot update the status process: %s", error)
            self._is_full = True
        else:
            self._is_full = False

    def tend(self, board: Scoreboard, now: float, in_child: Callable[[], None]) -> None:
        """Reaps a process that has ended, and forks one when none lives and it is time.

        in_child: called in the process; closes what is the master's.
        """
        if ended := self._supervised.reap(now):
            log.logger.error("the status process (pid %d) %s; replacing it", ended[0].pid, ended[1])
        if self._shared is None or not self._supervised.is_due(now):
            return
        process = self._fork(self._shared, board, now, in_child)
        if process is None or self._was_announced:
            return
        from tailrace.stacks import pyspy

        self._was_announced = True
        for name, listener in self._listeners.items():
            url = listener.shown.removeprefix("http://" if name == "haproxy-agent" else "")
            lacks = _NO_STACKS if name == "status" and pyspy.program() is None else ""
            log.logger.info("%s on %s (process %d)%s", name, url, process.pid, lacks)
        if self._otlp_endpoint is not None:
            log.logger.info("traces to %s (process %d)", self._otlp_endpoint, process.pid)

    def reopen_logs(self) -> None:
        """Has the process open the files of its log again, after a rotation."""
        self._supervised.reopen_logs()

    def _fork(self, shared: SharedState, board: Scoreboard, now: float, in_child: Callable[[], None]) -> Process | None:
        # Here, since a server without a status process does not need it, and before the fork, for further processes.
        from tailrace.status import main

        def work(line: int, master: int, mask: Collection[int]) -> None:
            in_child()
            status, agent = map(self._listeners.get, ("status", "haproxy-agent"))
            name, exporter = self._application, None
            if self._otlp_endpoint is not None:
                exporter = tracing.Exporter(board.traces, self._otlp_endpoint, name, self._scheme)
            main.work(status, agent, shared, board, line, master, mask, name, exporter)

        exports = self._otlp_endpoint is not None
        grace = 2 * main.GRACE + (tracing.LAST + _SLACK) * exports
        return self._supervised.fork(work, now, grace=grace, stays=exports)

    def let_go(self) -> Process | None:
        """The successor answers from now on. The process that is to be reaped once it has ended; None: there is none.

        It finishes its requests. Connections that wait in the queue are the successor's.
        """
        for listener in self.listeners:
            listener.leave_file()
            listener.close()
        process, self._supervised.process, self._shared = self._supervised.process, None, None
        if process is not None:
            process.stop_answering()
        return process

    def close(self) -> None:
        """Ends the process, and the listening."""
        self._supervised.end()
        self._shared = None
        for listener in self.listeners:
            listener.close()

    def forked(self) -> None:
        """In a worker: closes what is the master's."""
        self._supervised.forked()
        for listener in self.listeners:
            listener.socket.close()


def opened(
    settings: ServerSettings, certificates: Certificates | None = None, *, kept: Callable[[str], int | None]
) -> Status | None:
    """Opens the addresses of `--status` and `--haproxy-agent`; None when none is given, or none can be opened, and
    traces are not exported.

    One that cannot be opened is a warning in the log. certificates: for one that is encrypted. kept: as for
    `sockets.bound`. Raises ConfigError for a text that is no address, and where the exporter is not installed.
    """
    endpoint = settings.otlp_endpoint
    if endpoint is not None:
        tracing.check()
        for line in sampling(envfile.environment(settings.env_file))[1]:
            log.logger.warning("--otlp-endpoint: %s", line)
    listeners = {}
    texts = {"status": settings.status, "haproxy-agent": settings.haproxy_agent}
    wanted = {option: status_address.parse(text, option) for option, text in texts.items() if text}
    for option, at in wanted.items():
        listener = _listener(option, at, kept)
        if listener is None:
            continue
        if at.is_encrypted:
            listener.protocol, listener.certificates = "https", certificates
        listeners[option] = listener
    if not listeners and endpoint is None:
        return None
    return Status(listeners, settings.app or "", endpoint, settings.url_scheme)


def _listener(option: str, at: StatusAddress, kept: Callable[[str], int | None]) -> sockets.Listener | None:
    descriptor = kept(str(at.address))
    try:
        if descriptor is not None:
            listener = sockets.take_over(at.address, descriptor, backlog=_BACKLOG)
        else:
            listener = sockets.bind(at.address, backlog=_BACKLOG)
    except BindError as error:
        said = str(error).replace("--bind", f"--{option}")
        log.logger.warning("--%s: %s; the server starts without it", option, said)
        return None
    sockets.keep_from_children([listener], inherited=False)
    return listener


class States:
    """The state of each worker in a word, and since when."""

    def __init__(self) -> None:
        self._known: dict[Worker, WorkerState] = {}

    def of(self, workers: Iterable[Worker]) -> list[WorkerState]:
        """The states of these workers. Call it after each change."""
        now, clock = time.monotonic(), time.time()
        found = {}
        for each in workers:
            name, known = _name(each), self._known.get(each)
            if known is None or name not in (known.state, ""):
                known = WorkerState(
                    each.number, each.pid, each.place, each.generation, name or state.DRAINING, now, clock
                )
            found[each] = known
        self._known = found
        return list(found.values())


def _name(worker: Worker) -> str:
    """The state in a word; empty for a worker that was killed, which stays what it was until it has ended."""
    if isinstance(worker.phase, Killed):
        return ""
    if isinstance(worker.phase, Hung):
        return state.HUNG
    if isinstance(worker.phase, Booting):
        return state.STARTING
    return state.SERVING if isinstance(worker.phase, Serving) else state.DRAINING
