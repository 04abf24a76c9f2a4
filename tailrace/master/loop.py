"""The master's loop: it holds the sockets, forks workers and watches them. It never serves.

What to do is decided in `plan`. This file reads signals, pipes, the clock and processes, does what the plan returns,
and logs it.

Signals: TERM and INT drain all workers, and end them at once when one comes a second time; QUIT ends them at once. HUP
replaces them one after the other. USR2 starts a new master that takes the place of this one (`upgrade`). TTIN and TTOU
make the workers one more or one less. USR1 reopens the logs of all processes, URG has the workers write the stacks
of their greenlets. The handlers do nothing: the signal arrives in the loop by Python's wakeup descriptor.

The liveness pipe tells workers that their master has ended: only the master has its writing end open. A worker then
finishes the requests in flight and ends.

Exit status: 0 after a requested stop, also if requests did not finish in time (the log names them); 3 when no worker
could serve; 2 for a mistake in the settings; 130 when interrupted (SIGINT) before any worker served.

Thread: the main thread, the only one of the process, so that no other thread holds a lock when it forks.
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
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NoReturn

from tailrace import metrics
from tailrace._tailrace import Scoreboard
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import WorkerError
from tailrace.logs import log
from tailrace.master import growth, hang, mold, plan, recycle, trial, watch, workers
from tailrace.master.mold import Mold, Molds
from tailrace.master.plan import FAILURES, Drain, Fork, Kill, Loading, Plan, SlowBoot, Verdict
from tailrace.master.refork import Refork
from tailrace.master.service import FilesChanged, Service, Upgraded
from tailrace.master.status import States
from tailrace.master.tally import HANG, REFORK, RELOAD, Tally
from tailrace.master.trial import Trial
from tailrace.master.workers import Ending, Hung, Killed, Worker
from tailrace.status import snapshot
from tailrace.status.snapshot import Snapshot
from tailrace.status.state import State
from tailrace.system import cgroup, forks, signals, sockets
from tailrace.worker import certificates, fork, report
from tailrace.worker import main as worker_main
from tailrace.worker import mold as worker_mold
from tailrace.worker.announce import announce, announce_loading, announce_machine
from tailrace.worker.fork import Forked
from tailrace.worker.hooks import WorkerInfo
from tailrace.worker.main import WorkerSetup, WorkerStart
from tailrace.worker.report import Failure

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
SIGNALS: Final = (
    *_STOPS,
    *(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG, signal.SIGCHLD),
)
INTERRUPTED: Final = 130
# From one check of the workers to the next (seconds): usually, and when their requests, time or memory are limited.
_CHECK_INTERVAL: Final = 1.0
_SHORT_CHECK_INTERVAL: Final = 0.25
# From one look at workers whose mold has ended to the next (seconds): no signal tells of their end.
_ORPHAN_INTERVAL: Final = 0.25
# With a shorter --hang-timeout (seconds) the short interval is used, too.
_SHORT_HANG_TIMEOUT: Final = 10.0
# Places of the scoreboard: more than workers, since workers that are replaced may take long to drain.
_FEWEST_PLACES: Final = 32
_PLACES_EACH: Final = 4
# At most so many requests of a worker are named in one entry of the log; the others have further entries.
_MOST_SHOWN: Final = 20
# The longest wait (seconds): poll(2) takes at most 2^31 ms.
_LONGEST_WAIT: Final = 3600.0


class Master:
    """The master of one server. listeners: its bound sockets. setup: what all workers have in common. stops: counts
    also the signals before and after the loop."""

    def __init__(
        self,
        settings: ServerSettings,
        listeners: list[sockets.Listener],
        setup: WorkerSetup,
        service: Service,
        stops: signals.Stops,
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._setup = setup
        self._hooks = setup.hooks
        self._service = service
        count = settings.worker_count
        places = max(_FEWEST_PLACES, _PLACES_EACH * count)
        self._places = places
        self._began = time.monotonic()
        self._states = States()
        threads = settings.concurrency
        self._board = Scoreboard(places, threads, settings.query_masking)
        metrics.use(self._board.numbers)
        self._threads_each = 1 if settings.debug else threads
        self._tally = Tally(self._board.deliveries(0))
        self._plan = Plan(count, places, settings.graceful_timeout, settings.reload_trial)
        self._trial: Trial | None = None
        self._molds = Molds(self._start_mold) if settings.preload and setup.application is None else None
        self._refork = Refork(settings.refork if self._molds is not None else ())
        # When a mold may be made again after one that has ended.
        self._next_mold = 0.0
        self._mold_failures = 0
        self._limits = recycle.Limits.of(settings)
        self._chance = random.Random()
        self._hang_timeout = settings.hang_timeout
        has_limits = self._limits != recycle.Limits() or settings.max_rss == "auto"
        checks_often = has_limits or 0 < self._hang_timeout < _SHORT_HANG_TIMEOUT
        self._check_interval = _SHORT_CHECK_INTERVAL if checks_often else _CHECK_INTERVAL
        self._check_at = 0.0
        self._pid = os.getpid()
        self._urls = [listener.url for listener in listeners]
        self._stops = stops
        # When the sockets close, for --shutdown-delay. The plan does not stop before.
        self._close_at: float | None = None
        self._all_have_served = False
        self._last_failure: WorkerError | None = None
        self._status = 0

    def run(self) -> int:
        """Forks workers and replaces those that end, until a signal ends the server; the exit status.

        Raises WorkerError.
        """
        self._hooks.on_start()
        with (
            _wakeup_sockets() as (self._wakeups, self._wakeup_writer),
            _liveness_pipe() as (self._liveness, self._liveness_writer),
            _frozen(),
        ):
            if self._molds is not None:
                announce_loading(self._settings)
                self._load()
            while True:
                now = time.monotonic()
                for action in self._plan.next(now):
                    self._do(action, now)
                if self._plan.is_complete and not self._all_have_served:
                    self._all_have_served = True
                    self._tell_service_ready()
                if self._plan.is_over:
                    break
                self._tend_status()
                self._tend_statsd()
                self._wait()
                # Signals are read before the ends of workers, since whoever stops the master may have stopped the
                # workers, too. Reports are handled before signals, so that a worker that served before the signal
                # counts as such.
                arrived = self._signals()
                self._read_reports()
                self._tend_molds()
                for number, at in arrived:
                    self._handle_signal(number, at)
                self._handle_service_events()
                self._end_delay()
                self._reap()
                try:
                    self._tend_trial()
                    self._check_workers()
                except Exception:  # the workers can serve without these checks
                    log.logger.exception("a check of the workers failed; they keep serving, and are checked again")
        if self._molds is not None:
            self._molds.join()
        self._tend_statsd(is_last=True)
        self._hooks.on_exit()
        if self._last_failure is not None:
            raise self._last_failure
        log.logger.info("stopped")
        return self._status

    # Events

    def _wait(self) -> None:
        """Waits until something happens, or the next time that the plan, the service or the checks ask for."""
        now = time.monotonic()
        times = [self._check_at] if self._plan.serving else []
        closes_at = None if self._plan.is_stopping else self._close_at
        times += [at for at in (self._plan.wake_at(now), self._service.wake_at(), closes_at) if at is not None]
        times += self._mold_times(now)
        poll = select.poll()
        poll.register(self._wakeups, select.POLLIN)
        for each in self._plan.workers:
            if each.report >= 0:
                poll.register(each.report, select.POLLIN)
        for descriptor in [*self._service.descriptors(), *(self._molds.descriptors() if self._molds else ())]:
            poll.register(descriptor, select.POLLIN)
        behind = log.waits_for()
        for descriptor in behind:
            poll.register(descriptor, select.POLLOUT)
        # Rounded up: otherwise poll returns up to a millisecond too early, several times.
        left = min(max(0.0, min(times) - now), _LONGEST_WAIT) if times else _LONGEST_WAIT
        poll.poll(int(left * 1000) + 1)
        if behind:
            log.catch_up()

    def _signals(self) -> list[tuple[int, float]]:
        """The signals that have come, each with the time of its arrival."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(signals.arrived(self._wakeups))
        return found

    def _handle_signal(self, number: int, at: float) -> None:
        """at: when it arrived (seconds, CLOCK_REALTIME)."""
        if number in _STOPS and not self._stops.counts(number, at):
            return
        if number in (signal.SIGTERM, signal.SIGINT):
            if number == signal.SIGINT and not self._plan.has_served:
                self._status = INTERRUPTED
            name, delay = signal.Signals(number).name, self._settings.shutdown_delay
            if self._plan.is_stopping:
                self._stop_now(name)
            elif not self._plan.has_served and self._settings.graceful_timeout:
                log.logger.info("%s: stopping before the application has loaded", name)
                self._stop()
            elif number == signal.SIGTERM and self._plan.has_served and delay and self._close_at is None:
                log.logger.info(
                    "%s: serving for another %g s (--shutdown-delay), not ready any more; a second signal ends this",
                    name,
                    delay,
                )
                self._close_at = time.monotonic() + delay
                self._service.stopping("serving until the shutdown delay ends")
            else:
                self._finish(name)
        elif number == signal.SIGQUIT:
            self._stop_now(signal.Signals(number).name)
        elif number == signal.SIGUSR1:
            if log.reopen():
                log.logger.info("SIGUSR1: log reopened")
            for each in [*self._plan.workers, *(self._molds.processes() if self._molds else ())]:
                each.send(signal.SIGUSR1)
            if (status := self._service.status) is not None:
                status.reopen_logs()
        elif number == signal.SIGURG:
            if not self._settings.gevent:
                log.logger.info("SIGURG: ignored, since only --gevent has greenlets whose stacks can be logged")
                return
            for each in self._plan.workers:
                each.send(signal.SIGURG)
        elif self._is_leaving:
            return
        elif number == signal.SIGHUP:
            self._reload(time.monotonic())
        elif number == signal.SIGUSR2:
            self._service.begin_upgrade()
        elif number == signal.SIGTTIN:
            grown = self._plan.grow()
            log.logger.info(
                "SIGTTIN: %s%s", log.counted(self._plan.wanted, "worker"), "" if grown else ", which is the maximum"
            )
        elif number == signal.SIGTTOU:
            shrunk = self._plan.shrink()
            log.logger.info(
                "SIGTTOU: %s%s", log.counted(self._plan.wanted, "worker"), "" if shrunk else ", which is the minimum"
            )

    def _read_reports(self) -> None:
        for each in self._plan.workers:
            if each.read_report():
                self._is_ready(each)

    def _handle_service_events(self) -> None:
        for event in self._service.events(time.monotonic()):
            if isinstance(event, Upgraded):
                self._service.hand_over()
                self._stop()
            elif not self._is_leaving:
                self._restart(event)

    def _is_ready(self, each: Worker, has_ended: bool = False) -> None:
        now = time.monotonic()
        if not each.is_booting:
            # It was told to end before its report was read, and has served all the same.
            self._status = 0
            self._plan.ready(each, now)
            if not has_ended:
                each.send(signal.SIGTERM)
            return
        if not self._plan.has_served:
            announce(self._settings, self._setup.application, self._listeners, self._plan.wanted)
        each.allowance = self._limits.draw(now, each.resident(), self._chance)
        each.watch = hang.Watch(self._hang_timeout, now)
        self._plan.ready(each, now)
        broken = ", and answers every request with that error until the next change" * each.is_broken
        log.logger.info("%s ready in %.2f s%s", each, now - each.forked, broken)
        if self._plan.is_on_trial(each) and self._trial is None:
            log.logger.info("%s is on trial for %g s (--reload-trial)", each, self._settings.reload_trial)
            self._trial = Trial(each, {old.pid: self._board.deliveries(old.place) for old in self._old_workers()})

    def _tell_service_ready(self) -> None:
        self._service.serves(f"{log.counted(self._plan.wanted, 'worker')} serving")

    def _reap(self) -> None:
        known = {each.pid: each for each in self._plan.workers}
        # A mold reaps the workers that it has forked.
        ours = list(known) if self._molds is None else self._molds.children()
        for pid, ending in workers.reaped(None if os.getpid() == 1 else ours):
            if pid in known:
                if self._molds is not None:
                    # An orphan, as child of process 1.
                    self._molds.reaped(pid)
                self._reaped(known.pop(pid), ending)
            elif self._molds is not None and (mold := self._molds.has_ended(pid)) is not None:
                self._mold_has_ended(mold, ending)
        if self._molds is not None:
            for pid, ending in self._molds.ended_workers():
                if pid in known:
                    self._reaped(known.pop(pid), ending)
            for lost in self._molds.lost():
                self._mold_has_ended(lost, Ending(None, is_orphan=True))

    def _reaped(self, ended: Worker, ending: Ending) -> None:
        # It may have written its report just before its end.
        if ended.read_report():
            self._is_ready(ended, has_ended=True)
        self._has_ended(ended, ending)

    def _has_ended(self, ended: Worker, ending: Ending) -> None:
        """A worker has ended: updates the plan, logs the end, and calls the hook."""
        was_killed, failure = isinstance(ended.phase, (Hung, Killed)), ended.failure
        requests = self._requests(ended)
        if self._refork.worker is ended:
            self._refork.worker = None
            if self._molds is not None:
                self._molds.give_up_promoted()
        verdict = self._serves_no_more(ended)
        said = f"{ended} failed to load: {failure.message}" if failure else f"{ended} {ending}"
        trace = f"\n{failure.traceback.rstrip()}" if failure and failure.traceback else ""
        if verdict is Verdict.EXPECTED:
            # SIGTERM kills only a worker that does not serve yet.
            if ending.is_clean or was_killed or failure or ending.exit_signal == signal.SIGTERM or ending.is_orphan:
                log.logger.log(logging.INFO if self._plan.has_served else logging.DEBUG, "%s has ended", ended)
            else:
                _log_with_requests(logging.ERROR, f"{said} while it drained", ended, requests)
        elif verdict is Verdict.CRASHED:
            oom = ", possibly by the kernel, for lack of memory" if ending.exit_signal == signal.SIGKILL else ""
            _log_with_requests(logging.ERROR, f"{said}{oom}; replacing it", ended, requests)
        elif verdict is Verdict.RELOAD_FAILED:
            log.logger.error("reload failed, the old workers keep serving: %s%s", said, trace)
            self._go_back(said)
        elif verdict is Verdict.NOT_READY:
            log.logger.error("%s before it was ready; trying again%s", said, trace)
        else:
            self._give_up(said, failure)
        self._hooks.worker_exit(self._info(ended, ending))

    def _serves_no_more(self, ended: Worker) -> Verdict:
        """Updates the plan and the counts; the worker's place of the scoreboard is free."""
        verdict = self._plan.ended(ended, time.monotonic())
        ended.forget()
        counters, deliveries = self._board.counters(ended.place), self._board.deliveries(ended.place)
        self._tally.has_ended(ended, verdict, counters, deliveries)
        # Before the counters are cleared: the status process must not count them twice, nor lose them.
        self._publish()
        self._board.keep(ended.place, ended.number, self._plan.has_current_code(ended))
        self._board.clear(ended.place)
        self._board.numbers.forget(ended.pid)
        return verdict

    # Actions

    def _do(self, action: plan.Action, now: float) -> None:
        if isinstance(action, Fork):
            self._fork(action, now)
        elif isinstance(action, Drain):
            log.logger.info("%s drains", action.worker)
            self._note_reason(action.worker)
            if action.worker is self._refork.worker and self._molds is not None:
                self._molds.promote(action.worker, self._listeners)
            self._drain(action.worker)
        elif isinstance(action, Kill):
            killed = action.worker
            if not action.hung:
                message = f"{killed} did not end in time and is killed"
                _log_with_requests(logging.WARNING, message, killed, self._requests(killed))
            killed.send(signal.SIGKILL)
            if self._molds is not None:
                self._molds.killed(killed.pid, now)
        elif isinstance(action, Loading):
            if self._setup.application is None and self._molds is None:
                announce_loading(self._settings)
        elif isinstance(action, SlowBoot):
            self._log_slow(action.worker, action.seconds)
        else:
            # What the code before the reload has cost is fixed, or to be compared.
            self._board.forget_endpoints()
            if self._molds is not None:
                self._molds.settle()
            if not any(each.is_broken for each in self._plan.serving):
                log.logger.info("reload complete in %.2f s", action.seconds)
            self._tell_service_ready()

    def _log_slow(self, process: Worker | Mold, seconds: float) -> None:
        log.logger.warning(
            "%s is still loading the application after %.0f s; `kill -HUP %d` ends it and tries again",
            process,
            seconds,
            os.getpid(),
        )

    def _fork(self, action: Fork, now: float) -> None:
        self._board.clear(action.place)
        ours: socket.socket | None = None
        try:
            current = None if self._molds is None else self._molds.current
            if current is None:
                forked = fork.fork()
            elif self._settings.refork:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.setblocking(False)
                forks.keep_from_children(ours)
                with theirs:
                    forked = current.fork(action.number, action.place, action.generation, theirs)
            else:
                forked = current.fork(action.number, action.place, action.generation)
        except OSError as error:
            if ours is not None:
                ours.close()
            log.logger.error("cannot fork worker %d: %s; trying again", action.number, error.strerror)
            self._plan.fork_failed(action.number, now)
            return
        made = Worker(action.number, action.place, action.generation, forked.pid or os.getpid(), now)
        if forked.pid == 0:
            try:
                self._close_ours()
                self._service.forked()
                self._run_worker(self._setup, made, forked)
            finally:
                os._exit(1)
        made.report, made.channel = forked.pipe, ours
        self._plan.forked(made)

    def _run_worker(
        self, setup: WorkerSetup, made: Worker, forked: Forked, become_mold: Callable[[], None] | None = None
    ) -> NoReturn:
        """In the forked process, which has closed what is the master's: becomes the worker."""
        start = WorkerStart(
            info=self._info(made),
            setup=setup,
            scoreboard=(self._board, made.place),
            report=forked.pipe,
            liveness=self._liveness,
            leaving=plan.LEAVING,
            mask=forked.mask,
            master=self._pid,
            become_mold=become_mold,
        )
        worker_main.work(start, self._settings, self._listeners)

    # The mold

    def _start_mold(self) -> Mold:
        """Raises OSError."""
        return mold.start(self._run_mold, time.monotonic())

    def _run_mold(self, channel: socket.socket, forked: Forked) -> NoReturn:
        """In the forked process."""
        self._close_ours()
        self._service.forked()
        if self._molds is not None:
            self._molds.close()

        def become_worker(
            setup: WorkerSetup, which: tuple[int, int, int], forked: Forked, descriptor: int | None
        ) -> NoReturn:
            made = Worker(*which, os.getpid(), time.monotonic())
            if descriptor is None:
                self._run_worker(setup, made, forked)
            channel = socket.socket(fileno=descriptor)

            def become_mold() -> None:
                worker_mold.promoted(channel, str(made), self._settings, self._listeners, setup, become_worker)

            self._run_worker(setup, made, forked, become_mold)

        worker_mold.work(channel, forked, self._settings, self._listeners, self._setup, become_worker)

    def _load(self) -> None:
        """Has a mold load the application; until one has, nothing is forked."""
        assert self._molds is not None
        self._plan.may_fork = self._molds.current is not None
        self._molds.give_up_promoted()
        self._refork.worker = None
        try:
            self._molds.load()
        except OSError as error:
            log.logger.error("cannot fork a mold: %s; trying again", error.strerror)
            self._next_mold = time.monotonic() + plan.FIRST_DELAY

    def _tend_molds(self) -> None:
        """Forks with the mold that has loaded the application, and makes one where there is none."""
        if (molds := self._molds) is None:
            return
        now = time.monotonic()
        molds.kill_hung(now)
        if self._plan.is_stopping:
            return
        if molds.has_loaded():
            loaded, is_reload = molds.loading, molds.current is not None
            assert loaded is not None
            log.logger.info("%s has loaded the application in %.2f s", loaded, now - loaded.process.forked)
            molds.adopt()
            self._refork.restart()
            self._mold_failures = 0
            self._plan.may_fork = True
            if is_reload:
                self._plan.reload(now)
        elif molds.has_promoted():
            self._adopt_promoted(molds)
        elif molds.current is None and molds.loading is None and now >= self._next_mold:
            self._load()
        elif molds.loading is not None and not molds.loading.is_named and now >= molds.loading.slow_at:
            molds.loading.is_named = True
            self._log_slow(molds.loading, plan.SLOW_BOOT_AFTER)

    def _adopt_promoted(self, molds: Molds) -> None:
        """The worker that was to become the mold has ended its requests: it forks, and the others are replaced."""
        worker = self._refork.worker
        assert worker is not None
        molds.adopt_promoted()
        self._refork.worker = None
        self._serves_no_more(worker)
        log.logger.info("%s forks the workers from now on: it was worker %d (--refork)", molds.current, worker.number)
        for each in self._plan.serving:
            each.due = "is forked again from the new mold (--refork)"
            each.allowance.reason = REFORK
        self._hooks.worker_exit(self._info(worker, Ending(0)))

    def _choose_mold(self) -> None:
        """Has a worker become the mold, if one has processed enough requests."""
        molds, serving = self._molds, self._plan.serving
        if molds is None or molds.current is None or molds.loading is not None or self._is_leaving:
            return
        if self._plan.is_reloading or not self._plan.may_recycle or len(serving) < len(self._plan.workers):
            return
        if not self._plan.is_complete or any(each.due for each in serving):
            return
        requests = {each: self._board.counters(each.place)["requests"] for each in serving if each.channel is not None}
        if (chosen := self._refork.choose(requests.items())) is not None:
            chosen.due = f"has processed {log.counted(requests[chosen], 'request')} and becomes the mold (--refork)"
            chosen.allowance.reason = REFORK
            log.logger.info("%s %s", chosen, chosen.due)

    def _mold_times(self, now: float) -> list[float]:
        """When to look at the molds though nothing has happened."""
        if self._molds is None:
            return []
        times = [now + _ORPHAN_INTERVAL] if self._molds.has_orphans else []
        times += [at for at in (self._molds.wake_at(),) if at is not None]
        if self._plan.is_stopping:
            return times
        if (loading := self._molds.loading) is not None and not loading.is_named:
            times.append(loading.slow_at)
        if self._molds.current is None and self._molds.loading is None:
            times.append(max(now, self._next_mold))
        return times

    def _mold_has_ended(self, ended: Mold, ending: Ending) -> None:
        assert self._molds is not None
        was_loading, was_current = self._molds.loading is ended, self._molds.current is ended
        self._molds.forget(ended)
        if self._plan.is_stopping or not (was_loading or was_current):
            return
        self._plan.may_fork = self._molds.current is not None
        failure = ended.process.failure
        said = failure.message if failure else f"{ended} {ending}"
        trace = f"\n{failure.traceback.rstrip()}" if failure and failure.traceback else ""
        if was_loading and self._molds.current is not None:
            log.logger.error("reload failed, the old workers keep serving: %s%s", said, trace)
            self._service.reload_failed(said)
        elif was_loading and not self._plan.has_served:
            self._give_up(said, failure)
        else:
            delay = min(plan.FIRST_DELAY * 2.0 ** min(self._mold_failures, 10), plan.LONGEST_DELAY)
            log.logger.error("%s; making another one in %g s%s", said, delay, trace)
            self._next_mold = time.monotonic() + delay
            self._mold_failures += 1

    def _close_ours(self) -> None:
        """In a forked process: closes what is the master's alone."""
        for each in self._plan.workers:
            each.forget()
        os.close(self._liveness_writer)
        self._wakeups.close()
        self._wakeup_writer.close()

    @property
    def _is_leaving(self) -> bool:
        """True once the server was told to stop, also while it serves on for --shutdown-delay."""
        return self._close_at is not None or self._plan.is_stopping

    def _end_delay(self) -> None:
        if self._close_at is not None and not self._plan.is_stopping and time.monotonic() >= self._close_at:
            self._finish("--shutdown-delay is over")

    def _finish(self, why: str) -> None:
        """Stops, and lets the requests in flight finish if --graceful-timeout gives them time."""
        if not (graceful := self._settings.graceful_timeout):
            self._stop_now(why)
            return
        log.logger.info(
            "%s: finishing the requests in flight, for up to %g s; %s signal stops at once",
            why,
            graceful,
            "a second" if self._close_at is None else "another",
        )
        self._stop()

    def _stop(self) -> None:
        # The master closes its sockets first. So the last worker that closes its own ends the listening, and accepts
        # the connections that wait before it does.
        self._service.stopping("finishing the requests in flight")
        self._stop_listening()
        for each in self._plan.stop(time.monotonic()):
            self._drain(each)

    def _stop_listening(self) -> None:
        """Master and molds close their sockets."""
        for listener in self._listeners:
            listener.hand_over()
        if self._molds is not None:
            self._molds.leave()

    def _drain(self, each: Worker) -> None:
        """Has a worker drain: by SIGTERM, and by the scoreboard, which the core reads even if a request holds the
        interpreter."""
        self._board.drain(each.place, self._settings.graceful_timeout)
        each.send(signal.SIGTERM)

    def _stop_now(self, why: str) -> None:
        log.logger.info("%s: stopping now", why)
        self._service.stopping("stopping now")
        self._stop_listening()
        for each in self._plan.stop_now(time.monotonic()):
            each.send(signal.SIGQUIT)

    def _reload(self, now: float) -> None:
        self._follow_certificates()
        if self._molds is not None:
            log.logger.info("SIGHUP: loading the application%s", " once more" if self._molds.loading else "")
            self._fit_machine()
            self._service.reloading()
            self._load()
            return
        if self._setup.application is not None:
            # It is not loaded by its name.
            self._service.begin_upgrade("SIGHUP")
            return
        log.logger.info("SIGHUP: replacing the workers%s", " once more" if self._plan.is_reloading else "")
        self._fit_machine()
        self._service.reloading()
        self._plan.reload(now)

    def _fit_machine(self) -> None:
        """Reads again what the server may use, which can change while a container runs."""
        before, found = self._settings, cgroup.machine()
        if found == before.machine:
            return
        self._settings = replace(before, machine=found)
        if self._settings.worker_count != before.worker_count:
            self._plan.resize(self._settings.worker_count)
        announce_machine(self._settings, self._plan.wanted)

    def _restart(self, changed: FilesChanged) -> None:
        """Ends all workers because files have changed. New connections wait until a worker with the new code serves."""
        shown = [os.path.relpath(path) for path in changed.paths[:3]] + ["..."] * (len(changed.paths) > 3)
        log.logger.info("changed: %s; loading the application again", ", ".join(shown))
        for each in self._plan.restart(time.monotonic()):
            each.replaced_for = RELOAD
            each.send(signal.SIGTERM)
        watch.forget_bytecode(changed.paths)

    def _give_up(self, said: str, failure: Failure | None) -> None:
        """Stops the server: further workers would fail, too."""
        if self._last_failure is not None:
            return
        if failure is not None and not self._plan.has_served:
            # The same error as if the application had been loaded in the master.
            self._last_failure = WorkerError(failure.message, failure.traceback, failure.status)
        else:
            what = f"{FAILURES} workers in a row" if self._plan.has_served else "the first workers"
            self._last_failure = WorkerError(
                f"{what} ended before they were ready, so the server stops; the last failure: {said}",
                failure.traceback if failure else "",
            )
        self._stop()

    def _check_workers(self) -> None:
        """Reads the scoreboard and the memory of the workers, once every check interval."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + self._check_interval
        for each in self._plan.serving:
            if each.watch is not None and (hangs := each.watch.hangs(now, *self._board.signs_of_life(each.place))):
                self._replace_hung(each, hangs, now)
                continue
            if not each.due and self._plan.may_recycle:
                resident = each.resident() if each.allowance.rss is not None else 0
                each.due = each.allowance.exceeded(now, self._board.counters(each.place), resident)
                if each.due:
                    has_grown = each.allowance.reason == "max_rss"
                    causes = growth.named(self._board.endpoints(each.place)) if has_grown else ""
                    message = f"{each} {each.due}{causes}; replacing it"
                    requests = self._requests(each) if each.allowance.is_stuck else None
                    _log_with_requests(logging.INFO, message, each, requests)

        self._choose_mold()
        self._follow_certificates()
        if (most := self._settings.memory_in_use_limit) is not None and self._plan.may_recycle:
            self._check_cgroup(most)

    def _follow_certificates(self) -> None:
        """The workers follow the files themselves; only here it is logged."""
        if (served := self._service.certificates) is not None:
            certificates.refresh(served, logs=True)

    def _check_cgroup(self, most: int) -> None:
        """Replaces a worker before the kernel kills one for lack of memory. most: bytes that may be in use."""
        serving, machine = self._plan.serving, self._settings.machine
        if len(serving) < len(self._plan.workers) or not self._plan.is_complete or any(each.due for each in serving):
            # A worker starts or ends: what is in use is about to change.
            return
        if machine.accounts is None or (used := cgroup.memory_in_use(machine.accounts)) is None:
            return
        memory = [(each.allowance.initial, each.resident()) for each in serving]
        forks_application = self._setup.application is not None or self._molds is not None
        if (at := recycle.outgrown(most, used, memory, forks_application=forks_application)) is None:
            return
        grown, (initial, resident) = serving[at], memory[at]
        grown.allowance.reason = "max_rss"
        grown.due = f"has grown by {resident - initial >> 20} MiB (--max-rss auto)"
        log.logger.info(
            "%s %s%s; %d MiB of %s in use; replacing it",
            grown,
            grown.due,
            growth.named(self._board.endpoints(grown.place)),
            used >> 20,
            machine.memory_shown,
        )

    def _old_workers(self) -> list[Worker]:
        """Those that serve and are not on trial."""
        return [each for each in self._plan.serving if not self._plan.is_on_trial(each)]

    def _tend_trial(self) -> None:
        """Rejects the reload as soon as the worker on trial has more errors; accepts or rejects it at the end."""
        if (current := self._trial) is None:
            return
        if (ends := self._plan.trial_ends) is None:
            self._trial = None
            if current.worker.is_serving and self._plan.has_current_code(current.worker):
                log.logger.info("reload accepted: no old worker is left to compare %s with", current.worker)
            return
        now, old_workers = time.monotonic(), self._old_workers()
        if now < ends and now < self._check_at:
            return
        old_counts = {each.pid: self._board.deliveries(each.place) for each in old_workers}
        new, old = current.figures(self._board.deliveries(current.worker.place), old_counts)
        figures = f"{new}; the old workers in the same time: {old}"
        if old_workers and (fault := trial.fault(new, old, is_over=now >= ends)):
            self._trial = None
            self._plan.reject()
            self._undo(f"{current.worker} {fault} (--reload-trial): {figures}")
        elif now >= ends:
            self._trial = None
            self._plan.accept()
            log.logger.info("reload accepted: %s had %s", current.worker, figures)

    def _undo(self, why: str) -> None:
        """The plan has rejected the reload."""
        log.logger.error("reload undone, the old workers keep serving: %s", why)
        self._go_back(why)

    def _go_back(self, why: str) -> None:
        """The reload has failed. If the old mold lives, it forks workers with the old code again."""
        self._service.reload_failed(why)
        has_old_code = self._molds is not None and self._molds.go_back()
        if has_old_code:
            self._plan.keeps_rejected_code_out = False
        elif self._plan.keeps_rejected_code_out:
            log.logger.warning(
                "restore the old code: until the next reload, no worker is recycled (--max-requests, --max-lifetime, "
                "--max-rss), because its successor would load the rejected code"
            )

    def _replace_hung(self, each: Worker, hangs: str, now: float) -> None:
        message = f"{each} {hangs}; killing and replacing it"
        _log_with_requests(logging.ERROR, message, each, self._requests(each))
        # If its I/O thread still runs, it refuses the requests that have not begun.
        self._board.drain(each.place, 0.0)
        each.send(report.STACKS)
        each.replaced_for = HANG
        if self._plan.hangs(each, now):
            self._undo(f"{each} hung while it was on trial (--reload-trial)")

    # Status

    def _tend_status(self) -> None:
        """Tells the status process what has changed, and has there be one."""
        if (status := self._service.status) is None:
            return
        self._publish()
        status.tend(self._board, time.monotonic(), self._close_for_status)

    def _tend_statsd(self, *, is_last: bool = False) -> None:
        """Sends the figures for `--statsd` if it is time, or for the last time."""
        if (statsd := self._service.statsd) is None:
            return
        try:
            if is_last:
                statsd.send(self._snapshot)
            else:
                statsd.tend(self._snapshot, time.monotonic())
        except Exception:  # the server can serve without them
            log.logger.exception("--statsd: cannot send metrics; trying again")

    def _snapshot(self) -> Snapshot:
        return snapshot.at_once(self._state(), self._board, time.monotonic())

    def _publish(self) -> None:
        if (status := self._service.status) is not None:
            status.publish(self._state(), self._places)

    def _state(self) -> State:
        application = self._setup.application
        return State(
            application=self._settings.app or getattr(application, "__qualname__", None) or type(application).__name__,
            listeners=self._urls,
            master=os.getpid(),
            began=self._began,
            wanted=self._plan.wanted,
            threads_each=self._threads_each,
            stopping=self._is_leaving,
            has_served=self._plan.has_served,
            may_hang=not self._settings.debug,
            gevent=self._settings.gevent,
            restarts=dict(self._tally.restarts),
            ended=dict(self._tally.ended),
            delivered=self._tally.delivered,
            workers=self._states.of(self._plan.workers),
            certificates=certificates.expiries(self._service.certificates),
        )

    def _close_for_status(self) -> None:
        """In the status process: closes also what the workers have."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.socket.close()
        os.close(self._liveness)
        if self._molds is not None:
            self._molds.close()
        self._close_ours()
        self._service.forked(is_status=True)

    def _note_reason(self, drained: Worker) -> None:
        """Why a worker is replaced, for counts. One that is just too many (SIGTTOU) is not replaced."""
        if drained.due:
            drained.replaced_for = drained.allowance.reason
        elif any(each.number == drained.number and each.generation > drained.generation for each in self._plan.serving):
            drained.replaced_for = RELOAD

    def _requests(self, each: Worker) -> list[str] | None:
        """The requests that a worker has in flight, for the log; None: it does not serve yet."""
        if each.is_booting:
            return None
        return [
            f"{log.request_name(request)} from {request['client'] or '-'}, for "
            f"{request['seconds']:.3f} s" + f", in thread {request['thread']}" * (not self._settings.gevent)
            for request in self._board.in_flight(each.place)
        ]

    def _info(self, each: Worker, ending: Ending | None = None) -> WorkerInfo:
        """What hooks are told about a worker."""
        if ending is None:
            return WorkerInfo(each.number, each.pid, each.generation)
        return WorkerInfo(each.number, each.pid, each.generation, ending.exit_status, ending.exit_signal)


