"""A worker: a process that a master forked, from the fork to its end.

It loads the application, serves, and reports once. It ends by SIGTERM (requests in flight are finished), SIGQUIT (at
once), or because its master has ended. Further SIGTERMs change nothing: a service manager may send one to every process
beside the master's. The code never returns into the master's frames: a worker ends as a child of multiprocessing does.

Thread: the main thread.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from tailrace._tailrace import Certificates, Server, end_with_parent, permit_tracing
from tailrace.cli import folders, load
from tailrace.cli.envfile import Variables
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import CANNOT_START, TailraceError
from tailrace.greenlets import patch
from tailrace.logs import log, log_config, log_formats
from tailrace.system import directory, forks, holding, signals, sockets
from tailrace.system.descriptors import is_at_end
from tailrace.system.exit import leave
from tailrace.system.title import set_title
from tailrace.worker import certificates, collecting, core, debug, report
from tailrace.worker.broken import broken
from tailrace.worker.hooks import Hooks, WorkerInfo
from tailrace.worker.report import Failure
from tailrace.worker.warmup import warm_up

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from tailrace._tailrace import Scoreboard

# Signals that only the master acts on; a terminal or a service manager may send them to its workers, too. Workers have
# handlers that do nothing, instead of SIG_IGN, which the children of the application would inherit.
_MASTERS_SIGNALS: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
_SERVING: Final = (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1)
# Threads of the application that do not end are named in the log after this time (seconds).
_SLOW_THREADS: Final = 1.0


class WorkerSetup(NamedTuple):
    """What all workers of a master have in common.

    application: None when each worker loads it. directory: where to load it, by the name that the operator uses; None
    when the application is loaded already. variables: those of `--env-file`. is_warm: the application has answered the
    requests of `--warmup`.
    """

    application: WSGIApplication | None
    directory: str | None
    hooks: Hooks
    variables: Variables
    is_warm: bool = False


class WorkerStart(NamedTuple):
    """What one worker gets from its master.

    report: the writing end of the pipe for its report. liveness: the reading end of the liveness pipe, which ends with
    the master. leaving: seconds after the graceful time-out in which it ends by force once the master has ended. mask:
    the signal mask to restore. master: its process id; the parent may be a mold.
    """

    info: WorkerInfo
    setup: WorkerSetup
    scoreboard: tuple[Scoreboard, int]
    report: int
    liveness: int
    leaving: float
    mask: Collection[int]
    master: int


def work(start: WorkerStart, settings: ServerSettings, listeners: list[sockets.Listener]) -> NoReturn:
    """Runs a worker from its fork to its end.

    Exit status: 0 when it was told to end, CANNOT_START when it could not load, else 1.
    """
    if settings.app is None:
        # The exit functions belong to the program that calls `run`, and must run only once, when it exits.
        atexit._clear()
        if "multiprocessing.util" in sys.modules:
            atexit.register(sys.modules["multiprocessing.util"]._exit_function)
    # As in multiprocessing, this process must not remove objects of its parent, such as temporary directories.
    for each in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        each.atexit = False
    process = os.getpid()
    forks.forget_all()
    forks.keep_from_children(start.report, start.liveness)
    sockets.keep_from_children(listeners, inherited=settings.app is not None)
    if "multiprocessing.process" in sys.modules:
        # Its exit function would terminate these children, which belong to the mold or the program.
        sys.modules["multiprocessing.process"]._children.clear()
    log_formats.set_worker(start.info.number)
    log.allow_thread()
    status, finished, ready = 1, False, False
    try:
        _end_with_master(start.liveness)
        _register_stacks()
        if settings.status is not None:
            _permit_reading(start.master)
        reader, writer = socket.socketpair()
        forks.keep_from_children(reader, writer)
        writer.setblocking(False)
        # Until it serves there is nothing to finish: SIGTERM ends it at once. Other signals wait in the socket.
        _receive((signal.SIGQUIT, signal.SIGUSR1), writer)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # noqa: TID251
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # noqa: TID251
        signal.pthread_sigmask(signal.SIG_SETMASK, start.mask)
        server, said = _prepare(start, settings, listeners)
        if settings.debug:
            ready = True
            report.send(start.report, said)
            left = _serve_on_main_thread(server, settings.graceful_timeout)
            _call_stop_hook(start, said, left)
            leave(0)
        # Again: the application may have set handlers while it loaded.
        _receive(_SERVING, writer)
        stop = _Stop(server, settings.graceful_timeout)

        def started() -> None:
            nonlocal ready
            ready = True
            report.send(start.report, said)

        with core.starting():
            _start(server, writer, settings, stop, started)
        collector = collecting.IdleCollector(server) if settings.gc == "idle" else None
        _wait_for_end(server, reader, stop, certificates.of(listeners), collector)
        finished = not core.abandoned(server)
        _call_stop_hook(start, said, stop.left())
        status = 0
    except TailraceError as error:
        status = CANNOT_START
        report.send(start.report, Failure.of(error).report())
    except BaseException as error:
        if os.getpid() != process:
            # A child that a signal handler of the application has forked.
            forks.leave(error)
        if ready:
            log.logger.exception("worker %d ended with an exception; please report it", start.info.number)
        else:
            report.send(
                start.report, Failure(f"the worker failed: {error!r}", CANNOT_START, traceback.format_exc()).report()
            )
    try:
        if finished:
            _wait_for_threads()
    finally:
        leave(status)


class _Stop:
    """Tells the core to end. The methods are also handlers of signals."""

    def __init__(self, server: Server, graceful_timeout: float) -> None:
        self.graceful_timeout = graceful_timeout
        self._server = server
        # When the graceful time ends.
        self._until: float | None = None
        self.has_ended = False

    def drain(self, *_signal: object) -> None:
        """Finishes the requests in flight. A second call does not change the time that they have."""
        if self._until is None:
            self._until = time.monotonic() + self.graceful_timeout
            self._server.stop(self.graceful_timeout)

    def stop(self, *_signal: object) -> None:
        """At once."""
        self._until = 0.0
        self._server.stop(0.0)

    def left(self) -> float:
        """What is left of the graceful time (seconds)."""
        return max(0.0, (self._until or 0.0) - time.monotonic())


def _start(
    server: Server, writer: socket.socket, settings: ServerSettings, stop: _Stop, started: Callable[[], None]
) -> None:
    """Serves. When the core ends, ENDED is written to `writer`.

    started: called before the first request runs, which may never release the interpreter.
    """
    if not settings.gevent:
        announcer = threading.Thread(target=core.announce_end, args=(server, writer), name="tailrace-end", daemon=True)

        def begun() -> None:
            announcer.start()
            started()

        server.start(begun)
        return
    # Only here: both import gevent.
    from tailrace.greenlets import dump, hub

    hub.keep_running()

    def on_end() -> None:
        stop.has_ended = True
        # A socket that is full, of signals, wakes `_wait_for_end`, too.
        with contextlib.suppress(BlockingIOError):
            writer.send(bytes((core.ENDED,)))

    # Requests run as soon as this greenlet waits.
    hub.WorkerGreenlets(server, on_end).start()
    # Handlers beside `_wait_for_end`, which runs in a greenlet: they run also while another greenlet blocks the hub.
    signals.handle(signal.SIGTERM, stop.drain)
    signals.handle(signal.SIGQUIT, stop.stop)
    signals.handle(signal.SIGURG, lambda number, frame: dump.dump())
    started()


def _wait_for_threads() -> None:
    """Waits, as the interpreter does at its end, for the application's threads that are not daemons, and for the work
    of its executors."""

    def say() -> None:
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        names = ", ".join(thread.name for thread in others if not thread.daemon)
        log.logger.info("waiting for threads of the application: %s", names)

    late = threading.Timer(_SLOW_THREADS, say)
    late.daemon = True
    late.start()
    threading._shutdown()  # type: ignore[attr-defined]
    late.cancel()


def _prepare(start: WorkerStart, settings: ServerSettings, listeners: list[sockets.Listener]) -> tuple[Server, bytes]:
    """The core with the application, not started, and what to report once it is. Raises TailraceError."""
    setup, application = start.setup, start.setup.application
    said = report.READY
    set_title(f"worker {start.info.number}", settings.app or "")
    try:
        setup.variables.apply()
        if settings.gevent:
            # After the variables, which may choose the loop, and before the hook, which may import drivers.
            patch.apply()
        if application is None:
            log_config.apply_again()
            log.allow_thread()
        setup.hooks.post_fork(start.info)
        if application is None:
            if setup.directory is not None:
                directory.enter(setup.directory)
            application = load.load(settings.app or "", factory=settings.factory)
            log.revive()
        setup.hooks.worker_start(start.info)
        if not setup.is_warm:
            warm_up(application, settings)
        if settings.gc != "python":
            # A mold has collected, and would share less memory after another collection.
            collecting.freeze(collects=setup.application is None)
        application = setup.hooks.around(application, gevent=settings.gevent)
        setup.hooks.follow()
    except TailraceError as error:
        if not settings.reload:
            raise
        log.revive()
        log.logger.error("%s\n%s", error, getattr(error, "user_traceback", "").rstrip())
        application, said = broken(error), report.BROKEN
    master = (start.liveness, settings.graceful_timeout, start.leaving)
    holds = next(iter(holding.known()), None)
    # Again: a deployment may have changed the folders since the master began.
    settings = folders.located(settings)
    server = core.make(application, settings, listeners, start.scoreboard, master, start.info.number, holds=holds)
    # From now on the core watches the liveness pipe, and finishes the requests in flight when the master ends.
    end_with_parent(False)
    for listener in listeners:
        listener.hand_over()
    if holds is not None:
        holds.application.close()
    return server, said


def _end_with_master(liveness: int) -> None:
    """Has the kernel kill this worker when its master ends; for the time in which it loads and has nothing to
    finish."""
    end_with_parent(True)
    if is_at_end(liveness):
        # The master had ended before.
        os._exit(1)


def _permit_reading(master: int) -> None:
    """Has Yama permit the status process, a child of the master, to read the stacks of this worker."""
    with contextlib.suppress(OSError):
        permit_tracing(master)


def _register_stacks() -> None:
    """Has the signal STACKS write the stacks of all threads: the master sends it to a worker that hangs."""
    stream = sys.__stderr__
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
        faulthandler.register(report.STACKS, file=stream if stream is not None else 2, all_threads=True, chain=False)


def _receive(numbers: Collection[signal.Signals], writer: socket.socket) -> None:
    """The numbers of these signals, and of the master's, arrive at the other end of `writer`."""
    # First the descriptor, then the handlers: a signal between the two would be lost otherwise.
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (*numbers, *_MASTERS_SIGNALS):
        signal.signal(number, signals.ignore)  # noqa: TID251


