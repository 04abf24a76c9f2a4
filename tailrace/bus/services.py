"""What servers send documents over: the publish and subscribe of Redis or Valkey, or LISTEN and NOTIFY of PostgreSQL.

Each connects when it is used, and again after an error. An instance is used by one thread.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import secrets
import select
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tailrace.system.bus_address import Address

# How long the service may take to connect, and to answer (seconds).
_TIMEOUT: Final = 5
# Messages, and bytes of them, that are taken from a connection in one go.
_MAX_TAKEN: Final = 1_000
_MAX_TAKEN_BYTES: Final = 4 << 20
# The payload of a notification has less than 8,000 bytes.
_PART: Final = 7_900
# Messages of which parts have come, at most, parts that one has, and bytes of all.
_MAX_PARTIAL: Final = 100
_MAX_PARTS: Final = 200
_MAX_PARTIAL_BYTES: Final = 64 << 20


# What redis says of a parameter that it does not know.
_UNKNOWN: Final = re.compile(r"unexpected keyword argument ('\w+')")


class ServiceError(Exception):
    """The service cannot be reached, or does not do what it is asked."""


class Service(Protocol):
    """A connection to a service."""

    def send(self, messages: Sequence[bytes]) -> None:
        """Returns when the service has all messages. Raises ServiceError: it may have some of them."""

    def receive(self, seconds: float) -> list[bytes]:
        """Those that have come, after at most this time; the first call subscribes, and returns nothing. Raises
        ServiceError."""

    def close(self) -> None:
        """Ends the connection. The next call connects again."""


def connection(address: Address) -> Service:
    """Connects when it is used."""
    return Redis(address) if address.package == "redis" else PostgreSQL(address)


class Redis:
    """Redis or Valkey."""

    def __init__(self, address: Address) -> None:
        try:
            import redis
        except ImportError as error:
            raise ServiceError(str(error)) from None
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._error, self._channel = redis.RedisError, address.channel
        try:
            self._client = redis.Redis.from_url(
                address.url, socket_connect_timeout=_TIMEOUT, socket_timeout=_TIMEOUT, retry=Retry(NoBackoff(), 0)
            )
            # It is not connected yet, but has the parameters of the URL.
            pool: Any = self._client.connection_pool
            pool.make_connection()
        except (ValueError, TypeError, redis.RedisError) as error:
            unknown = _UNKNOWN.search(str(error))
            raise ServiceError(f"the URL has an unknown parameter {unknown[1]}" if unknown else _said(error)) from None
        if pool.connection_kwargs.get("decode_responses"):
            raise ServiceError("the URL must not have the parameter 'decode_responses'")
        self._subscribed: Any = None

    def send(self, messages: Sequence[bytes]) -> None:
        """See Service."""
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    pipeline.publish(self._channel, message)
                # Else the error would quote the message.
                answers = pipeline.execute(raise_on_error=False)
        except (self._error, OSError, ValueError) as error:
            raise ServiceError(_said(error)) from None
        for answer in answers:
            if isinstance(answer, Exception):
                raise ServiceError(_said(answer))

    def receive(self, seconds: float) -> list[bytes]:
        """See Service."""
        try:
            if self._subscribed is None:
                client: Any = self._client
                subscribed: Any = client.pubsub(ignore_subscribe_messages=True)
                subscribed.subscribe(self._channel)
                self._subscribed = subscribed
                # Its answer: from here on, all messages come.
                subscribed.get_message(timeout=_TIMEOUT)
                return []
            found: list[bytes] = []
            size = 0
            line = self._subscribed.connection
            while line.can_read(0 if found else seconds) and len(found) < _MAX_TAKEN and size < _MAX_TAKEN_BYTES:
                # Of a message, a part may have come: the rest is waited for.
                message = self._subscribed.get_message(timeout=_TIMEOUT)
                if message is not None:
                    found.append(bytes(message["data"]))
                    size += len(found[-1])
        except (self._error, OSError, ValueError, TypeError, AttributeError) as error:
            raise ServiceError(_said(error)) from None
        return found

    def close(self) -> None:
        """See Service."""
        subscribed, self._subscribed = self._subscribed, None
        with contextlib.suppress(self._error, OSError):
            if subscribed is not None:
                subscribed.close()
            self._client.connection_pool.disconnect()


class PostgreSQL:
    """A message that is longer than a notification has several: each with the number of the message and its own."""

    def __init__(self, address: Address) -> None:
        try:
            import psycopg
            from psycopg import conninfo
        except ImportError as error:
            raise ServiceError(" ".join(str(error).split())) from None

        # It would write to the error stream what its exceptions say as well.
        logging.getLogger("psycopg").addHandler(logging.NullHandler())
        self._psycopg, self._channel = psycopg, address.channel
        try:
            given = conninfo.conninfo_to_dict(address.url)
        except psycopg.Error as error:
            if unknown := re.fullmatch(r'invalid URI query parameter: "(\w+)"\s*', str(error)):
                raise ServiceError(f"the URL has an unknown parameter '{unknown[1]}'") from None
            # It may quote a part of the password.
            raise ServiceError("libpq cannot parse this URL") from None
        # A service that is gone is noticed.
        self._parameters: dict[str, Any] = {
            "connect_timeout": _TIMEOUT,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": _TIMEOUT * 1000,
            "application_name": "tailrace",
            **given,
        }
        self._connection: Any = None
        self._listens = False
        # No other instance has it.
        self._name = secrets.token_hex(4)
        self._number = 0
        self._parts: dict[str, list[str]] = {}

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._psycopg.connect(autocommit=True, **self._parameters)
        return self._connection

    def send(self, messages: Sequence[bytes]) -> None:
        """See Service."""
        rows = [(self._channel, part) for message in messages for part in self._split(message)]
        try:
            connection = self._connected()
            # One transaction, and so one commit.
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {_TIMEOUT * 1000}")
                cursor.executemany("SELECT pg_notify(%s, %s)", rows)
        except (self._psycopg.Error, OSError, ValueError) as error:
            raise ServiceError(_said(error)) from None

    def receive(self, seconds: float) -> list[bytes]:
        """See Service."""
        try:
            connection = self._connected()
            if not self._listens:
                name = self._psycopg.sql.Identifier(self._channel)
                connection.execute(self._psycopg.sql.SQL("LISTEN {}").format(name))
                self._listens = True
                return []
            # `notifies` would wake ten times a second.
            if not select.select([connection.fileno()], [], [], seconds)[0]:
                return []
            notified = [each.payload for each in connection.notifies(timeout=0, stop_after=1)]
        except (self._psycopg.Error, OSError, ValueError) as error:
            raise ServiceError(_said(error)) from None
        return [message for message in map(self._joined, notified) if message is not None]

    def close(self) -> None:
        """See Service."""
        connection, self._connection = self._connection, None
        self._listens = False
        self._parts.clear()
        if connection is not None:
            with contextlib.suppress(self._psycopg.Error, OSError):
                connection.close()

    def _split(self, message: bytes) -> list[str]:
        """`NUMBER PART PARTS ENCODING CONTENT`: different ones, since equal ones in a transaction would be one."""
        self._number += 1
        encoding, text = "t", message
        if not message.isascii() or b"\0" in message:
            encoding, text = "b", base64.b64encode(message)
        parts = [text[at : at + _PART].decode() for at in range(0, len(text), _PART)]
        return [f"{self._name}-{self._number} {at} {len(parts)} {encoding} {part}" for at, part in enumerate(parts, 1)]

    def _joined(self, payload: str) -> bytes | None:
        """The message that this part completes."""
        try:
            number, at, count, encoding, text = payload.split(" ", 4)
            parts = self._parts.setdefault(number, [])
            if int(at) != len(parts) + 1 or int(count) > _MAX_PARTS:
                # Its beginning was before this connection, or it is of another program.
                self._parts.pop(number)
                return None
            parts.append(text)
            if len(parts) == int(count):
                whole = "".join(self._parts.pop(number))
                return base64.b64decode(whole) if encoding == "b" else whole.encode()
        except ValueError:
            # Of another program.
            return None
        total = sum(len(part) for each in self._parts.values() for part in each) if len(self._parts) > 1 else 0
        if len(self._parts) > _MAX_PARTIAL or total > _MAX_PARTIAL_BYTES:
            # Those of connections that have ended.
            self._parts.pop(next(iter(self._parts)))
        return None


def _said(error: Exception) -> str:
    """In one line."""
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return "the service needs a password, which the URL does not have" if said.startswith("HELLO must be") else said
