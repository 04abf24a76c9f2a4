"""The master: holds the sockets, forks workers and watches them. It never serves, and loads no application but to
preload it.

`serve` is the whole life of a server; `Master.run` is the loop. What to do is decided in `plan`; here signals, pipes,
clock and processes are read, and what the plan answers is done and logged.

Signals: TERM and INT drain all workers, a second one ends them at once, QUIT ends them at once; HUP replaces them one
after the other; USR2 has a new master take the place of this one (`upgrade`); TTIN and TTOU make them one more or one
less; USR1 has them reopen their logs, URG write what their greenlets do. Handlers do nothing: Python's wake-up
descriptor tells the loop, and only the loop acts.

A worker learns that its master is gone from the leash, a pipe whose writing end only the master holds: it then finishes
what it has begun and ends.

Exit status: 0 after a stop that was asked for, also when requests were cut at its end (the log says so); 1 when no
worker comes as far as serving; 2 for a mistake in the settings; 130 when interrupted (SIGINT) before any worker served.

Thread: the main thread, the only one, so that a fork finds no lock taken.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from penstock import hooks, load, log, options, recycle, sockets, station, watch, worker, workers
from penstock._penstock import Scoreboard
from penstock.errors import ConfigError, WorkerError
from penstock.hooks import WorkerInfo
from penstock.plan import FAILURES, Fork, Hangs, Kill, Plan, Reloaded, Retire, Verdict
from penstock.service import FilesChanged, Service, Upgraded, Variables
from penstock.settings import DEFAULT, Settings, plain
from penstock.station import Outfit, Station
from penstock.workers import Ending, Failure, Killed, Worker

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

SIGNALS: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1),
    *(signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG, signal.SIGCHLD),
)
INTERRUPTED: Final = 130
# How often the workers are looked at (seconds), and how often where their use is limited.
_LOOK: Final = 1.0
_LOOK_OFTEN: Final = 0.25
# What requests in flight have when files have changed (seconds).
_SHORT: Final = 1.0
# Places of the scoreboard: while workers are replaced, the old ones may take long to finish.
_FEWEST_PLACES: Final = 32
_PLACES_EACH: Final = 4
# Requests of a worker that died which the log names, at most.
_MOST_SHOWN: Final = 20


def serve(settings: Settings, application: WSGIApplication | None = None, surroundings: Service | None = None) -> int:
    """Serves with worker processes until a signal ends it; the exit status.

    application: the application, when the program that calls has loaded it; without it, `settings["app"]` names it.
    surroundings: what the environment told. Raises ConfigError, BindError, LoadError; and KeyboardInterrupt before the
    workers are forked.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("worker processes are forked from the main thread: call this from there")
    _check_greenlets(settings)
    try:
        with _terminable():
            return _serve(plain(settings), application, Service() if surroundings is None else surroundings)
    except _Terminated:
        return 0


def _serve(chosen: dict[str, Any], application: WSGIApplication | None, service: Service) -> int:
    if chosen["reload"]:
        chosen |= _for_development(chosen)
    addresses = [sockets.parse(text) for text in chosen["bind"]]
    directory = None if application is not None else _directory(chosen["chdir"])
    if chosen["chdir"] is not None:
        worker.change_directory(chosen["chdir"])
    if chosen["umask"] is not None:
        os.umask(chosen["umask"])
    variables = Variables(chosen["env_file"])
    with service:
        with sockets.bound(
            addresses, backlog=chosen["backlog"], socket_mode=chosen["socket_mode"], kept=service.kept
        ) as listeners:
            # Addresses first: clients may already connect, and wait in the backlog, while the application loads.
            service.settle(chosen, listeners)
            found = hooks.read(chosen["hooks"])
            if application is None and chosen["preload"]:
                variables.apply()
                application = _preloaded(chosen)
            outfit = Outfit(application, directory, found, variables)
            return Master(chosen, listeners, outfit, service).run()