def _wait_for_end(
    server: Server,
    reader: socket.socket,
    stop: _Stop,
    served: Certificates | None,
    collector: collecting.IdleCollector | None,
) -> None:
    """Waits for the end of the core, handles signals meanwhile, follows the files of the certificates, and collects
    garbage.

    With `--gevent` poll is gevent's: the hub runs meanwhile. While a greenlet blocks the hub, this function does not
    run; only the signals that have handlers of their own are handled."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    process = os.getpid()
    while True:
        pauses = [certificates.INTERVAL] * (served is not None)
        if collector is not None:
            pauses.append(collector.look())
        is_signalled = poll.poll(1000 * min(pauses) if pauses else None)
        if os.getpid() != process:
            forks.leave(None)
        if served is not None:
            certificates.refresh(served, logs=False)
        if not is_signalled:
            continue
        numbers = reader.recv(64)
        if signal.SIGQUIT in numbers:
            stop.stop()
        elif signal.SIGTERM in numbers:
            stop.drain()
        if signal.SIGUSR1 in numbers:
            core.reopen_logs(server)
        if core.ENDED in numbers or stop.has_ended:
            server.join()
            return


def _call_stop_hook(start: WorkerStart, said: bytes, left: float) -> None:
    """Calls `worker_stop` if `worker_start` has been called. left: of the graceful time (seconds)."""
    if said == report.READY:
        start.setup.hooks.worker_stop(start.info, left)


def _serve_on_main_thread(server: Server, graceful_timeout: float) -> float:
    """Serves on the main thread, for `--debug`; what is left of the graceful time (seconds).

    Ctrl-C at a terminal reaches worker and master, and the master logs it.
    """
    stop = debug.MainThreadStop(server, graceful_timeout, is_quiet=True)
    with signals.handled({signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGQUIT: stop.stop_now}):
        debug.run_here(server, stop)
    return stop.left()
