"""The Rust core. Checked against the built module by `make lint`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeAlias, final

from _typeshed import WriteableBuffer
from _typeshed.wsgi import WSGIApplication
from greenlet import greenlet

__all__ = [
    "SETTINGS",
    "ClientDisconnected",
    "ErrorStream",
    "FileWrapper",
    "Hub",
    "Input",
    "Overdue",
    "RequestBodyError",
    "RequestTimeout",
    "Scoreboard",
    "Server",
    "__version__",
]

__version__: Final[str]

SETTINGS: Final[tuple[str, ...]]
"""Names of the settings that `Server` wants; see `penstock.options.core_settings`."""

class ClientDisconnected(OSError):
    """The client has gone: nothing more can be read from it or written to it.

    Raised by `wsgi.input` when the client vanished before the end of the request body.
    """

class RequestTimeout(BaseException):
    """The request has taken longer than its deadline, and its client was answered 504.

    Raised in the application's thread, by `request_timeout` or `environ["penstock.set_deadline"](seconds)`. Like
    SystemExit it is no Exception: the request ends and is not tried again.
    """

class RequestBodyError(OSError):
    """The request body is malformed, too large or too slow.

    Raised by `wsgi.input` with `stream_body`. An application that lets it pass is answered for with `status`.
    """

    status: int
    """Status of the answer: 400, 408, 413 or 431."""

@final
class Scoreboard:
    """What the workers of a master are doing, in memory that they share: made by the master before it forks."""

    def __new__(cls, places: int, threads: int) -> Scoreboard:
        """Room for so many workers of so many threads. Raises OSError."""

    def counters(self, place: int, /) -> dict[str, int]:
        """Counters and gauges of the worker at a place, also after its death. Raises IndexError."""

    def in_flight(self, place: int, /) -> list[dict[str, Any]]:
        """The requests that it carries, or carried when it died: id, method, target, client, seconds, thread."""

    def drain(self, place: int, seconds: float, /) -> None:
        """Has the worker drain, with so many seconds for what is in flight, also when a request holds its interpreter.

        Raises IndexError, ValueError.
        """

    def clear(self, place: int, /) -> None:
        """Forgets the worker at a place, before another one gets it."""

Overdue: TypeAlias = tuple[int, int, str, float, str]
"""A request past its deadline: post, serial, method and target, seconds in the application, what its client got."""

@final
class Hub:
    """A server whose requests run in the greenlets of one thread, the hub's; made by `Server.hub`.

    The hub's thread calls the methods, but those that say "any thread". None blocks but `blocked`, none switches to
    another greenlet but `carry`.
    """

    def start(self, /) -> None:
        """Starts the I/O thread and returns. Raises OSError, RuntimeError at the second call."""

    def fileno(self, /) -> int:
        """The bell: a descriptor that is readable when there are requests or `take` has something to tell."""

    def take(self, /) -> tuple[list[int], list[Overdue], bool] | None:
        """Silences the bell. The next `wants_carrier` begins a slice of time for requests.

        Answers the tickets that are told, the requests past their deadline, and whether the server has ended, which
        is told once and last; None when there are nothing but requests.
        """

    def ring(self, /) -> None:
        """Rings the bell: `take` is called again. Any thread."""

    def wants_carrier(self, /) -> bool:
        """Whether a carrier should be switched to.

        Requests wait, one more may be carried, and the slice is not over (if it is, the bell is rung again).
        """

    def join(self, /) -> int | None:
        """A post for a new carrier; None when there are no more."""

    def carry(self, post: int, carrier: greenlet, /) -> bool:
        """Carries requests in the calling greenlet, `carrier`, while there are any and it is as good as a new one.

        False when it is to end: GreenletExit went through the application, or there is an `interruption`. Does not
        raise.
        """

    def interruption(self, /) -> BaseException | None:
        """The KeyboardInterrupt that has gone through the application of a carrier; told once. Its client got 500."""

    def leave(self, post: int, /) -> None:
        """The carrier of this post has ended."""

    def is_as_new(self, carrier: greenlet, references: int, /) -> bool:
        """Whether a parked carrier cannot be told from a new one.

        No more than `references` refer to it, none weakly, and it has no attributes.
        """

    def in_flight(self, /) -> list[dict[str, Any]]:
        """The requests that carriers carry: id, method, target, client, seconds, post. Any thread."""

    def is_carrying(self, post: int, serial: int, /) -> bool:
        """Whether the carrier of a post still carries this request. Any thread."""

    def may_interrupt(self, post: int, serial: int, /) -> bool:
        """Whether its application may be interrupted: it is still at it, and not cleaning up. Any thread."""

    def interrupt(self, post: int, serial: int, carrier: greenlet, /) -> bool:
        """Raises RequestTimeout in the hub's thread if it runs this request, which may be interrupted. Any thread."""

    def overdue(self, /) -> list[Overdue]:
        """The requests past their deadline that `take` has not told yet. Any thread."""

    def blocked(self, age: float, ring: int = 0, /) -> tuple[int, float]:
        """Waits, with the GIL released, until a ring of the bell is unanswered for `age` seconds: (ring, seconds).

        The seconds are of when the GIL has come back. With `ring`: until that one is, or was answered: (0, seconds that
        took). (-1, 0) when the server has ended. Any thread, one at a time. Raises ValueError.
        """

    def ping_every(self, seconds: float, /) -> None:
        """While requests are carried and the bell is silent, `blocked` rings it this often; 0: never. Any thread.

        Raises ValueError.
        """

    def progress(self, /) -> int:
        """Counts the requests that carriers began and ended. Any thread."""

    def log(self, level: str, text: str, /) -> None:
        """Logs a line, "warning" or "error", without waiting for `logging`. Any thread. Raises ValueError."""

    def forget(self, /) -> None:
        """In a forked child: from now on nothing here does anything."""