class Master:
    """The processes of one server. listeners: bound already. outfit: what the workers are made from."""

    def __init__(
        self, chosen: dict[str, Any], listeners: list[sockets.Listener], outfit: Outfit, service: Service
    ) -> None:
        self._chosen = chosen
        self._listeners = listeners
        self._outfit = outfit
        self._hooks = outfit.hooks
        self._service = service
        count = options.worker_count(chosen)
        places = max(_FEWEST_PLACES, _PLACES_EACH * count)
        self._board = Scoreboard(places, chosen["max_greenlets" if chosen["gevent"] else "threads"])
        self._plan = Plan(count, places, chosen["graceful_timeout"])
        self._limits = recycle.Limits.of(chosen)
        self._chance = random.Random()
        self._look_at = 0.0
        self._all_have_served = False
        self._last_failure: WorkerError | None = None
        self._status = 0

    def run(self) -> int:
        """Forks the workers and keeps them, until a signal ends it; the exit status. Raises WorkerError."""
        self._hooks.on_start()
        with _wake_ups() as (self._bell, self._ringer), _leash() as (self._leash, self._master_lives), _frozen():
            while True:
                now = time.monotonic()
                for action in self._plan.next(now):
                    self._do(action, now)
                if self._plan.is_complete and not self._all_have_served:
                    self._all_have_served = True
                    self._tell_service()
                if self._plan.is_over:
                    break
                self._wait()
                # Signals before deaths: who stops everything, stops the workers, too.
                for number in self._signals():
                    self._heed(number)
                self._hear_workers()
                self._hear_service()
                self._reap()
                try:
                    self._look()
                except Exception:  # it advises; without it the workers serve on
                    log.logger.exception("the workers could not be looked at")
        self._hooks.on_exit()
        if self._last_failure is not None:
            raise self._last_failure
        log.logger.info("stopped")
        return self._status

    # What came

    def _wait(self) -> None:
        """Until something happens, or the time has come for something."""
        now = time.monotonic()
        times = [self._look_at] if self._plan.serving else []
        times += [at for at in (self._plan.wake_at(now), self._service.wake_at()) if at is not None]
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for each in self._plan.workers:
            if each.report >= 0:
                poll.register(each.report, select.POLLIN)
        for descriptor in self._service.descriptors():
            poll.register(descriptor, select.POLLIN)
        # Rounded up: poll would else return a moment too early, again and again.
        poll.poll(max(0, int((min(times) - now) * 1000) + 1) if times else None)

    def _signals(self) -> bytes:
        try:
            return self._bell.recv(4096)
        except BlockingIOError:
            return b""

    def _heed(self, number: int) -> None:
        now = time.monotonic()
        if number in (signal.SIGTERM, signal.SIGINT):
            if number == signal.SIGINT and not self._plan.has_served:
                self._status = INTERRUPTED
            graceful = self._chosen["graceful_timeout"]
            if self._plan.is_stopping or not graceful:
                self._stop_now(number)
            else:
                log.logger.info(
                    "%s: finishing the requests in flight, for up to %g s; a second signal stops at once",
                    signal.Signals(number).name,
                    graceful,
                )
                self._stop()
        elif number == signal.SIGQUIT:
            self._stop_now(number)
        elif number == signal.SIGUSR1:
            for each in self._plan.workers:
                each.tell(signal.SIGUSR1)
        elif number == signal.SIGURG:
            if not self._chosen["gevent"]:
                log.logger.info("SIGURG: only --gevent has greenlets to write down")
                return
            for each in self._plan.workers:
                each.tell(signal.SIGURG)
        elif self._plan.is_stopping:
            return
        elif number == signal.SIGHUP:
            self._reload(now)
        elif number == signal.SIGUSR2:
            self._service.begin_upgrade()
        elif number == signal.SIGTTIN:
            grown = self._plan.grow()
            log.logger.info("SIGTTIN: %d workers%s", self._plan.wanted, "" if grown else ", which is the most")
        elif number == signal.SIGTTOU:
            shrunk = self._plan.shrink()
            log.logger.info("SIGTTOU: %d workers%s", self._plan.wanted, "" if shrunk else ", which is the least")

    def _hear_workers(self) -> None:
        for each in self._plan.workers:
            if each.read_report():
                self._is_ready(each)

    def _hear_service(self) -> None:
        for event in self._service.events(time.monotonic()):
            if isinstance(event, Upgraded):
                self._service.hand_over()
                self._stop()
            elif not self._plan.is_stopping:
                self._restart(event)

    def _is_ready(self, each: Worker) -> None:
        now = time.monotonic()
        if not each.is_booting:
            # It was told to end while it loaded, and the application had taken the signal for itself.
            self._plan.ready(each, now)
            each.tell(signal.SIGTERM)
            return
        if not self._plan.has_served:
            worker.announce(self._chosen, self._outfit.application, self._listeners, self._plan.wanted)
        each.allowance = self._limits.draw(now, each.resident(), self._chance)
        self._plan.ready(each, now)
        log.logger.info("%s ready in %.2f s", each, now - each.forked)

    def _tell_service(self) -> None:
        self._service.serves(f"{self._plan.wanted} worker{'s' * (self._plan.wanted != 1)} serving")

    def _reap(self) -> None:
        known = {each.pid: each for each in self._plan.workers}
        for pid, ending in workers.reaped(None if os.getpid() == 1 else known):
            if pid in known:
                # What it said with its last breath.
                known[pid].read_report()
                self._has_ended(known[pid], ending)

    def _has_ended(self, ended: Worker, ending: Ending) -> None:
        """A worker is gone: what that means, and what there is to say."""
        was_killed, failure = isinstance(ended.phase, Killed), ended.failure
        carried = self._carried(ended)
        verdict = self._plan.ended(ended, time.monotonic())
        ended.forget_report()
        # Nobody serves there any more.
        self._board.clear(ended.place)
        said = f"{ended} failed to load: {failure.message}" if failure else f"{ended} {ending}"
        trace = f"\n{failure.traceback.rstrip()}" if failure and failure.traceback else ""
        if verdict is Verdict.EXPECTED:
            # Once it serves, SIGTERM does not kill it.
            if ending.is_clean or was_killed or failure or ending.exit_signal == signal.SIGTERM:
                log.logger.log(logging.INFO if self._plan.has_served else logging.DEBUG, "%s has ended", ended)
            else:
                log.logger.error("%s while it drained%s", said, carried)
        elif verdict is Verdict.CRASHED:
            oom = "; perhaps by the kernel, out of memory" if ending.exit_signal == signal.SIGKILL else ""
            log.logger.error("%s%s; another one takes its place%s", said, oom, carried)
        elif verdict is Verdict.RELOAD_FAILED:
            log.logger.error("reload given up, the old workers go on: %s%s", said, trace)
            self._service.reload_failed(said)
        elif verdict is Verdict.NOT_READY:
            log.logger.error("%s before it was ready; trying again%s", said, trace)
        else:
            self._despair(said, failure)
        self._hooks.worker_exit(self._info(ended, ending))

    # What is done

    def _do(self, action: Fork | Retire | Kill | Hangs | Reloaded, now: float) -> None:
        if isinstance(action, Fork):
            self._fork(action, now)
        elif isinstance(action, Retire):
            log.logger.info("%s drains", action.worker)
            self._retire(action.worker)
        elif isinstance(action, Kill):
            log.logger.warning("%s did not end in time and is killed%s", action.worker, self._carried(action.worker))
            action.worker.tell(signal.SIGKILL)
        elif isinstance(action, Hangs):
            log.logger.warning(
                "%s still loads the application after %.0f s; `kill -HUP %d` ends it and tries again",
                action.worker,
                action.seconds,
                os.getpid(),
            )
        else:
            log.logger.info("reload complete in %.2f s", action.seconds)
            self._tell_service()

    def _fork(self, action: Fork, now: float) -> None:
        self._board.clear(action.place)
        try:
            forked = workers.fork()
        except OSError as error:
            log.logger.error("worker %d cannot be forked: %s", action.number, error.strerror)
            self._plan.fork_failed(now)
            return
        made = Worker(action.number, action.place, action.generation, forked.pid or os.getpid(), now)
        if forked.pid == 0:
            try:
                self._become(made, forked)
            finally:
                os._exit(1)
        made.report = forked.pipe
        self._plan.forked(made)

    def _become(self, made: Worker, forked: workers.Forked) -> None:
        """In the worker: lets go of what is the master's, and never returns."""
        for each in self._plan.workers:
            each.forget_report()
        os.close(self._master_lives)
        self._bell.close()
        self._ringer.close()
        self._service.forked()
        post = Station(
            info=self._info(made),
            outfit=self._outfit,
            scoreboard=(self._board, made.place),
            report=forked.pipe,
            leash=self._leash,
            mask=forked.mask,
        )
        station.work(post, self._chosen, self._listeners)

    def _stop(self) -> None:
        # Ours first: the last worker that closes its own ends the listening, after it took whoever waited.
        self._service.stopping()
        for listener in self._listeners:
            listener.hand_over()
        for each in self._plan.stop(time.monotonic()):
            self._retire(each)

    def _retire(self, each: Worker) -> None:
        """Has a worker drain. By the signal, and past its interpreter, which a request may hold."""
        self._board.drain(each.place, self._chosen["graceful_timeout"])
        each.tell(signal.SIGTERM)

    def _stop_now(self, number: int) -> None:
        log.logger.info("%s: stopping now", signal.Signals(number).name)
        self._service.stopping()
        for listener in self._listeners:
            listener.hand_over()
        for each in self._plan.stop_now(time.monotonic()):
            each.tell(signal.SIGQUIT)

    def _reload(self, now: float) -> None:
        if self._outfit.application is not None:
            log.logger.info("SIGHUP: the application was loaded before the workers were forked: a new master loads it")
            self._service.begin_upgrade()
            return
        log.logger.info("SIGHUP: replacing the workers%s", " once more" if self._plan.is_reloading else "")
        self._service.reloading()
        self._plan.reload(now)

    def _restart(self, changed: FilesChanged) -> None:
        """Before the new code is there nothing answers, and what comes waits in the queue of the sockets."""
        shown = [os.path.relpath(path) for path in changed.paths[:3]] + ["..."] * (len(changed.paths) > 3)
        log.logger.info("changed: %s; loading the application again", ", ".join(shown))
        for each in self._plan.restart(time.monotonic()):
            each.tell(signal.SIGTERM)
        watch.forget_bytecode(changed.paths)

    def _despair(self, said: str, failure: Failure | None) -> None:
        """Other workers would fail likewise."""
        if self._last_failure is not None:
            return
        if failure is not None and not self._plan.has_served:
            # As if the application had been loaded here.
            self._last_failure = WorkerError(failure.message, failure.traceback, failure.status)
        else:
            what = f"{FAILURES} workers in a row" if self._plan.has_served else "the first workers"
            self._last_failure = WorkerError(
                f"{what} ended before they were ready, so the server stops; the last: {said}",
                failure.traceback if failure else "",
            )
        self._stop()

    def _look(self) -> None:
        """At the scoreboard and at the memory of the workers, now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + (_LOOK if self._limits == recycle.Limits() else _LOOK_OFTEN)
        for each in self._plan.serving:
            if not each.due:
                resident = each.resident() if each.allowance.rss is not None else 0
                each.due = each.allowance.exceeded(now, self._board.counters(each.place), resident)
                if each.due:
                    carried = self._carried(each) if each.allowance.is_stuck else ""
                    log.logger.info("%s %s: it is replaced%s", each, each.due, carried)

    def _carried(self, each: Worker) -> str:
        """The requests that a worker has in flight, for the log."""
        if not isinstance(each.phase, Killed) and each.is_booting:
            return ""
        requests = self._board.in_flight(each.place)
        shown = [
            f"\n  {request['method']} {request['target']} from {request['client'] or '-'}, for "
            f"{request['seconds']:.3f} s" + f", in thread {request['thread']}" * (not self._chosen["gevent"])
            for request in requests[:_MOST_SHOWN]
        ]
        if len(requests) > _MOST_SHOWN:
            shown.append(f"\n  and {len(requests) - _MOST_SHOWN} more")
        return f"; it carried {len(requests)} request{'s' * (len(requests) != 1)}" + "".join(shown)

    def _info(self, each: Worker, ending: Ending | None = None) -> WorkerInfo:
        """What hooks learn about a worker."""
        if ending is None:
            return WorkerInfo(each.number, each.pid, each.generation)
        return WorkerInfo(each.number, each.pid, each.generation, ending.exit_status, ending.exit_signal)


def _check_greenlets(settings: Settings) -> None:
    """Raises ConfigError where --gevent cannot be had, and warns of what has no effect."""
    if settings["gevent"].value:
        from penstock.greenlets import patch

        patch.check(settings)
        return
    for name, setting in settings.items():
        option = options.BY_NAME[name]
        if option.group == options.GREENLETS and name != "gevent" and setting.source != DEFAULT:
            log.logger.warning("%s has no effect without --gevent", option.flag)


def _for_development(chosen: dict[str, Any]) -> dict[str, Any]:
    """What `--reload` changes in the settings. Raises ConfigError."""
    if chosen["preload"]:
        raise ConfigError("--reload has each worker load the application, and --preload the master: leave one out")
    return {"workers": 1, "graceful_timeout": min(chosen["graceful_timeout"], _SHORT)}


class _Terminated(KeyboardInterrupt):
    """SIGTERM before the loop heeds it; of a kind that no application is expected to catch while it is preloaded."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises _Terminated, so that what was made until then, the files of sockets above all, is removed."""

    def terminated(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    # The pid file may be there already: what a rotation of logs or a deployment sends too early shall kill nobody.
    early = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
    with worker.handled({**dict.fromkeys(early, worker.ignore), signal.SIGTERM: terminated}):
        yield


def _preloaded(chosen: dict[str, Any]) -> WSGIApplication:
    """The application, loaded here. Raises LoadError and KeyboardInterrupt."""
    application = load.load(chosen["app"], factory=chosen["factory"])
    log.revive()
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if others:
        log.logger.warning(
            "--preload: the application started threads (%s) that its workers will not have; start them in the hook "
            "post_fork",
            ", ".join(others),
        )
    return application


def _directory(chdir: str | None) -> str:
    """The directory of the application, by the name that the operator uses for it, symbolic links and all."""
    if chdir is not None:
        return os.path.abspath(chdir)
    here = os.getcwd()
    named = os.environ.get("PWD", here)
    with contextlib.suppress(OSError):
        if os.path.isabs(named) and os.path.samefile(named, here):
            return named
    return here


@contextlib.contextmanager
def _wake_ups() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our signals arrive as bytes in the first of two sockets. The handlers of before come back at the end."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        with worker.woken(writer, SIGNALS):
            yield reader, writer


@contextlib.contextmanager
def _leash() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe in which nothing is ever written: the reading end for the workers, ours to keep open."""
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """What is in memory now stays out of the collector's way, in the workers above all: a collection writes to each
    object that it looks at, and so would make each worker a copy of its own."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
