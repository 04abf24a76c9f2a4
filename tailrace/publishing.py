"""`tailrace.hold` and `tailrace.publish`: responses that stay open without a thread, and what is sent to them.

A response with the header fields of `hold` stays open after the application has returned. The server sends it what is
published on its channels. The fields are those of GRIP, which Pushpin and Fastly Fanout also understand.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from tailrace.errors import PublishError
from tailrace.system import binds, holding
from tailrace.system.addresses import TcpAddress, UnixAddress

# How long the server may take to accept a publication (seconds).
_TIMEOUT: Final = 10.0
# Variables that say where to publish outside a server, in this order.
_VARIABLES: Final = (holding.PUBLISH_VARIABLE, "TAILRACE_PUBLISH_BIND", "GRIP_URL")
_PUBLISH: Final = b"P"
# What a parameter of a header field may have (PEP 3333) without quotes.
_TOKEN: Final = re.compile(r'[^\x00-\x1f\x7f,;"\u0100-\U0010ffff]+')


def hold(
    *channels: str,
    mode: Literal["stream", "response"] = "stream",
    keep_alive: float | None = 20,
    timeout: float | None = None,
    last_ids: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Headers that keep a response open and subscribe it to these channels.

        Response(": open\\n\\n", mimetype="text/event-stream", headers=tailrace.hold("orders"))

    mode: "stream": events are appended to the response; "response": the first event replaces it (long polling).
    keep_alive: with "stream", a comment is sent after this many seconds without an event; None: no comments. timeout:
    with "response", this response is sent after this many seconds without an event (default: 55). last_ids: for each
    channel, the ID of the last event that the response contains.

    Raises ValueError if a channel name is empty or contains control characters, commas, semicolons, double quotes or
    characters outside Latin-1.
    """
    for channel in channels:
        if not _TOKEN.fullmatch(channel) or channel.isspace():
            raise ValueError(
                f"{channel!r} is not the name of a channel: it must not be empty or contain control characters, "
                "commas, semicolons, double quotes or characters outside Latin-1"
            )
    if not channels:
        raise ValueError("hold() needs at least one channel")
    if mode not in ("stream", "response"):
        raise ValueError(f'mode must be "stream" or "response", not {mode!r}')
    known = last_ids or {}
    fields = {
        "Grip-Hold": mode,
        "Grip-Channel": ", ".join(
            f'{channel}; prev-id="{_quoted(known[channel])}"' if channel in known else channel for channel in channels
        ),
    }
    if mode == "stream":
        # Otherwise nginx collects the events.
        fields["X-Accel-Buffering"] = "no"
        if keep_alive is not None:
            fields["Grip-Keep-Alive"] = f":\\n\\n; format=cstring; timeout={_seconds(keep_alive)}"
    elif timeout is not None:
        fields["Grip-Timeout"] = str(_seconds(timeout))
    return fields


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _seconds(time: float) -> int:
    if time < 1:
        raise ValueError(f"keep_alive and timeout must be at least 1 second, not {time}")
    return int(time)


def publish(
    channel: str,
    data: object,
    *,
    event: str | None = None,
    id: str | None = None,
    to: str | None = None,
) -> str:
    """Sends an event to all responses that are held on a channel, and returns the event's ID.

        tailrace.publish("orders", {"id": 7}, event="changed")

    data: a string, or a value that is sent as JSON. event, id: type and ID of the event; None for id: a new ID. Clients
    that reconnect use the ID to get missed events. A long poll is answered with the data.

    to: an address of `--publish-bind`, such as "127.0.0.1:5561" or "unix:/run/publish.sock", or a URL. None: the server
    that runs this code, or outside a server, the address in $TAILRACE_PUBLISH_URL, $TAILRACE_PUBLISH_BIND or $GRIP_URL.

    You can call it in any thread, greenlet or process. It returns when the server has the event; clients may receive it
    later. Raises PublishError if no server can be reached or the server rejects the event, TypeError if JSON cannot
    represent data, and ValueError if event or id contains a line break or a NUL.
    """
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    if id is None:
        id = f"{time.time_ns():x}-{secrets.token_hex(3)}"
    item: dict[str, Any] = {
        "channel": channel,
        "id": id,
        "formats": {
            "http-stream": {"content": encode_event(text, event=event, id=id)},
            "http-response": {
                "code": 200,
                "reason": "OK",
                "headers": {"Content-Type": "text/plain; charset=utf-8" if data is text else "application/json"},
                "body": text,
            },
        },
    }
    publish_items([item], to=to)
    return id


