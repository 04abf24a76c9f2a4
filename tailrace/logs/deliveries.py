"""`tailrace.on_delivery`: functions that are called with the record of each response, and the logger `tailrace.access`.

Thread: any registers. The functions are called on one thread of the core's, one after the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tailrace._tailrace import follow_deliveries
from tailrace.logs import log

Record = dict[str, Any]
Function = TypeVar("Function", bound=Callable[[Record], object])

_lock = threading.Lock()
# Replaced, never changed: the core's thread reads it without the lock.
# Each with its name for the log.
_functions: tuple[tuple[Callable[[Record], object], str], ...] = ()
# The functions whose exception has been logged, by id(): a function may be unhashable.
_failed: set[int] = set()


def on_delivery(function: Function) -> Function:
    """Calls `function(record)` for each response of this process that is over, complete or not. Returns `function`.

    record: a dict with `method`, `target`, `client` (address, empty on a UNIX socket), `id` and `trace` (None: the
    request has none), `ended` (seconds since 1970) and what `environ["tailrace.delivery"]()` has, such as `status`,
    `bytes` and `app_ms`: see "The delivery record" in docs/reference/api.md. A time is None if there was none.
    Responses with files and rejected requests have no times of the application.

    Call it where the application is loaded; with `preload` that is before the fork, and the workers inherit it. The
    functions are called on a thread of their own, after the response has been sent, so no request waits for them; but
    they need the interpreter. If they are slower than the responses, records are dropped, and the log says so. With
    `gevent` that thread is not the hub's. An exception from a function is logged once, whatever its type: `SystemExit`
    ends neither the worker nor that thread. A worker that ends waits for the last records for up to a second.

    Raises TypeError when it cannot be called.
    """
    if not callable(function):
        raise TypeError(f"on_delivery() takes a function, not {type(function).__name__}")
    follow(function, f"on_delivery: {getattr(function, '__qualname__', repr(function))}")
    return function


def follow(function: Callable[[Record], object], name: str) -> None:
    """What `on_delivery` does. name: what the log calls the function."""
    global _functions
    with _lock:
        _functions = (*_functions, (function, name))
    follow_deliveries(_tell)


def follow_access_log() -> None:
    """From now on each line of an access log that goes to logging is logged with `tailrace.access`.

    The level of the server's own log does not hide them, but a level of `tailrace.access` does.
    """
    if log.access_logger.level == logging.NOTSET and not log.access_logger.isEnabledFor(logging.INFO):
        log.access_logger.setLevel(logging.INFO)
    follow_deliveries(_tell)


def forget_all() -> None:
    """For a process that is forked from one where functions were registered, and is to call none."""
    global _functions
    _functions = ()


def _tell(record: Record, line: str | None) -> None:
    """line: that of the access log, if it goes to logging."""
    if line is not None:
        _call(
            lambda each: log.access(each, line), record, log.access, "a handler or filter of the logger tailrace.access"
        )
    for function, name in _functions:
        _call(function, record, function, name)


def _call(function: Callable[[Record], object], record: Record, known: object, name: str) -> None:
    """known: by which it is known whether it has failed before."""
    try:
        function(record)
    # Also SystemExit and others that end a Python thread: the core's thread continues, and would log each of them.
    except BaseException:
        if id(known) not in _failed:
            _failed.add(id(known))
            log.logger.exception("%s raised an exception; further exceptions are not logged", name)
