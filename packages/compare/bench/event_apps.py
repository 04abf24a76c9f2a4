"""The applications of `bench.event_streams`, which serve the same stream in three ways.

`GET /events` subscribes; `POST /publish` sends its body, one event as it goes over the wire, to all subscribers.

- `queues`: WSGI for gevent, a generator with a queue for each subscriber, in one process.
- `asgi`: the same for ASGI, with asyncio's queues.
- `grip`: WSGI that leaves the subscriber to the server or proxy in front of it, by GRIP headers. Events are published
  there, not here.

The first bytes of each stream are a comment, so that its head is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HELLO = b": open\n\n"
HEADERS = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")]


class Queue(Protocol):
    def put(self, item: bytes) -> None: ...

    def get(self) -> bytes: ...


waiting: set[Queue] = set()


def queues(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] == "POST":
        event = environ["wsgi.input"].read()
        for queue in waiting:
            queue.put(event)
        start_response("204 No Content", [])
        return []
    start_response("200 OK", HEADERS)
    return events()


def events() -> Iterator[bytes]:
    from gevent.queue import SimpleQueue  # type: ignore[import-not-found, import-untyped, unused-ignore]

    queue: Queue = SimpleQueue()
    waiting.add(queue)
    try:
        yield HELLO
        while True:
            yield queue.get()
    finally:
        waiting.discard(queue)


listening: set[asyncio.Queue[bytes]] = set()


async def asgi(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Needs `--lifespan off`."""
    event, more = b"", True
    while more:
        message = await receive()
        event += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["method"] == "POST":
        for queue in listening:
            queue.put_nowait(event)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    queue = asyncio.Queue()
    # With uvicorn, `send` raises nothing after the subscriber has left.
    left = asyncio.ensure_future(receive())
    left.add_done_callback(lambda _: queue.put_nowait(b""))
    listening.add(queue)
    try:
        event = HELLO
        while event:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            event = await queue.get()
    finally:
        listening.discard(queue)
        left.cancel()


def grip(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [*HEADERS, ("Grip-Hold", "stream"), ("Grip-Channel", "t")])
    return [HELLO]