@final
class Server:
    """A server of one application on a set of listening sockets. Methods may be called from any thread."""

    def __new__(
        cls,
        application: WSGIApplication,
        settings: Mapping[str, object],
        listeners: Sequence[int],
        scoreboard: tuple[Scoreboard, int] | None = None,
    ) -> Server:
        """Takes what it serves.

        settings: a value for each name in SETTINGS (sizes in bytes, times in seconds). listeners: descriptors of
        listening sockets, duplicated. scoreboard: where it tells what it does, and the place there. Raises ValueError
        for unknown, missing or unfit settings, OSError when a resource is refused.
        """

    def hub(self, pause: Callable[[int, float | None], bool], /) -> Hub:
        """The calling thread becomes the hub in whose greenlets requests run, in place of `start`.

        pause: called in those as `pause(ticket, seconds)`; waits until `Hub.take` tells the ticket (True) or the
        seconds are over (False). Raises RuntimeError when the setting `hub` is off, or at the second call.
        """

    def start(self, /) -> None:
        """Starts the pool threads ("penstock-0", ...) and returns. Raises RuntimeError when the setting `hub` is on."""

    def run_here(self, /) -> None:
        """Serves on the calling thread until stopped. Raises what a signal handler raises, and as `start`."""

    def stop(self, /, graceful_timeout: float) -> None:
        """Begins to stop and returns; requests in flight have `graceful_timeout` seconds.

        Accepts nothing more and closes idle connections. Called again with 0 it stops now. May be called from a signal
        handler.
        """

    def join(self, /, timeout: float | None = None) -> bool:
        """Waits, with the GIL released, until the server has stopped; False when `timeout` seconds were not enough."""

    def stats(self, /) -> dict[str, int]:
        """Counters and gauges: connections, requests, threads, running, queued and others."""

    def reopen_logs(self, /) -> None:
        """Opens the access log again under its name, after a rotation."""

class _FileLike(Protocol):
    read: Callable[[int], bytes]

@final
class FileWrapper:
    """`wsgi.file_wrapper`: wraps a file-like object so that the server can deliver the file by itself.

    Iterating it, as middleware does, reads blocks of `block_size` bytes, or larger ones.
    """

    def __new__(cls, filelike: _FileLike, blksize: int = 8192) -> FileWrapper: ...
    def __iter__(self, /) -> FileWrapper: ...
    def __next__(self, /) -> bytes: ...
    def close(self, /) -> None:
        """Closes the file-like object, if it can be closed."""

    @property
    def filelike(self) -> Any:
        """The object that is wrapped."""

    @property
    def block_size(self) -> int:
        """Bytes of a block, at least."""

@final
class Input:
    """`wsgi.input`: the request's body, as a binary stream. Reading raises ClientDisconnected when it was cut."""

    def __iter__(self, /) -> Input: ...
    def __next__(self, /) -> bytes: ...
    def __enter__(self, /) -> Input: ...
    def __exit__(self, /, *_exception: object) -> None: ...
    def read(self, size: int | None = None, /) -> bytes:
        """Reads up to `size` bytes; all that is left if it is negative or None."""

    def read1(self, size: int | None = None, /) -> bytes:
        """Reads up to `size` bytes, fewer where more would mean to wait for the client."""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads into a writable buffer; the number of bytes read."""

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        """As `readinto`."""

    def readline(self, size: int | None = None, /) -> bytes:
        """Reads one line with its line end, but at most `size` bytes of it."""

    def readlines(self, hint: int | None = None, /) -> list[bytes]:
        """The lines that are left; no more lines once `hint` bytes have been read."""

    def close(self, /) -> None:
        """Leaves the stream open; it belongs to the server."""

    def flush(self, /) -> None: ...
    def readable(self, /) -> bool: ...
    def writable(self, /) -> bool: ...
    def seekable(self, /) -> bool: ...
    def isatty(self, /) -> bool: ...
    def fileno(self, /) -> NoReturn: ...
    def tell(self, /) -> NoReturn: ...
    def seek(self, _offset: object, _whence: object = 0, /) -> NoReturn: ...
    def truncate(self, _size: object = None, /) -> NoReturn: ...
    def write(self, _data: object, /) -> NoReturn: ...
    @property
    def closed(self) -> bool: ...

@final
class ErrorStream:
    """`wsgi.errors`: the text stream of standard error."""

    def write(self, text: str, /) -> int:
        """Writes text; the number of characters."""

    def writelines(self, lines: Iterable[str], /) -> None:
        """Writes each of some texts."""

    def flush(self, /) -> None: ...
    def close(self, /) -> None:
        """Leaves the stream open; it is the process's."""

    def __enter__(self, /) -> ErrorStream: ...
    def __exit__(self, /, *_exception: object) -> None: ...