def _log_with_requests(level: int, message: str, each: Worker, requests: list[str] | None) -> None:
    """Logs a message about a worker with all its requests, in several entries if there are many."""
    if requests is None:
        log.logger.log(level, "%s", message)
        return
    message += f"; it was running {log.counted(len(requests), 'request')}"
    if len(requests) > _MOST_SHOWN:
        message += (
            f", of which the first {_MOST_SHOWN} follow here and {len(requests) - _MOST_SHOWN} in the next entries"
        )
    for start in range(0, max(1, len(requests)), _MOST_SHOWN):
        shown = requests[start : start + _MOST_SHOWN]
        log.logger.log(level, "%s", "\n  ".join([message, *shown]))
        message = f"further requests of {each}"


@contextlib.contextmanager
def _wakeup_sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our signals arrive as bytes in the first of two sockets. At the end the previous handlers are set again."""
    reader, writer = signals.wakeup_sockets()
    with reader, writer:
        reader.setblocking(False)
        forks.keep_from_children(reader, writer)
        with signals.woken(writer, SIGNALS):
            yield reader, writer


@contextlib.contextmanager
def _liveness_pipe() -> Iterator[tuple[int, int]]:
    """A pipe in which nothing is ever written: the reading end for the workers, the writing end for the master
    alone."""
    reader, writer = os.pipe()
    # Also in a process that a hook or a preloaded application forks; else the workers would not see the master's end.
    forks.keep_from_children(reader, writer)
    try:
        yield reader, writer
    finally:
        forks.forget(reader, writer)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Inside the context, the garbage collector ignores the objects that exist at its start, also in the workers.

    A collection writes to each object that it visits, so each worker would get its own copy of the shared memory.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
