"""Requests that the application answers before its worker serves (`--warmup`), without a client and without the core.

They run on a thread of their own: what an application keeps for each thread, such as a connection to its database, ends
with it.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes, urlsplit
from wsgiref.util import FileWrapper

from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.tracebacks import formatted, summary, users_frames
from tailrace.errors import LoadError
from tailrace.logs import log
from tailrace.system import forks

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

# Bytes of the body of an error that the message shows.
_SHOWN: Final = 2000
_PORTS: Final = {"http": 80, "https": 443}


def warm_up(application: WSGIApplication, settings: ServerSettings) -> None:
    """Has the application answer a GET request for each of `--warmup`, one after the other.

    Raises LoadError if a response is a server error, or the application raises.
    """
    failures: list[LoadError] = []

    def ask() -> None:
        try:
            with forks.application():
                for target in settings.warmup:
                    _ask(application, target, settings)
        except LoadError as error:
            failures.append(error)

    if not settings.warmup:
        return
    thread = threading.Thread(target=ask, name="tailrace-warmup")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _ask(application: WSGIApplication, target: str, settings: ServerSettings) -> None:
    began = time.monotonic()
    try:
        status, body = _answer(application, environ_of(target, settings))
    except BaseException as error:  # also time-outs of gevent and asyncio, which are no Exception
        raise LoadError(
            f"--warmup {target}: the application raised {summary(error)}",
            formatted(error, users_frames(error.__traceback__)),
        ) from error
    if not isinstance(status, str) or not status[:3].isdigit() or len(status) < 3:
        raise LoadError(f"--warmup {target}: the application did not call start_response with a status (PEP 3333)")
    if status[0] >= "5":
        raise LoadError(f"--warmup {target}: the response is {status}; its body begins: {_shown(body)}")
    log.logger.info("--warmup %s: %s in %.2f s", target, status, time.monotonic() - began)


def _answer(application: WSGIApplication, environ: WSGIEnvironment) -> tuple[object, bytes]:
    """The status as the application gave it, and the beginning of the body."""
    heads: list[object] = []
    body = bytearray()

    def take(block: bytes) -> None:
        body.extend(block[: max(0, _SHOWN - len(body))])

    def start_response(status: object, fields: Any, exc_info: Any = None) -> Callable[[bytes], object]:
        heads.append(status)
        return take

    blocks: Iterable[bytes] = application(environ, start_response)
    try:
        for block in blocks:
            take(block)
    finally:
        if (close := getattr(blocks, "close", None)) is not None:
            close()
    return heads[-1] if heads else "", bytes(body)


def environ_of(target: str, settings: ServerSettings) -> WSGIEnvironment:
    """The variables of a GET request (PEP 3333, "environ Variables"). target: a path, or a URL, which also states the
    scheme and the host."""
    url = urlsplit(target)
    scheme = url.scheme or settings.url_scheme
    host, port = url.hostname or "localhost", url.port or _PORTS.get(scheme, 80)
    path, root = unquote_to_bytes(url.path or "/").decode("latin-1"), settings.root_path
    is_below = bool(root) and (path == root or path.startswith(f"{root}/"))
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": root if is_below else "",
        "PATH_INFO": path.removeprefix(root) if is_below else path,
        "QUERY_STRING": url.query,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_SOFTWARE": "tailrace",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": url.netloc or "localhost",
        "HTTP_USER_AGENT": "tailrace-warmup",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.file_wrapper": FileWrapper,
        "wsgi.multithread": settings.concurrency > 1,
        "wsgi.multiprocess": settings.worker_count > 1,
        "wsgi.run_once": False,
        "tailrace.warmup": True,
    }


def _shown(body: bytes) -> str:
    """The beginning of a body on one line."""
    text = " ".join(body.decode("utf-8", "replace").split())
    return repr(text[:300])
