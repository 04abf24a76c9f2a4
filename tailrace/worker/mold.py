"""The process of a mold (`--preload`): loads the application, and forks workers on the order of its master. What the
two say to each other is in `master/mold.py`.

Thread: the main one, the only one unless the application starts others.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from tailrace._tailrace import end_with_parent
from tailrace.cli import load
from tailrace.cli.server_settings import ServerSettings
from tailrace.errors import CANNOT_START, TailraceError, denial
from tailrace.logs import log, log_config
from tailrace.system import directory, forks, signals, sockets
from tailrace.system.exit import leave
from tailrace.system.title import set_title
from tailrace.worker import report
from tailrace.worker.fork import Forked, fork
from tailrace.worker.main import WorkerSetup
from tailrace.worker.opened import Opened
from tailrace.worker.report import READY, Failure
from tailrace.worker.warmup import warm_up

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

# Called in a forked process, which becomes the worker with this number, place and generation. The descriptor is its
# socket to the master.
BecomeWorker = Callable[[WorkerSetup, tuple[int, int, int], Forked, int], NoReturn]

# Bytes of a message.
LARGEST: Final = 4096
# A mold acts on SIGCHLD and SIGUSR1. The others come from a terminal or a service manager, and only the master acts on
# them.
_RECEIVED: Final = (
    *(signal.SIGCHLD, signal.SIGUSR1),
    *(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG),
)


def work(
    channel: socket.socket,
    forked: Forked,
    settings: ServerSettings,
    listeners: list[sockets.Listener],
    setup: WorkerSetup,
    become_worker: BecomeWorker,
) -> NoReturn:
    """Runs a mold from its fork to its end.

    become_worker: called in a process that it has forked, with number, place and generation. Exit status: 0 when it was
    told to end or its master has ended, CANNOT_START when the application could not be loaded.
    """
    forks.forget_all()
    reader, writer = signals.wakeup_sockets()
    reader.setblocking(False)
    forks.keep_from_children(forked.pipe, channel, reader, writer)
    sockets.keep_from_children(listeners, inherited=True)
    process, status, has_reported = os.getpid(), 1, False
    try:
        # The kernel kills the mold when its master ends.
        end_with_parent(True)
        with signals.woken(writer, _RECEIVED):
            signal.pthread_sigmask(signal.SIG_SETMASK, forked.mask)
            set_title("mold", settings.app or "")
            setup = _prepared(settings, setup)
            # Again: the application may have set handlers.
            with signals.woken(writer, _RECEIVED):
                has_reported = True
                report.send(forked.pipe, READY)
                # The master has ended first.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    _serve(channel, reader, writer, setup, listeners, become_worker)
        status = 0
    except TailraceError as error:
        status = CANNOT_START
        report.send(forked.pipe, Failure.of(error).report())
    except BaseException as error:
        if os.getpid() != process:
            # A child that the application has forked.
            forks.leave(error)
        if has_reported:
            log.logger.exception("the mold ended with an exception; please report it")
        else:
            failure = Failure(f"the mold failed: {error!r}", CANNOT_START, traceback.format_exc())
            report.send(forked.pipe, failure.report())
    finally:
        leave(status)


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next message, and the descriptors that came with it, at most two. Raises BlockingIOError."""
    # `socket.recv_fds` of Python 3.11 takes flags and ignores them.
    descriptors = array.array("i")
    size = socket.CMSG_LEN(2 * descriptors.itemsize)
    message, ancillary, _, _ = channel.recvmsg(LARGEST, size, socket.MSG_DONTWAIT)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return message, list(descriptors)


def _prepared(settings: ServerSettings, setup: WorkerSetup) -> WorkerSetup:
    """The setup with the application, whose memory the workers can share. Raises LoadError."""
    before = Opened.now()
    application = _loaded(settings, setup)
    # If hooks prepare each worker, the requests of the warm-up need them.
    is_warm = not setup.hooks.prepares_workers
    if is_warm:
        warm_up(application, settings)
    gc.collect()
    Opened.now().warn_of_others_than(before)
    gc.freeze()
    return setup._replace(application=application, is_warm=is_warm)


