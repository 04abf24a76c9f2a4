"""The service around a master: service manager, pid file, user, predecessor and successor, file watcher.

The master calls the methods at certain times, and calls `events` in its loop; the master decides what these mean for
the workers. A new master changes neither the pid file nor the state that the service manager shows until its
predecessor has handed over. In a program that embeds Tailrace a `Service` without arguments does nothing.

Thread: the master's only one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace._tailrace import Certificates
from tailrace.cli.envfile import Variables
from tailrace.cli.options import BY_NAME
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import Setting, Settings, is_chosen
from tailrace.errors import ConfigError, UpgradeError
from tailrace.logs import log
from tailrace.master import notify, status, upgrade, watch
from tailrace.master.companion import Process
from tailrace.master.holding import Holding
from tailrace.system import identity
from tailrace.system.pidfile import PidFile
from tailrace.system.sockets import Listener, remove_file
from tailrace.system.title import set_title
from tailrace.worker import holder

if TYPE_CHECKING:
    from tailrace.master.statsd import Statsd


class Upgraded:
    """The successor serves: this master hands over and stops."""


Event = Upgraded | watch.Changed


class Service:
    """The service around one master; without arguments it does nothing."""

    def __init__(
        self,
        *,
        manager: notify.Manager | None = None,
        origin: upgrade.Origin | None = None,
        predecessor: upgrade.Predecessor | None = None,
        passed: Sequence[int] = (),
    ) -> None:
        self.origin = origin
        self._passed = passed
        self._manager = manager or notify.Manager()
        self._predecessor = predecessor
        self._successor: upgrade.Successor | None = None
        self._failed: list[upgrade.Successor] = []
        # The signal that has asked for the successor.
        self._asked = ""
        self._watcher: watch.Watcher | None = None
        self._status: status.Status | None = None
        self._former: Process | None = None
        self._holding: Holding | None = None
        self._variables: Variables | None = None
        self._statsd: Statsd | None = None
        self._pid_file: PidFile | None = None
        self._listeners: list[Listener] = []
        self.certificates: Certificates | None = None
        self._alive_at = 0.0
        self._serves = False
        # This master was told to stop before it took over, so the predecessor stays the master.
        self._gave_up = False

    def __enter__(self) -> Service:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(self, *exception: object) -> None:
        """Called when all workers have ended, or none was started."""
        self._stop_watching()
        if self._former:
            self._former.end()
        if self._status:
            self._status.close()
        if self._statsd:
            self._statsd.close()
        if self._holding:
            self._holding.close()
        if self._pid_file and not self._predecessor:
            self._pid_file.remove()
        self._manager.close()

    # Start

    def kept(self, address: str) -> int | None:
        """The descriptor of a socket that the predecessor bound to the address."""
        return self._predecessor.listener(address) if self._predecessor else None

    def set_up(
        self,
        settings: ServerSettings,
        listeners: list[Listener],
        certificates: Certificates | None = None,
        variables: Variables | None = None,
    ) -> None:
        """Once the sockets are bound: opens the addresses of `--status`, `--haproxy-agent` and `--statsd`, makes the
        pid file, sets title and user, starts the watcher. Raises ConfigError."""
        self._listeners, self.certificates, self._variables = listeners, certificates, variables
        predecessor = self._predecessor
        self._status = status.opened(settings, certificates, kept=self.kept)
        try:
            self._holding = Holding(settings, self.kept)
        except OSError as error:
            holder.note_missing(settings, error)
        if settings.statsd is not None:
            # Imported here: what reads the state for others takes milliseconds to import.
            from tailrace.master import statsd

            self._statsd = statsd.opened(settings.statsd)
        if predecessor:
            predecessor.close_rest()
        if settings.pidfile is not None:
            pid_file = PidFile(settings.pidfile)
            if predecessor:
                pid_file.check(predecessor.pid)
            else:
                pid_file.claim()
            self._pid_file = pid_file
        set_title("master", settings.app or "")
        others = self._status.listeners if self._status else []
        paths = [self._pid_file.path] if self._pid_file else []
        identity.change_user(settings.user, settings.group, settings.access_log, [*listeners, *others], paths)
        if settings.reload:
            env_file = settings.env_file
            files = [env_file] if env_file else []
            self._watcher = watch.start(settings.app, files, settings.reload_include)

    # The loop

    def descriptors(self) -> list[int]:
        """Descriptors to wait for."""
        found = self._successor.descriptors if self._successor else []
        if self._predecessor and self._predecessor.line.fileno() >= 0:
            found.append(self._predecessor.line.fileno())
        if self._watcher and self._watcher.pipe >= 0:
            found.append(self._watcher.pipe)
        if self._status:
            found += self._status.descriptors()
        if self._former:
            found.append(self._former.handle)
        if self.holding:
            found += self.holding.descriptors(time.monotonic())
        return found

    @property
    def holding(self) -> Holding | None:
        """The process that holds connections. A master that has not taken over yet leaves them to its predecessor."""
        return self._holding if self._is_main else None

    @property
    def status(self) -> status.Status | None:
        """The status process, once this master is the one that answers for the server."""
        return self._status if self._is_main else None

    @property
    def statsd(self) -> Statsd | None:
        """Where figures are sent, once this master is the one that answers for the server."""
        return self._statsd if self._is_main else None

    def wake_at(self) -> float | None:
        """When `watchdog` is due, a status process, or `--statsd`; None: none of them."""
        times = [self._watchdog_at(), *(each.wake_at() for each in (self.status, self.statsd) if each)]
        if self.holding:
            times.append(self.holding.wake_at(time.monotonic()))
        return min((at for at in times if at is not None), default=None)

    def _watchdog_at(self) -> float | None:
        return self._alive_at if self._manager.watchdog_interval and self._is_main and self._serves else None

    def events(self, now: float) -> list[Event]:
        """What has happened since the last call."""
        found: list[Event] = []
        if self._predecessor and not self._gave_up and self._predecessor.has_let_go():
            self._take_over(self._predecessor)
        if self._successor and self._is_ready(self._successor):
            found.append(Upgraded())
        self._failed = [each for each in self._failed if each.reap() is None]
        if self._watcher:
            found += self._watched(self._watcher)
        if self._former and (ending := self._former.reap()) is not None:
            if self._former.stays:
                log.logger.error("the status process %s; traces of the workers that are left are lost", ending)
            self._former = None
        if (at := self._watchdog_at()) is not None and now >= at:
            assert self._manager.watchdog_interval is not None
            self._manager.watchdog()
            self._alive_at = now + self._manager.watchdog_interval
        return found

    def _is_ready(self, successor: upgrade.Successor) -> bool:
        try:
            is_ready = successor.read() is True
        except UpgradeError as error:
            # A traceback and the like; a single line is in the error already.
            more = f"\n{successor.text}" if "\n" in successor.text else ""
            log.logger.error("%s: %s; this master (process %d) keeps running%s", self._asked, error, os.getpid(), more)
            self._tell_ready(f"upgrade failed: {error}")
            successor.close()
            self._failed.append(successor)
            self._successor = None
            return False
        if is_ready and successor.text:
            log.logger.warning(
                "%s: output of process %d during its start:\n%s", self._asked, successor.pid, successor.text
            )
        return is_ready

    def _watched(self, watcher: watch.Watcher) -> list[Event]:
        found: list[Event] = []
        for event in watcher.read():
            if isinstance(event, watch.Watching):
                log.logger.info("watching the files in %s", ", ".join(event.directories))
            elif isinstance(event, watch.Failed):
                log.logger.error(
                    "--reload: file changes are no longer noticed, so restart the server: %s", event.reason
                )
            else:
                found.append(event)
        return found

    # Called by the master

    def serves(self, status: str) -> None:
        """All workers serve, for the first time, or again after `reloading`."""
        first, self._serves = not self._serves, True
        if self._predecessor:
            if first:
                self._predecessor.ready()
        else:
            self._tell_ready(status)

    def reloading(self) -> None:
        """A reload begins."""
        if self._is_main:
            self._manager.reloading("replacing the workers")

    def reload_failed(self, reason: str) -> None:
        """The reload failed, and the old workers keep serving."""
        if self._is_main:
            self._tell_ready(f"reload failed, the old workers keep serving: {reason}")

    def stopping(self, status: str) -> None:
        """The master begins to stop, and does not hand over. status: what it does, for a service manager."""
        if self._predecessor:
            self._gave_up = True
            self._predecessor.close()
        else:
            self._manager.stopping(status)
        if self._successor:
            self._successor.stop()
            self._successor.close()
            self._failed.append(self._successor)
            self._successor = None
        self._stop_watching()

    def forked(self, *, is_status: bool = False, is_holder: bool = False) -> None:
        """In another process of this server: closes the descriptors that are the master's."""
        for each in (self._predecessor, self._successor, self._watcher, self._manager, self._former, self._statsd):
            if each:
                each.close()
        if self._status and not is_status:
            self._status.forked()
        if self._holding and not is_holder:
            self._holding.forked(is_worker=not is_status)

    # Upgrade

    def begin_upgrade(self, asked: str = "SIGUSR2") -> None:
        """Starts the successor; `events` has Upgraded when it serves. asked: the signal, for the log."""
        if self.origin is None:
            log.logger.error(
                "%s: ignored, since only a server started by the `tailrace` command can be replaced", asked
            )
        elif self._predecessor:
            log.logger.error(
                "%s: ignored, since the previous master (process %d) has not handed over yet; try again later",
                asked,
                self._predecessor.pid,
            )
        elif self._successor:
            log.logger.error(
                "%s: ignored, since a new master (process %d) is starting; to cancel that, send it SIGTERM",
                asked,
                self._successor.pid,
            )
        else:
            others = self._status.listeners if self._status else []
            try:
                passed = [(str(each.address), each.socket.fileno()) for each in (*self._listeners, *others)]
                passed += self._holding.passed if self._holding else []
                hidden = self._variables.hidden() if self._variables else ""
                self._successor = upgrade.start(self.origin, passed, self._passed, hidden)
            except UpgradeError as error:
                log.logger.error("%s: %s", asked, error)
            else:
                self._manager.reloading(f"process {self._successor.pid} will take over")
                self._asked = asked
                log.logger.info(
                    "%s: process %d is starting, and takes over when it is ready", asked, self._successor.pid
                )
                if hidden:
                    log.logger.info(
                        "%s: this user cannot read the --env-file, so process %d gets the values that were read at the "
                        "start; to load a changed file, restart the server",
                        asked,
                        self._successor.pid,
                    )

    def hand_over(self) -> None:
        """Makes the successor the master. The sockets stay open here until this master closes them."""
        assert self._successor is not None
        for listener in self._listeners:
            listener.leave_file()
        if self._status:
            self._former, self._status = self._status.let_go(), None
        self._manager.main_process(self._successor.pid, "handed over")
        self._manager.close()
        self._manager = notify.Manager()
        self._pid_file = None
        log.logger.info("process %d has taken over", self._successor.pid)
        self._successor.go(holds=self._holding is not None and self._holding.pid != 0)
        self._successor = None
        if self._holding:
            self._holding.hand_over()

    def _take_over(self, predecessor: upgrade.Predecessor) -> None:
        predecessor.close()
        self._predecessor = None
        if self._holding and predecessor.holds:
            self._holding.take_over()
        for listener in self._listeners:
            listener.take_file()
        if self._status:
            for listener in self._status.listeners:
                listener.take_file()
        for address in predecessor.dropped:
            remove_file(address)
        if self._pid_file:
            try:
                self._pid_file.write()
            except ConfigError as error:
                log.logger.error("%s", error)
        log.logger.info("taken over from process %d", predecessor.pid)
        if self._serves:
            self._tell_ready(f"taken over from process {predecessor.pid}")

    @property
    def _is_main(self) -> bool:
        return self._predecessor is None

    def _tell_ready(self, status: str) -> None:
        self._manager.ready(status)
        self._alive_at = time.monotonic()

    def _stop_watching(self) -> None:
        if self._watcher:
            self._watcher.stop()
            self._watcher = None


def from_environment(settings: Settings, predecessor: upgrade.Predecessor | None = None) -> tuple[Settings, Service]:
    """The settings, changed by what the environment says, and the service.

    Sockets of systemd are used when no option says where to listen. The variables are removed from the environment.
    Raises ConfigError.
    """
    origin = upgrade.Origin.here()
    manager = notify.manager(os.environ, os.getpid())
    changes = {}
    passed = notify.passed_sockets(os.environ, os.getpid())
    if passed:
        binds = tuple(f"fd://{each}" for each in passed)
        if not is_chosen(BY_NAME["bind"], settings["bind"]):
            changes["bind"] = Setting(binds, "LISTEN_FDS")
        elif not set(binds) & set(settings["bind"].value):
            log.logger.warning(
                "LISTEN_FDS: %s from systemd not used, since %s says where to listen",
                log.counted(len(passed), "socket"),
                settings["bind"].source,
            )
    if (path := settings["env_file"].value) is not None:
        changes["env_file"] = Setting(os.path.join(origin.directory, path), settings["env_file"].source)
    return settings.changed(changes), Service(manager=manager, origin=origin, predecessor=predecessor, passed=passed)
