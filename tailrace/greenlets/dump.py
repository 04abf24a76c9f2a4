"""The stacks of all greenlets, as text: for SIGURG and `tailrace.gevent.dump`.

Greenlets with the same stack are grouped, most frequent stack first. To find the application's greenlets that run no
request, all objects of the process are searched, which blocks it (100 ms per million objects).

Thread: any; also a signal handler, which may interrupt the hub's thread anywhere. So lines are logged by the core,
which takes no lock of `logging`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Hashable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from gevent.hub import Hub
from greenlet import getcurrent, greenlet

from tailrace.greenlets import hub, stacks
from tailrace.logs import log

if TYPE_CHECKING:
    from tailrace.greenlets.hub import WorkerGreenlets

# At most this many requests with the same stack are named.
_NAMED = 5


def dump(file: TextIO | None = None) -> None:
    """Writes every greenlet with its request and stack to the log, or to `file`.

    If that fails, the error is written instead: an exception of a signal handler would end the request that the handler
    has interrupted.
    """
    living = list(hub.living)
    try:
        said = text(living)
    except Exception as error:
        said = f"greenlets: cannot read their stacks: {error!r}"
    if file is not None:
        file.write(said + "\n")
    elif living:
        living[0].core.log("warning", said)
    else:
        log.logger.warning("%s", said)


def text(living: Collection[WorkerGreenlets]) -> str:
    """The greenlets of these servers, and those of the application."""
    places: dict[Hashable, tuple[stacks.Stack, list[str]]] = {}
    requests = others = 0
    for each, request in _requests(living):
        requests += 1
        _add(places, each, f"request {request['id']}: {_request(request)}")
    for each in _others(living):
        others += 1
        _add(places, each, f"{_name(each)} of the application")
    parked = sum(each.parked for each in living)
    queued = sum(each.server.stats()["queued"] for each in living)
    waiting = f"{log.counted(queued, 'request')} wait{'s' * (queued == 1)}"
    threads = ", ".join(str(number) for number in sorted({each.thread for each in living}))
    lines = [
        f"greenlets: {requests} in requests, {others} of the application, {parked} parked; {waiting}"
        + (f"; hub on thread {threads}" if threads else "")
    ]
    for stack, names in sorted(places.values(), key=lambda place: len(place[1]), reverse=True):
        more = len(names) - _NAMED
        lines.extend(names[:_NAMED])
        if more > 0:
            lines.append(f"and {more} more, at")
        else:
            lines[-1] += ", at"
        lines.append(stacks.shown(stack))
    return "\n".join(lines)


def _requests(living: Collection[WorkerGreenlets]) -> Iterator[tuple[greenlet, dict[str, Any]]]:
    for each in living:
        for request in each.core.in_flight():
            runner = each.greenlets.get(request["slot"])
            if runner is not None:
                yield runner, request


def _others(living: Collection[WorkerGreenlets]) -> Iterator[greenlet]:
    """Greenlets on the hubs of these servers that run no request."""
    hubs = {id(each.hub): each.hub for each in living}
    for each in gc.get_objects():
        # Not isinstance: it runs `__class__` of an object, which may be code of the application.
        if (
            issubclass(type(each), greenlet)
            and not issubclass(type(each), hub.WorkerGreenlet | Hub)
            and each
            and id(_root(each)) in hubs
        ):
            yield each
    for each in {id(each.hub): each for each in living if each.is_embedded}.values():
        if each.hub.parent is not None:
            yield each.hub.parent


def _root(each: greenlet) -> greenlet:
    """The hub that a greenlet returns to, or else its outermost parent."""
    while each.parent is not None and not isinstance(each, Hub):
        each = each.parent
    return each


def _add(places: dict[Hashable, tuple[stacks.Stack, list[str]]], each: greenlet, name: str) -> None:
    stack = _stack(each)
    places.setdefault(stacks.place(stack), (stack, []))[1].append(name)


def _stack(each: greenlet) -> stacks.Stack:
    if each.gr_frame is not None:
        return stacks.of(each.gr_frame, rests=True)
    if each is getcurrent():
        return stacks.of(sys._getframe(), rests=True)
    # It runs on the hub's thread while another thread asks.
    for server in hub.living:
        if _root(each) is server.hub:
            return stacks.of_thread(server.hub.thread_ident)
    return []


def _request(request: dict[str, Any]) -> str:
    client = request["client"] or "-"
    return f"{log.request_name(request)} from {client}, for {request['seconds']:.3f} s"


def _name(each: greenlet) -> str:
    if each.parent is None:
        return "main greenlet"
    name = getattr(each, "name", None)
    return f"greenlet {name}" if isinstance(name, str) else f"greenlet {type(each).__name__} at {id(each):#x}"