def encode_event(data: str, *, event: str | None = None, id: str | None = None) -> str:
    """A server-sent event (HTML, "Server-sent events"). Raises ValueError for an event or an id with a line end, and an
    id with a NUL."""
    for name, value in (("event", event), ("id", id)):
        if value is not None and re.search(r"[\r\n\0]", value):
            raise ValueError(f"{name} must not contain a line break or a NUL: {value!r}")
    lines = [f"event: {event}\n"] * (event is not None) + [f"id: {id}\n"] * (id is not None)
    lines += [f"data: {line}\n" for line in re.split(r"\r\n|\r|\n", data)]
    return "".join(lines) + "\n"


def publish_items(items: Iterable[Mapping[str, Any]], *, to: str | None = None) -> None:
    """Publishes items in the form of Pushpin: see docs/guides/server-sent-events.md. to: as for `publish`. Raises
    PublishError."""
    document = json.dumps({"items": list(items)}).encode()
    if to is None and (known := holding.known()):
        # A program may have several servers.
        failures = []
        for each in known:
            try:
                _pass(each.holder_address, document)
            except PublishError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return
    found = to or next(filter(None, map(os.environ.get, _VARIABLES)), None)
    if found is None:
        raise PublishError(
            "this process belongs to no server: set to= or $TAILRACE_PUBLISH_URL to the server's --publish-bind "
            "address, such as 127.0.0.1:5561"
        )
    _post(found.split(",")[0].strip(), document)


def _pass(address: bytes, document: bytes) -> None:
    """Passes a document to the holder of this server."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
            holder.settimeout(_TIMEOUT)
            holder.connect(b"\0" + address)
            holder.sendall(struct.pack("<I", len(document) + 1) + _PUBLISH + document)
            answer = holder.recv(4096)
    except OSError as error:
        raise PublishError(f"cannot reach the process that holds connections: {error}") from None
    if answer != b"+":
        raise PublishError(answer[1:].decode(errors="replace") or "the process that holds connections has exited")


def _post(to: str, document: bytes) -> None:
    """Sends a document to an address of `--publish-bind`."""
    connection, path = _connection(to)
    try:
        connection.request("POST", f"{path}/publish/", document, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read(4096).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise PublishError(
            f"cannot publish to {to}: {said}; start the server with --publish-bind, or correct the address"
        ) from None
    finally:
        connection.close()
    if response.status == 404:
        raise PublishError(f"{to} does not accept publications; give it an address of --publish-bind")
    if response.status != 200:
        raise PublishError(f"{to} rejected the event: {response.status} {answer}")


def _connection(to: str) -> tuple[HTTPConnection, str]:
    """The connection, and the path in front of that of the request. Raises PublishError."""
    try:
        if "://" in to and not to.startswith("fd:"):
            url = urlsplit(to)
            if url.scheme != "http" or not url.hostname:
                raise PublishError(f"cannot publish to {to}: write host:port, unix:/path or http://host:port")
            return HTTPConnection(url.hostname, url.port or 80, timeout=_TIMEOUT), url.path.rstrip("/")
        address = binds.parse_published([to])[0].address
    except ValueError as error:
        raise PublishError(f"cannot publish to {to}: {error}") from None
    if isinstance(address, TcpAddress):
        return HTTPConnection(address.host or "127.0.0.1", address.port, timeout=_TIMEOUT), ""
    if isinstance(address, UnixAddress):
        return _UnixConnection(address.path), ""
    raise PublishError(f"cannot publish to {to}: a file descriptor is not an address; write host:port or unix:/path")


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(f"\0{self._path[1:]}" if self._path.startswith("@") else self._path)
