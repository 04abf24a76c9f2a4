"""The core (`Server`) of a process that serves: makes it, stops it, and logs how it ended.

Thread: the main one, except `announce_end`, which runs on a thread of its own.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

from tailrace._tailrace import ListeningSocket, Server, log_destination_kind, note_collection
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import ConfigError, ServerError, StartError, denial
from tailrace.logs import deliveries, log
from tailrace.system import draining, holding, sockets
from tailrace.worker import open_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed.wsgi import WSGIApplication

    from tailrace._tailrace import Scoreboard


# One line names at most this many requests.
_MAX_NAMED: Final = 20

# The message of the RuntimeError with which the interpreter reports EAGAIN.
NO_THREAD: Final = "can't start new thread"
ENDED: Final = 0  # means "the core has stopped"; no signal has this number


def make(
    application: WSGIApplication,
    settings: ServerSettings,
    listeners: list[sockets.Listener],
    scoreboard: tuple[Scoreboard, int] | None = None,
    master: tuple[int, float, float] | None = None,
    worker: int = 1,
    *,
    holds: holding.Sockets | None = None,
) -> Server:
    """The core for these settings, whose paths are absolute. scoreboard: and the worker's place in it. master: see
    `Server`. worker: its number. holds: where connections are passed that are to be held; None: none are.

    Raises ConfigError, StartError.
    """
    if not (settings.gevent or settings.debug) and threads_are_greenlets():
        raise ConfigError(
            "the standard library is patched for gevent, so the server's threads would be greenlets and would never "
            "run; start with --gevent, or call tailrace.gevent.serve in your own program"
        )
    if settings.stream_body and worker == 1 and "django.core.handlers.wsgi" in sys.modules:
        log.logger.warning(
            "--stream-body: Django reads chunked uploads as empty, because they have no Content-Length; remove "
            "--stream-body if clients send such uploads"
        )
    connections = open_files.allow(settings)
    accepting = [
        ListeningSocket(
            each.socket.fileno(), each.protocol.replace("https", "http"), each.proxy, each.certificates, each.redirect
        )
        for each in listeners
    ]
    values = settings.core(worker, connections) | {"holder": None, "holder_proof": None, "is_behind_holder": False}
    if holds is not None:
        accepting.append(ListeningSocket(holds.application.fileno(), "internal"))
        values["holder"] = holds.holder_address
        values["is_behind_holder"] = holding.is_behind_another(each.url for each in listeners if each.publishes)
        if settings.publish_bind:
            values["holder_proof"] = holding.proof()
    if note_collection not in gc.callbacks:
        gc.callbacks.append(note_collection)
    if settings.access_log and log_destination_kind(settings.access_log) == "logging":
        deliveries.follow_access_log()
    try:
        server = Server(application, values, accepting, scoreboard, master)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        if error.errno is None:
            # It has a message of the core, which says what of the settings failed and where.
            raise ConfigError(str(error)) from None
        raise refused(error) from None
    draining.note(server)
    return server


def refused(error: OSError) -> StartError:
    """The error of a server that the operating system does not let start."""
    return StartError(f"cannot start: {denial(error)}")


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Raises StartError instead of what the operating system refuses in this block."""
    try:
        yield
    except OSError as error:
        raise refused(error) from None
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        raise refused(OSError(errno.EAGAIN, NO_THREAD)) from None


def threads_are_greenlets() -> bool:
    """Whether `threading` is patched for gevent."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def begin_stop(server: Server, graceful_timeout: float, number: int) -> None:
    """Stops the server because of a signal, and logs that."""
    name = signal.Signals(number).name
    if graceful_timeout > 0:
        log.logger.info(
            "%s: finishing the requests in flight, for up to %g s; a second signal stops at once",
            name,
            graceful_timeout,
        )
    else:
        log.logger.info("%s: stopping now", name)
    server.stop(graceful_timeout)


def announce_end(server: Server, writer: socket.socket) -> None:
    """Waits for the end of the core, and then writes ENDED to `writer`."""
    server.join()
    # The socket is closed when an exception has ended the main thread.
    with contextlib.suppress(OSError):
        writer.setblocking(True)
        writer.send(bytes((ENDED,)))


def check(server: Server) -> None:
    """Raises ServerError if an error of Tailrace ended the server."""
    if (fault := server.fault()) is not None:
        raise ServerError(f"an internal error ended the server, please report it: {fault}")


def abandoned(server: Server) -> int:
    """How many requests still run although the server has ended. Logs the requests that its end interrupted."""
    cut, running = server.cut_requests(), server.stats()["running"]
    if running and not cut:
        # Their responses are complete, and the application still runs.
        log.logger.warning("%s did not finish in time", log.counted(running, "request"))
    for first in range(0, len(cut), _MAX_NAMED):
        some = cut[first : first + _MAX_NAMED]
        log.logger.warning(
            "%s did not finish in time: %s%s",
            log.counted(len(cut), "request") if first == 0 else "further requests",
            ", ".join(f"{request} ({seconds:.3f} s)" for request, seconds in some),
            f"; {left} more" if (left := len(cut) - first - len(some)) else "",
        )
    return running


def reopen_logs(server: Server) -> None:
    """Opens the access log and the files of the server's own log again, and logs whether that succeeded."""
    log.reopen()
    try:
        server.reopen_logs()
    except OSError as error:
        log.logger.error("SIGUSR1: cannot reopen the access log, which continues in the old file: %s", error)
    else:
        log.logger.info("SIGUSR1: access log reopened")
