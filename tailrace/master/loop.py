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
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from tailrace import metrics
from tailrace._tailrace import Scoreboard
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import WorkerError, denial
from tailrace.logs import log
from tailrace.master import growth, hang, plan, recycle, trial, watch, workers
from tailrace.master.forker import Admitted, CannotLoad, Direct, Ended, Forker, ForkFailed, ReloadFailed
from tailrace.master.mold import Molds
from tailrace.master.plan import FAILURES, Drain, Fork, Kill, Loading, Plan, Reloaded, SlowBoot, Verdict
from tailrace.master.recycle import Due, Reason
from tailrace.master.service import Service, Upgraded
from tailrace.master.status import States
from tailrace.master.tally import Tally
from tailrace.master.trial import Trial
from tailrace.master.workers import Ending, Hung, Killed, Worker
from tailrace.status.state import State
from tailrace.system import cgroup, forks, signals, sockets
from tailrace.worker import certificates, report
from tailrace.worker import main as worker_main
from tailrace.worker import mold as worker_mold
from tailrace.worker.announce import announce, announce_machine
from tailrace.worker.fork import Forked
from tailrace.worker.hooks import WorkerInfo
from tailrace.worker.main import WorkerSetup, WorkerStart
from tailrace.worker.report import Failure

if TYPE_CHECKING:
    from tailrace.status.snapshot import Snapshot

_STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
SIGNALS: Final = (
    *_STOPS,
    *(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG, signal.SIGCHLD),
)
INTERRUPTED: Final = 130
# From one check of the workers to the next (seconds): usually, and when their requests, time or memory are limited.
_CHECK_INTERVAL: Final = 1.0
_SHORT_CHECK_INTERVAL: Final = 0.25
# With a shorter --hang-timeout (seconds) the short interval is used, too.
_SHORT_HANG_TIMEOUT: Final = 10.0
# Places of the scoreboard: more than workers, since workers that are replaced may take long to drain.
_FEWEST_PLACES: Final = 32
_PLACES_EACH: Final = 4
# At most so many requests of a worker are named in one entry of the log; the others have further entries.
_MAX_SHOWN: Final = 20
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
        # Time since which responses are counted by endpoint.
        self._counted = time.time()
        self._states = States()
        threads = settings.concurrency
        self._board = Scoreboard(places, threads, settings.query_masking)
        metrics.use(self._board.numbers)
        self._threads_each = 1 if settings.debug else threads
        self._tally = Tally(self._board.deliveries(0))
        self._plan = Plan(count, places, settings.graceful_timeout, settings.reload_trial)
        self._trial: Trial | None = None
        self._forker: Forker = (
            Molds(self._plan, settings, self._run_mold)
            if settings.preload and setup.application is None
            else Direct(self._plan, settings, self._run_forked)
        )
        # Time of the last log reopening; also needed for workers that are being forked.
        self._reopened = float("-inf")
        self._limits = recycle.Limits.of(settings)
        self._chance = random.Random()
        self._hang_timeout = settings.hang_timeout
        has_limits = self._limits != recycle.Limits() or settings.max_rss == "auto"
        checks_often = has_limits or 0 < self._hang_timeout < _SHORT_HANG_TIMEOUT
        self._check_interval = _SHORT_CHECK_INTERVAL if checks_often else _CHECK_INTERVAL
        self._check_at = 0.0
        self._pid = os.getpid()
        self._urls = [listener.url for listener in listeners if not listener.publishes]
        self._stops = stops
        # When the sockets close, for --shutdown-delay. The plan does not stop before.
        self._close_at: float | None = None
        # At the stop, the workers that drain once only they listen.
        self._to_drain: list[Worker] = []
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
            _frozen(collects=self._setup.application is not None),
        ):
            self._forker.begin()
            while True:
                now = time.monotonic()
                for action in self._plan.next(now):
                    self._do(action, now)
                if self._plan.is_complete and not self._all_have_served:
                    self._all_have_served = True
                    self._tell_service_ready()
                if self._plan.is_over:
                    break
                # Before the status process, which is told of it.
                self._tend_holding()
                self._tend_status()
                self._tend_statsd()
                self._wait()
                # Signals are read before the ends of workers, since whoever stops the master may have stopped the
                # workers, too. Reports are handled before signals, so that a worker that served before the signal
                # counts as such.
                arrived = self._signals()
                self._read_reports()
                for number, at in arrived:
                    self._handle_signal(number, at)
                self._handle_service_events()
                self._end_delay()
                self._handle_forker_events()
                self._drain_workers()
                try:
                    self._tend_trial()
                    self._check_workers()
                except Exception:  # the workers can serve without these checks
                    log.logger.exception("a check of the workers failed; they keep serving, and are checked again")
        self._forker.join()
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
        wakes = (self._plan.wake_at(now), self._service.wake_at(), self._forker.wake_at(now), closes_at)
        times += [at for at in wakes if at is not None]
        poll = select.poll()
        poll.register(self._wakeups, select.POLLIN)
        for each in self._plan.workers:
            if each.report >= 0:
                poll.register(each.report, select.POLLIN)
        for descriptor in [*self._service.descriptors(), *self._forker.descriptors()]:
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
        match number:
            case signal.SIGTERM | signal.SIGINT:
                self._asked_to_stop(signal.Signals(number))
            case signal.SIGQUIT:
                self._stop_now("SIGQUIT")
            case signal.SIGUSR1:
                self._reopen_logs()
            case signal.SIGURG if not self._settings.gevent:
                log.logger.info("SIGURG: ignored, since only --gevent has greenlets whose stacks can be logged")
            case signal.SIGURG:
                for each in self._plan.workers:
                    each.send(signal.SIGURG)
            case _ if self._is_leaving:
                pass
            case signal.SIGHUP:
                self._reload(time.monotonic())
            case signal.SIGUSR2:
                self._service.begin_upgrade()
            case signal.SIGTTIN:
                limit = "" if self._plan.grow() else ", which is the maximum"
                log.logger.info("SIGTTIN: %s%s", log.counted(self._plan.wanted, "worker"), limit)
            case signal.SIGTTOU:
                limit = "" if self._plan.shrink() else ", which is the minimum"
                log.logger.info("SIGTTOU: %s%s", log.counted(self._plan.wanted, "worker"), limit)

    def _asked_to_stop(self, number: signal.Signals) -> None:
        """SIGTERM or SIGINT has arrived."""
        if number == signal.SIGINT and not self._plan.has_served:
            self._status = INTERRUPTED
        delay = self._settings.shutdown_delay
        if self._plan.is_stopping:
            self._stop_now(number.name)
        elif not self._plan.has_served and self._settings.graceful_timeout:
            log.logger.info("%s: stopping before the application has loaded", number.name)
            self._stop()
        elif number == signal.SIGTERM and self._plan.has_served and delay and self._close_at is None:
            log.logger.info(
                "SIGTERM: serving for another %g s (--shutdown-delay), not ready any more; a second signal ends this",
                delay,
            )
            self._close_at = time.monotonic() + delay
            self._service.stopping("serving until the shutdown delay ends")
        else:
            self._finish(number.name)

    def _reopen_logs(self) -> None:
        self._reopened = time.monotonic()
        if log.reopen():
            log.logger.info("SIGUSR1: log reopened")
        for each in [*self._plan.workers, *self._forker.processes()]:
            each.send(signal.SIGUSR1)
        if (status := self._service.status) is not None:
            status.reopen_logs()
        if (holding := self._service.holding) is not None:
            holding.reopen_logs()

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
            if not has_ended and each not in self._to_drain:
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

    def _handle_forker_events(self) -> None:
        now = time.monotonic()
        for event in self._forker.events(now):
            match event:
                case Admitted(worker):
                    if self._reopened >= worker.forked:
                        worker.send(signal.SIGUSR1)
                case ForkFailed(worker, why):
                    self._fork_failed(worker, why, now)
                case Ended(worker, ending):
                    # It may have written its report just before its end.
                    if worker.read_report():
                        self._is_ready(worker, has_ended=True)
                    self._has_ended(worker, ending)
                case ReloadFailed(why, traceback):
                    log.logger.error("reload failed, the old workers keep serving: %s%s", why, traceback)
                    self._service.reload_failed(why)
                case CannotLoad(why, failure):
                    self._give_up(why, failure)

    def _has_ended(self, ended: Worker, ending: Ending) -> None:
        """A worker has ended: updates the plan, logs the end, and calls the hook."""
        was_killed, failure = isinstance(ended.phase, (Hung, Killed)), ended.failure
        requests = self._requests(ended)
        verdict = self._serves_no_more(ended)
        said, trace = ended.explained(ending)
        if verdict is Verdict.EXPECTED:
            # SIGTERM kills only a worker that does not serve yet.
            if ending.is_clean or was_killed or failure or ending.exit_signal == signal.SIGTERM or ending.is_orphan:
                log.logger.log(logging.INFO if self._plan.has_served else logging.DEBUG, "%s has ended", ended)
            else:
                when = "after its last request" if requests == [] else "while it drained"
                _log_with_requests(logging.ERROR, f"{said} {when}", ended, requests or None)
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
        ended.forget_report()
        counters, deliveries = self._board.counters(ended.place), self._board.deliveries(ended.place)
        running = len(self._board.in_flight(ended.place))
        self._tally.has_ended(ended, verdict, counters, deliveries, running)
        # Before the counters are cleared: the status process must not count them twice, nor lose them.
        self._publish()
        self._board.keep(ended.place, ended.number, self._plan.has_current_code(ended))
        self._board.clear(ended.place)
        self._board.numbers.forget(ended.pid)
        return verdict

    # Actions

    def _do(self, action: plan.Action, now: float) -> None:
        match action:
            case Fork():
                self._fork(action, now)
            case Drain(worker):
                log.logger.info("%s drains", worker)
                self._note_reason(worker)
                self._drain(worker)
            case Kill(worker, hung):
                self._kill(worker, hung, now)
            case Loading():
                self._forker.tell_loading()
            case SlowBoot(worker, seconds):
                workers.log_slow(worker, seconds)
            case Reloaded(seconds):
                # What the code before the reload has cost is fixed, or to be compared.
                self._board.forget_endpoints()
                self._counted = time.time()
                self._forker.retire_former()
                if not any(each.is_broken for each in self._plan.serving):
                    log.logger.info("reload complete in %.2f s", seconds)
                self._tell_service_ready()

    def _fork(self, action: Fork, now: float) -> None:
        if not self._plan.may_fork():
            # The plan requests the fork again once the mold has capacity.
            return
        self._board.clear(action.place)
        made = Worker(0, now, number=action.number, place=action.place, generation=action.generation)
        try:
            self._forker.fork(made)
        except OSError as error:
            self._fork_failed(made, denial(error), now)
        else:
            self._plan.forked(made)

    def _kill(self, worker: Worker, hung: bool, now: float) -> None:
        if self._forker.gives_up(worker):
            self._fork_failed(worker, "", now)
            return
        if not hung:
            message = f"{worker} did not end in time and is killed"
            _log_with_requests(logging.WARNING, message, worker, self._requests(worker))
        worker.send(signal.SIGKILL)

    def _fork_failed(self, made: Worker, why: str, now: float) -> None:
        if made.is_booting:
            log.logger.error("cannot fork worker %d: %s; trying again", made.number, why)
        made.forget_report()
        self._plan.fork_failed(made, now)

    # In forked processes

    def _run_forked(self, made: Worker, forked: Forked) -> NoReturn:
        self._close_ours()
        self._service.forked()
        self._run_worker(self._setup, made, forked)

    def _run_mold(self, channel: socket.socket, forked: Forked) -> NoReturn:
        self._close_ours()
        self._service.forked()

        def become_worker(setup: WorkerSetup, which: tuple[int, int, int], forked: Forked, descriptor: int) -> NoReturn:
            number, place, generation = which
            made = Worker(os.getpid(), time.monotonic(), number=number, place=place, generation=generation)
            channel = socket.socket(fileno=descriptor)
            if not worker_mold.await_admission(channel):
                os._exit(0)
            channel.close()
            self._run_worker(setup, made, forked)

        worker_mold.work(channel, forked, self._settings, self._listeners, self._setup, become_worker)

    def _run_worker(self, setup: WorkerSetup, made: Worker, forked: Forked) -> NoReturn:
        """Becomes the worker."""
        start = WorkerStart(
            info=self._info(made),
            setup=setup,
            scoreboard=(self._board, made.place),
            report=forked.pipe,
            liveness=self._liveness,
            leaving=plan.LEAVING,
            mask=forked.mask,
            master=self._pid,
        )
        worker_main.work(start, self._settings, self._listeners)

    def _close_ours(self) -> None:
        """Closes what is the master's alone."""
        self._forker.close()
        for each in self._plan.workers:
            each.forget_report()
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
        # Master and molds close their sockets first. So the last worker that closes its own ends the listening, and
        # accepts the connections that wait before it does.
        self._service.stopping("finishing the requests in flight")
        self._stop_listening()
        self._to_drain += self._plan.stop(time.monotonic())
        self._drain_workers()

    def _stop_listening(self) -> None:
        """Master and molds close their sockets."""
        for listener in self._listeners:
            listener.hand_over()
        self._forker.leave(time.monotonic())

    def _drain_workers(self) -> None:
        """Has the workers drain at the stop, once only they listen."""
        if self._to_drain and self._forker.has_left(time.monotonic()):
            for each in self._to_drain:
                if each in self._plan.workers:
                    self._drain(each)
            self._to_drain = []

    def _drain(self, each: Worker) -> None:
        """Has a worker drain: by SIGTERM, and by the scoreboard, which the core reads even if a request holds the
        interpreter."""
        self._board.drain(each.place, self._settings.graceful_timeout)
        each.send(signal.SIGTERM)

    def _stop_now(self, why: str) -> None:
        log.logger.info("%s: stopping now", why)
        self._service.stopping("stopping now")
        self._stop_listening()
        self._to_drain = []
        for each in self._plan.stop_now(time.monotonic()):
            each.send(signal.SIGQUIT)

    def _reload(self, now: float) -> None:
        self._follow_certificates()
        if self._setup.application is not None:
            # It is not loaded by its name.
            self._service.begin_upgrade("SIGHUP")
            return
        again = " once more" * self._forker.is_reloading
        log.logger.info("SIGHUP: %s%s", self._forker.loads, again)
        self._fit_machine()
        self._service.reloading()
        self._forker.reload(now)

    def _fit_machine(self) -> None:
        """Reads again what the server may use, which can change while a container runs."""
        before, found = self._settings, cgroup.machine()
        if found == before.machine:
            return
        self._settings = replace(before, machine=found)
        if self._settings.worker_count != before.worker_count:
            self._plan.resize(self._settings.worker_count)
        announce_machine(self._settings, self._plan.wanted)

    def _restart(self, changed: watch.Changed) -> None:
        """Ends all workers because files have changed. New connections wait until a worker with the new code serves."""
        shown = [os.path.relpath(path) for path in changed.paths[:3]] + ["..."] * (len(changed.paths) > 3)
        log.logger.info("changed: %s; loading the application again", ", ".join(shown))
        for each in self._plan.restart(time.monotonic()):
            each.replaced_for = Reason.RELOAD
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
            if each.due is None and self._plan.may_recycle:
                resident = each.resident() if each.allowance.rss is not None else 0
                each.due = each.allowance.exceeded(now, self._board.counters(each.place), resident)
                if (due := each.due) is not None:
                    causes = growth.named(self._board.endpoints(each.place)) if due.reason is Reason.MAX_RSS else ""
                    message = f"{each} {due.detail}{causes}; replacing it"
                    requests = self._requests(each) if due.reason is Reason.STUCK_THREAD else None
                    _log_with_requests(logging.INFO, message, each, requests)

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
        if (
            len(serving) < len(self._plan.workers)
            or not self._plan.is_complete
            or any(each.due is not None for each in serving)
        ):
            # A worker starts or ends: what is in use is about to change.
            return
        if machine.accounts is None or (used := cgroup.memory_in_use(machine.accounts)) is None:
            return
        memory = [(each.allowance.initial, each.resident()) for each in serving]
        if (at := recycle.outgrown(most, used, memory, shares_memory=self._forker.shares_memory)) is None:
            return
        grown, (initial, resident) = serving[at], memory[at]
        due = grown.due = Due(Reason.MAX_RSS, f"has grown by {resident - initial >> 20} MiB (--max-rss auto)")
        log.logger.info(
            "%s %s%s; %d MiB of %s in use; replacing it",
            grown,
            due.detail,
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
            if current.worker in self._plan.serving and self._plan.has_current_code(current.worker):
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
        """The reload has failed. A further one, whose mold loads already, goes on."""
        has_old_code = self._forker.go_back()
        if not self._forker.is_reloading:
            self._service.reload_failed(why)
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
        each.replaced_for = Reason.HANG
        if self._plan.hangs(each, now):
            self._undo(f"{each} hung while it was on trial (--reload-trial)")

    # Status

    def _tend_status(self) -> None:
        """Tells the status process what has changed, and has there be one."""
        if (status := self._service.status) is None:
            return
        self._publish()
        status.tend(self._board, time.monotonic(), lambda: self._close_for_other(is_status=True))

    def _tend_holding(self) -> None:
        """Has there be a process that holds connections, if there are any."""
        if (holding := self._service.holding) is not None:
            holding.tend(time.monotonic(), lambda: self._close_for_other(is_holder=True))

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
        # Imported here, as `statsd` in `service`: without --statsd, the master takes no snapshots.
        from tailrace.status import snapshot

        return snapshot.at_once(self._state(), self._board, time.monotonic())

    def _publish(self) -> None:
        if (status := self._service.status) is not None:
            status.publish(self._state(), self._places)

    def _state(self) -> State:
        application, holding = self._setup.application, self._service.holding
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
            restarts={reason.value: count for reason, count in self._tally.restarts.items()},
            ended=dict(self._tally.ended),
            delivered=self._tally.delivered,
            counted=self._counted,
            workers=self._states.of(each for each in self._plan.workers if each.pid),
            certificates=certificates.expiries(self._service.certificates),
            holder=holding.pid if holding else 0,
            holder_address=holding.address if holding else "",
        )

    def _close_for_other(self, *, is_status: bool = False, is_holder: bool = False) -> None:
        """In a process that is no worker: closes also what the workers have."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.socket.close()
        os.close(self._liveness)
        self._close_ours()
        self._service.forked(is_status=is_status, is_holder=is_holder)

    def _note_reason(self, drained: Worker) -> None:
        """Why a worker is replaced, for counts. One that is just too many (SIGTTOU) is not replaced."""
        if drained.due is not None:
            drained.replaced_for = drained.due.reason
        elif any(each.number == drained.number and each.generation > drained.generation for each in self._plan.serving):
            drained.replaced_for = Reason.RELOAD

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
    if len(requests) > _MAX_SHOWN:
        message += f", of which the first {_MAX_SHOWN} follow here and {len(requests) - _MAX_SHOWN} in the next entries"
    for start in range(0, max(1, len(requests)), _MAX_SHOWN):
        shown = requests[start : start + _MAX_SHOWN]
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
def _frozen(*, collects: bool) -> Iterator[None]:
    """Inside the context, the garbage collector ignores the objects that exist at its start, also in the workers.
    collects: frees those that are not used first: those of an application, since the command leaves hardly any.

    A collection writes to each object that it visits, so each worker would get its own copy of the shared memory.
    """
    if collects:
        gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
