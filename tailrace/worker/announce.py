"""The first lines of the log: version, process, application, machine, addresses, and folders of files."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tailrace._tailrace import __version__
from tailrace.cli.server_settings import ServerSettings
from tailrace.logs import log
from tailrace.system import cgroup, gil, sockets

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


# Until the server has served, the log says that the application is loaded, if that takes longer (seconds).
LOADING_AFTER: Final = 1.0


def announce(
    settings: ServerSettings, application: WSGIApplication | None, listeners: list[sockets.Listener], workers: int = 0
) -> None:
    """Logs version, process, application, machine, addresses and folders of files. workers: how many the master has; 0:
    there is no master."""
    name = settings.app or getattr(application, "__qualname__", None) or type(application).__name__
    with_what = f" with {log.counted(workers, 'worker')}" if workers else ""
    with_what += " on gevent" * settings.gevent + ", without the GIL" * gil.is_off()
    log.logger.info("tailrace %s, process %d, serves %s%s", __version__, os.getpid(), name, with_what)
    announce_machine(settings, workers)
    if settings.debug:
        log.logger.info(
            "debug: one request at a time on the main thread, breakpoint() works here, and the browser shows "
            "tracebacks of exceptions that the framework does not catch (Flask catches all, unless FLASK_DEBUG=1 or "
            "PROPAGATE_EXCEPTIONS is set)"
        )
    for listener in listeners:
        log.logger.info("%s on %s", "accepting publications" if listener.publishes else "listening", listener.shown)
        if listener.publishes and not listener.is_local:
            log.logger.warning(
                "--publish-bind %s: anyone who can reach this address from another machine can publish; bind a "
                "loopback address or a UNIX socket, or have a firewall protect it",
                listener.address,
            )
    if files := _files(settings):
        log.logger.info("files: %s", ", ".join(files))


def announce_machine(settings: ServerSettings, workers: int = 0) -> None:
    """Logs the CPUs and the memory, and what follows from them, if anything does. workers: as for `announce`."""
    machine = settings.machine
    if machine.fault:
        log.logger.warning(
            "%s, so this limit is ignored; set --workers and --client-memory to what the container may use",
            machine.fault,
        )
    if settings.max_rss == "auto" and (machine.accounts is None or cgroup.memory_in_use(machine.accounts) is None):
        log.logger.warning("--max-rss auto has no effect: no cgroup limits the memory; set --max-rss to a size")
    if settings.workers != "auto" and machine.memory is None:
        return
    found = ", ".join(filter(None, [machine.cpus_shown, machine.memory_shown]))
    count = f"{log.counted(workers, 'worker')}, " * (workers > 0)
    each = " each" * (workers > 1)
    limit = settings.memory_in_use_limit
    recycled = "" if limit is None else f"; workers are replaced before {limit >> 20} MiB are in use"
    log.logger.info("%s: %s%d MiB of client memory%s%s", found, count, settings.memory >> 20, each, recycled)


def announce_loading(settings: ServerSettings) -> None:
    """Logs that the application is being loaded."""
    log.logger.info("loading %s", settings.app)


@contextlib.contextmanager
def loading(settings: ServerSettings) -> Iterator[None]:
    """A context in which the application is loaded: logs that if it takes longer than LOADING_AFTER. Uses a thread,
    so it is not for a master, which forks."""
    late = threading.Timer(LOADING_AFTER, announce_loading, (settings,))
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()
        late.join()


def _files(settings: ServerSettings) -> list[str]:
    """Which files are sent without the application, or in place of its body."""
    said = [
        f"{prefix}/ from {folder}{' or the application' * is_overlay}"
        for prefix, folder, is_overlay in settings.static_mounts
    ]
    for prefix, folder in settings.sendfile_root:
        said.append(f"X-Sendfile from {folder}" if prefix is None else f"X-Accel-Redirect {prefix}/ from {folder}")
    return said
