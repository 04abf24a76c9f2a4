"""The status process, from its fork to its end. Tailrace's own core serves `--status`, with small limits: anyone who
reaches the address may send anything. `--haproxy-agent` is answered by a thread of its own.

It stops answering when the master writes to the pipe between them, as a new master answers, and ends when the master
closes the pipe, or ends; until then it exports traces (`--otlp-endpoint`). It ignores signals, which a terminal or a
service manager sends to every process: it is to answer until the last worker has ended.

Thread: the main one; the core has further ones.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Collection
from typing import Final, NoReturn

from tailrace._tailrace import Scoreboard, Server
from tailrace.cli.option import Place
from tailrace.cli.settings import from_keywords
from tailrace.logs import log
from tailrace.status import feed, snapshot, tracing
from tailrace.status.agent import Agent
from tailrace.status.pages import Pages
from tailrace.status.state import SharedState
from tailrace.system import sockets
from tailrace.worker import certificates, companion, core

LIMITS: Final = {
    # One for each viewer of the live page, and those that answer everything else.
    "threads": feed.MAX_VIEWERS + 4,
    "max_queue": 64,
    "max_body": 0,
    "client_memory": 8 << 20,
    "response_spill": 0,
    "request_line_limit": 1024,
    "header_bytes_limit": 8192,
    # More than `feed.LONGEST`.
    "request_timeout": 60,
    "header_timeout": 5,
    "body_timeout": 5,
    "keepalive_timeout": 30,
    "write_timeout": 5,
}
# How long requests in flight may take when it is to end (seconds).
GRACE: Final = 0.2


def work(
    status: sockets.Listener | None,
    agent: sockets.Listener | None,
    shared: SharedState,
    board: Scoreboard,
    line: int,
    master: int,
    mask: Collection[int],
    application: str,
    exporter: tracing.Exporter | None,
) -> NoReturn:
    """Runs the status process.

    status, agent: the sockets of `--status` and `--haproxy-agent`. exporter: of traces. line: the reading end of the
    pipe, whose other end only the master has. mask: the signal mask to restore. The exit status is 0 when it was told
    to end, else 1.
    """
    try:
        companion.begin("status", application, master, mask)
        if agent is not None:
            Agent(agent.socket, lambda: snapshot.take(shared, board, time.monotonic, with_counts=False), line).start()
        if exporter is not None:
            exporter.start()
        if status is None:
            _wait(line)
        else:
            _serve(status, shared, board, line)
        if exporter is not None:
            _wait(line, until_closed=True)
            exporter.stop()
        os._exit(0)
    except BaseException:
        log.logger.exception("the status process ended with an exception; please report it")
    finally:
        os._exit(1)


def _wait(line: int, *, until_closed: bool = False) -> None:
    """Returns when the process is to stop answering, or when it is to end."""
    poll = select.poll()
    # The byte is never read, so that every waiting thread sees it. poll always reports a closed pipe.
    poll.register(line, 0 if until_closed else select.POLLIN)
    poll.poll()


def _serve(listener: sockets.Listener, shared: SharedState, board: Scoreboard, line: int) -> None:
    """Serves the pages until the process is to end."""
    settings = from_keywords({"bind": str(listener.address), **LIMITS}, Place.THREAD).effective
    pages = Pages(shared, board, listener.address, is_encrypted=listener.certificates is not None)
    server = core.make(pages, settings, [listener])
    listener.socket.close()
    server.start()
    pages.feed.start()
    threading.Thread(target=_end_with, args=(server,), name="tailrace-end", daemon=True).start()
    with certificates.followed(listener.certificates, logs=False):
        _wait(line)
    pages.feed.stop()
    server.stop(GRACE)
    server.join(2 * GRACE)


def _end_with(server: Server) -> None:
    """Ends the process when the core has ended by itself."""
    server.join()
    if server.fault() is not None:
        os._exit(1)