def _loaded(settings: ServerSettings, setup: WorkerSetup) -> WSGIApplication:
    """The application. Raises LoadError."""
    setup.variables.apply()
    log_config.apply_again()
    if setup.directory is not None:
        directory.enter(setup.directory)
    application = load.load(settings.app or "", factory=settings.factory)
    log.revive()
    return application


def _serve(
    channel: socket.socket,
    reader: socket.socket,
    writer: socket.socket,
    setup: WorkerSetup,
    listeners: list[sockets.Listener],
    become_worker: BecomeWorker,
) -> None:
    """Forks workers and reports their ends, until the master ends or says so and the last worker has ended."""
    children: set[int] = set()
    reported: set[int] = set()
    is_leaving = False
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(reader, select.POLLIN)
    while children or not is_leaving:
        poll.poll()
        if signal.SIGUSR1 in _arrived(reader):
            log.reopen()
        for pid in children - reported:
            # The worker stays a zombie, so that its process id is not reused.
            try:
                ending = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # A thread of the application has reaped it.
                channel.send(json.dumps({"ended": [pid, None]}).encode())
                reported.add(pid)
                continue
            if ending is not None:
                channel.send(json.dumps({"ended": [pid, _wait_status(ending)]}).encode())
                reported.add(pid)
        try:
            message, descriptors = _receive(channel)
        except BlockingIOError:
            continue
        if not message:
            return
        match json.loads(message):
            case {"reap": pid}:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                children.discard(pid)
                reported.discard(pid)
            case {"leave": True}:
                is_leaving = True
                # Nobody listens any more once the last worker has closed its sockets.
                for listener in listeners:
                    listener.hand_over()
                channel.send(b'{"left": true}')
            case {"fork": [number, place, generation]}:
                if len(descriptors) < 2:
                    # The kernel has closed the descriptors that did not fit. The master notices that the socket is
                    # closed.
                    log.logger.error(
                        "the mold has no free file descriptors and cannot fork a worker; raise the limit of open files "
                        "(ulimit -n, LimitNOFILE= of systemd)"
                    )
                    for descriptor in descriptors:
                        os.close(descriptor)
                    continue
                pipe, descriptor = descriptors
                try:
                    forked = fork(pipe)
                except OSError as error:
                    with socket.socket(fileno=descriptor) as asked, contextlib.suppress(OSError):
                        asked.send(json.dumps({"failed": denial(error)}).encode())
                    continue
                if forked.pid == 0:
                    try:
                        for each in (channel, reader, writer):
                            each.close()
                        become_worker(setup, (number, place, generation), forked, descriptor)
                    finally:
                        os._exit(1)
                children.add(forked.pid)
                with socket.socket(fileno=descriptor) as asked, contextlib.suppress(OSError):
                    _tell_forked(asked, forked.pid)


def await_admission(channel: socket.socket) -> bool:
    """In a process that the mold has forked: sends its pid to the master, and waits for the answer. False if the
    master has exited, or no longer needs the worker."""
    try:
        _tell_forked(channel, os.getpid())
        return bool(channel.recv(LARGEST))
    except OSError:
        return False


def _tell_forked(channel: socket.socket, pid: int) -> None:
    """The mold and the worker both send the pid, because either may be killed, or hang, before it does."""
    channel.send(json.dumps({"forked": pid}).encode())


def _arrived(reader: socket.socket) -> set[int]:
    found = set()
    with contextlib.suppress(BlockingIOError):
        while True:
            found.add(signals.arrived(reader)[0])
    return found


def _wait_status(ending: os.waitid_result) -> int:
    """As waitpid(2) gives it."""
    if ending.si_code == os.CLD_EXITED:
        return ending.si_status << 8
    return ending.si_status | (0x80 if ending.si_code == os.CLD_DUMPED else 0)
