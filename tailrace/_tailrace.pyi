"""The Rust core. Checked against the built module by `make lint`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeAlias, final

from _typeshed import WriteableBuffer
from _typeshed.wsgi import WSGIApplication
from greenlet import greenlet

__all__ = [
    "ATOMS",
    "FIELDS",
    "MAX_OPEN_FILES",
    "METRICS",
    "PHASES",
    "SIZES",
    "Certificates",
    "ClientDisconnected",
    "ClientDisconnectedError",
    "ErrorStream",
    "FileWrapper",
    "GreenletRunner",
    "Holder",
    "Input",
    "ListeningSocket",
    "LogStream",
    "Overdue",
    "PanicException",
    "RequestBodyError",
    "RequestTimeout",
    "Scoreboard",
    "Server",
    "SharedNumber",
    "SharedNumbers",
    "TraceBatch",
    "Traces",
    "__version__",
    "check_access_log_format",
    "check_origin",
    "check_request_id",
    "check_trusted_proxy",
    "end_with_parent",
    "follow_deliveries",
    "log_destination_kind",
    "note_collection",
    "note_switch",
    "permit_tracing",
    "self_signed",
    "static_codings",
    "static_headers",
    "static_refusal",
]

__version__: Final[str]

METRICS: Final[tuple[tuple[str, str, str, str, str, str, str, str], ...]]
"""What the scoreboard counts, in the order of `/metrics`: group, source, kind, key, label, name, help, details, as in
`tailrace.status.table.Metric`."""

FIELDS: Final[tuple[tuple[str, str, str], ...]]
"""The fields of the delivery record: name, type (of a value that is not None), help."""

ATOMS: Final[tuple[tuple[str, str], ...]]
"""The atoms of the access log, among them the fields of the delivery record: name, help. Times end with `_ms`."""

PHASES: Final[tuple[tuple[str, bool, str], ...]]
"""The times of a response, in the order of a request: name, whether it is a part of the application's time, help."""

SIZES: Final[tuple[str, ...]]
"""The sizes of a response."""

MAX_OPEN_FILES: Final[int]
"""Maximum number of static files that a worker keeps open."""

def check_access_log_format(text: str, /) -> None:
    """Checks a format of the access log. Raises ValueError, which says what is wrong and what is right."""

def log_destination_kind(text: str, /) -> str:
    """The kind of a destination of `--log` or `--access-log`: `stdout`, `stderr`, `file`, `syslog`, `journal` or
    `logging`. Raises ValueError, which says what is wrong and what is right."""

def check_origin(entry: str, /) -> None:
    """Checks an entry of the pages that may open a WebSocket. Raises ValueError, which says what is right."""

def check_request_id(name: str, /) -> None:
    """Raises ValueError unless requests may have their id in a field of this name."""

def check_trusted_proxy(entry: str, /) -> None:
    """Checks an address, a network, `unix` or `*`. Raises ValueError, which says what is right."""

def static_codings(settings: Mapping[str, object], name: str, length: int, /) -> list[str]:
    """The codings in which a file would be compressed, if it becomes smaller, the best first.

    settings: as for `static_headers`. name: of the file, or a path that ends with it. length: in bytes.
    """

def static_headers(settings: Mapping[str, object], path: str, /) -> dict[str, str]:
    """The fields of a response with a static file that follow from its name: type, Cache-Control if any, and nosniff.

    settings: those for `Server`; the ones that begin with `static_` are enough. path: that of the URL, decoded, with
    the name of the file that is sent for a folder. Raises KeyError for missing, ValueError for unfit settings."""

def static_refusal(settings: Mapping[str, object], folder: str, path: str, /) -> str | None:
    """Why a file or folder below a folder would not be served, in a word; None: it would.

    settings: as for `static_headers`. path: what follows the folder's path in a URL: percent-encoded, with a slash in
    front. The word is one of control, dot, link, long, missing, octets, permission, separator, special, and unfit, or
    the system's error. Raises KeyError, ValueError, and OSError when the folder cannot be opened.
    """

class ClientDisconnected(BaseException):
    """The client has disconnected: nothing more can be read from it or sent to it.

    Raised in a request that is cancelled (`cancel_on_disconnect`). Like SystemExit it is not a subclass of Exception,
    so that `except Exception` does not catch it.
    """

class ClientDisconnectedError(ClientDisconnected, OSError):
    """Raised by `wsgi.input` if the client disconnects before the end of the request body, and by `write()`."""

class RequestTimeout(BaseException):
    """The request has taken longer than its deadline, and the client was sent 504.

    Raised in the application's thread, by `request_timeout` or `environ["tailrace.set_deadline"](seconds)`. Like
    SystemExit it is not a subclass of Exception, so that `except Exception` does not catch it.
    """

class PanicException(BaseException):
    """A panic of the core: a bug in Tailrace, to be reported."""

class RequestBodyError(OSError):
    """The request body is malformed, too large or too slow.

    Raised by `wsgi.input` with `stream_body`. If the application does not catch it, the response has this `status`.
    """

    status: int
    """Status of the response: 400, 408, 413 or 431."""

def follow_deliveries(function: Callable[[dict[str, Any], str | None], object], /) -> None:
    """From now on calls `function` for each response that is over, on a thread of its own, with its record (see
    `tailrace.on_delivery`) and the line of an access log that goes to logging, else None. It must not raise. Later
    calls do nothing."""

def end_with_parent(ends: bool, /) -> None:
    """Has the kernel kill the calling process when its parent ends; False: no longer. Raises OSError."""

def note_collection(phase: str, info: object, /) -> None:
    """Notes the begin or the end of a collection of garbage on the calling thread. For `gc.callbacks`."""

def note_switch(event: object, greenlets: tuple[object, object], /) -> None:
    """Notes that the calling thread has switched to another greenlet, the second of `greenlets`. For
    `greenlet.settrace`."""

def permit_tracing(by: int, /) -> None:
    """Permits the process with this number and its descendants to read the memory of the calling process, where Yama
    (`ptrace_scope` 1) would refuse it. Does nothing where there is no Yama. Raises OSError, OverflowError."""

@final
class Holder:
    """Holds connections without threads. Any thread."""

    def __new__(
        cls, descriptor: int, application: bytes, *, write_timeout: float, client_connections: int, has_bus: bool
    ) -> Holder:
        """descriptor: of the UNIX socket, which listens, where it is passed connections; it is duplicated.
        application: the abstract address where requests of the application are made. write_timeout: seconds for which
        a client may accept nothing. client_connections: how many one client may have; 0: any number. has_bus: a
        further process sends publications to other servers. Raises OSError, ValueError."""

    def take_over(self, address: bytes, /) -> int:
        """Takes over everything from the holder at this abstract address; how many connections that were. Raises
        OSError."""

    def run(self) -> None:
        """Holds connections on the calling thread until it is stopped, or another holder has taken over. Raises
        OSError, RuntimeError."""

    def start(self) -> None:
        """As `run`, on a thread of its own."""

    def has_ended(self) -> bool:
        """True when the thread of `start` has ended."""

    def stop(self, timeout: float = ..., /) -> None:
        """Ends all responses, and then `run`, for which it waits if `start` was called, for at most this many seconds.
        Any thread."""

@final
class LogStream:
    """A destination of a log: writing never blocks. Any thread."""

    def __new__(cls, destination: str, /, *, json: bool = False) -> LogStream:
        """destination: as `--log` takes it. json: texts are objects of JSON. Raises ValueError for what is no
        destination, and OSError, whose text names it, for what cannot be opened."""

    def write(self, severity: int, text: bytes, fields: Sequence[tuple[str, bytes]] = ..., /) -> None:
        """Writes a text, which may have several lines. severity: that of syslog, 0 to 7. fields: further ones for the
        journal. What is not accepted at once waits in memory. Beyond 1 MiB entries are dropped and counted."""

    def reopen(self) -> None:
        """Opens a file again by its name. Raises OSError, whose text names it; then the log goes to the old one."""

    def in_child(self) -> LogStream | None:
        """The log in a forked child, without what waits; None: it cannot be opened there."""

    def flush(self, seconds: float, /) -> bool:
        """Writes what waits, for at most this many seconds; True: all is written. Raises ValueError."""

    def waits_for(self) -> int | None:
        """The descriptor that becomes writable when what waits can be written; None: nothing waits."""

    def allow_thread(self) -> None:
        """From now on a thread writes what waits, and ends afterwards."""

@final
class SharedNumber:
    """One of `SharedNumbers`. Any thread."""

    def add(self, amount: float, /) -> None:
        """Adds to it."""

    def set(self, value: float, /) -> None:
        """Sets it."""

    def get(self) -> float:
        """Its value."""

@final
class SharedNumbers:
    """Numbers that this process shares by name with those it forks. Any thread."""

    MAX: Final[int]
    """How many there may be."""

    def __new__(cls) -> SharedNumbers:
        """None yet. Raises OSError."""

    def number(self, name: str, owner: int = 0, /) -> SharedNumber | None:
        """The number of this name, 0 at first; None: there is no place for it, or its name is longer than 480 bytes.

        owner: the process whose own it is; 0: all share it. Raises OverflowError."""

    def all(self) -> list[tuple[str, int, float]]:
        """All of them: name, owner, value."""

    def refuse(self) -> None:
        """Counts one that found no place."""

    def refused(self) -> int:
        """How many found no place."""

    def forget(self, owner: int, /) -> None:
        """A process has ended: its own numbers are gone. Raises OverflowError."""

@final
class TraceBatch:
    """Traced responses that were read. Any thread."""

    def __len__(self) -> int:
        """How many responses it has."""

    def responses(self) -> list[dict[str, Any]]:
        """Its responses, in the order in which they were over: what `Scoreboard.recent` has of each, and `trace_id` and
        the ids of spans, `parent_id` (None: the trace begins here), `span_id` and `application_id`, as numbers;
        `scheme` (None: nobody states it); `url_path` and `url_query` (None: there is none), not escaped; `started`,
        whether the application has had it; `at_ns`, when it was over, in nanoseconds of the
        monotonic clock."""

@final
class Traces:
    """Traced responses of all workers, which wait to be exported: at most 4,096. Any thread writes, one reads."""

    def read(self, most: int, /) -> TraceBatch:
        """The oldest responses, `most` at most. They stay until they are freed. Raises OverflowError."""

    def free(self, batch: TraceBatch, is_exported: bool, /) -> None:
        """Frees the places of a batch, which was exported, or not."""

    def waiting(self) -> int:
        """How many responses wait."""

    def counts(self) -> tuple[int, int, int]:
        """How many responses were exported, failed to be exported, were dropped because there was no room."""

@final
class Scoreboard:
    """The state of all workers of a master, in memory that they share. Made by the master before it forks."""

    numbers: Final[SharedNumbers]
    """The metrics of the application."""
    traces: Final[Traces]
    """The traced responses of all workers."""

    def __new__(cls, slots: int, threads: int, query_masking: str) -> Scoreboard:
        """A scoreboard for this many workers, each with this many threads. query_masking: the value of the option.
        Raises OSError, ValueError."""

    def counters(self, slot: int, /) -> dict[str, int]:
        """Counters and gauges of the worker in a slot, also after its death. Raises IndexError."""

    def states(self, slot: int, /) -> dict[str, dict[str, int]]:
        """Its threads and connections, each by state. Raises IndexError."""

    def deliveries(self, slot: int, /) -> dict[str, dict[str, int]]:
        """The counts of its finished responses, by group and name, also after its death. Buckets of histograms have the
        responses up to their bound, without those of the buckets before. Raises IndexError."""

    def endpoints(self, slot: int | None, /) -> list[dict[str, Any]]:
        """What the responses of each of its endpoints have cost since it began, in no order: `endpoint` (method and
        folded path; empty: all others together), counts such as `responses` and `application_ns`, sums of `PHASES`
        that are parts of the application's time such as `cpu_ns`, `paths`, a dict of responses by how their bodies were
        sent, and `times`, a dict of responses, without event streams, by the upper bound of their time in seconds,
        as text, ascending. None: of all workers for which `keep` was called. Raises IndexError."""

    def recent(self, slot: int | None, /) -> dict[str, list[dict[str, Any]]]:
        """Its last `slow` and its last `broken` responses, the last one first: `method`, `target`, `endpoint` (as in
        `endpoints`), `request_id` (None: it had none), `client`, `status`, `event_stream`, `ending`, `path`, `SIZES`,
        and in seconds `PHASES` and `ago`, the time since its end. None: of all workers for which `keep` was called,
        with `worker` and `pid`, which are 0 otherwise. Raises IndexError."""

    def in_flight(self, slot: int, /) -> list[dict[str, Any]]:
        """The requests that it runs, or ran when it died: id, request_id (None: it has none), method, target, client,
        phase, seconds, thread."""

    def signs_of_life(self, slot: int, /) -> tuple[int, int | None]:
        """The last heartbeat of its I/O side, and since when its I/O side waits for the interpreter (None: it does
        not), both in nanoseconds of the monotonic clock. Raises IndexError."""

    def drain(self, slot: int, seconds: float, /) -> None:
        """Makes the worker drain, with this many seconds for requests in flight, even if a request holds its
        interpreter.

        Raises IndexError, ValueError.
        """

    def keep(self, slot: int, number: int, with_endpoints: bool, /) -> None:
        """Adds its `recent` to those of all workers that have ended; its `endpoints`, too, if `with_endpoints`. number:
        of the worker, which has ended. Raises IndexError."""

    def forget_endpoints(self) -> None:
        """Forgets the endpoints of all workers that have ended."""

    def clear(self, slot: int, /) -> None:
        """Clears a slot, before another worker gets it."""

Overdue: TypeAlias = tuple[int, int, str, float, str]
"""A request past its deadline: runner slot, serial number, method and target, seconds in the application, what its
client got."""

@final
class GreenletRunner:
    """A server whose requests run in the greenlets of one thread, the hub's; made by `Server.greenlet_runner`.

    The hub's thread calls the methods, except those that say "any thread". Only `blocked` blocks, and only
    `run_requests` switches to other greenlets.
    """

    def explain_by(self, explain: Callable[[int], str], /) -> None:
        """Has `explain(slot)` say where a worker greenlet is, for the log of slow requests. Called on another thread.
        Later calls do nothing."""

    def start(self, /) -> None:
        """Starts the I/O thread and returns. Raises OSError, RuntimeError at the second call."""

    def fileno(self, /) -> int:
        """The wakeup: a descriptor that is readable when there are requests or `take` has something to return."""

    def take(self, /) -> tuple[list[int], list[Overdue], list[tuple[int, int, bool]], bool] | None:
        """Answers the wakeup. The next `wants_greenlet` begins a slice of time for requests.

        Returns the tickets whose greenlets may go on, the requests past their deadline, those whose client has
        disconnected (runner slot, serial number, whether to cancel it), and whether the server has ended, which is
        returned once and last; None when there are only requests."""

    def wake(self, /) -> None:
        """Makes the wakeup readable, so that `take` is called again. Any thread."""

    def wants_greenlet(self, /) -> bool:
        """Whether to switch to a worker greenlet.

        True when requests wait, one more may run, and the slice is not over (if it is, the hub is woken again).
        """

    def take_slot(self, /) -> int | None:
        """A runner slot for a new worker greenlet; None when there are no more."""

    def run_requests(self, slot: int, runner: greenlet, /) -> bool:
        """Runs requests in the calling greenlet, `runner`, while there are any and `is_as_new` holds for it.

        False when it is to end: GreenletExit went through the application, or there is an `interruption`. Does not
        raise.
        """

    def interruption(self, /) -> BaseException | None:
        """The KeyboardInterrupt that was raised in an application in a greenlet; returned once. Its client got 500."""

    def give_slot_back(self, slot: int, /) -> None:
        """The worker greenlet of this runner slot has ended."""

    def is_as_new(self, runner: greenlet, references: int, /) -> bool:
        """Whether a parked worker greenlet is as good as a new one.

        There are at most `references` references to it, no weak ones, and it has no attributes.
        """

    def in_flight(self, /) -> list[dict[str, Any]]:
        """The requests that worker greenlets run: id, request_id (None: it has none), method, target, client, phase,
        seconds, slot. Any thread."""

    def is_running(self, slot: int, serial: int, /) -> bool:
        """Whether the worker greenlet of a runner slot still runs this request. Any thread."""

    def may_interrupt(self, slot: int, serial: int, /) -> bool:
        """Whether the application may be interrupted in this request: it runs, and not in `close()`. Any thread."""

    def may_cancel(self, slot: int, serial: int, /) -> bool:
        """Whether a request may be cancelled because its client disconnected: `may_interrupt`, and its response has not
        ended."""

    def subscriptions(self, slot: int, serial: int, /) -> list[Any]:
        """The subscriptions of this request, whose client has disconnected."""

    def interrupt(self, slot: int, serial: int, runner: greenlet, /) -> bool:
        """Raises RequestTimeout in the hub's thread if it runs this request, which may be interrupted. Any thread."""

    def overdue(self, /) -> list[Overdue]:
        """The requests past their deadline that `take` has not returned yet. Any thread."""

    def blocked(self, age: float, wakeup: int = 0, /) -> tuple[int, float]:
        """Waits, with the GIL released, until a wakeup is unanswered for `age` seconds: (its number, seconds).

        The seconds are counted until the GIL was taken again. With `wakeup`, the number of one: until that one is, or
        was answered: (0, seconds until the answer). (-1, 0) when the server has ended. Any thread, one at a time.
        Raises ValueError."""

    def ping_every(self, seconds: float, /) -> None:
        """While requests run, `blocked` wakes the hub this often; 0: never. Any thread.

        Raises ValueError.
        """

    def progress(self, /) -> int:
        """How many requests worker greenlets have begun and ended. Any thread."""

    def log(self, level: str, text: str, /) -> None:
        """Logs a line, "warning" or "error", without waiting for `logging`. Any thread. Raises ValueError."""

    @staticmethod
    def forked_in(greenlet: greenlet, /) -> None:
        """Call it first in a forked child, with the greenlet that forked. When the application returns in that
        greenlet, the child ends. The other methods do nothing in the child."""

@final
class Certificates:
    """The certificates of encrypted listeners: those that could be read last."""

    def __new__(
        cls,
        files: Sequence[tuple[str, str | None]],
        ticket_secret: bytes,
        *,
        password: str | None = None,
        only_1_3: bool = False,
        client_ca: str | None = None,
        client_is_required: bool = False,
    ) -> Certificates:
        """Reads certificates.

        files: chain and key of each; a key that is None is in the file of the chain. ticket_secret: 32
        bytes that all workers share. password: the file with the password of encrypted keys. only_1_3: TLS 1.2 is
        refused. client_ca: the file with the authorities of clients; None: clients are not asked for a certificate.
        client_is_required: a client without a certificate is refused. Raises ValueError with a sentence that names the
        file."""

    def facts(self) -> list[tuple[str, list[str], float, float]]:
        """For each certificate that is served: its file, its names, and when it begins and ceases to be valid (Unix
        time)."""

    def refresh(self) -> tuple[bool, list[str]]:
        """Reads the files again that have changed.

        Returns whether new connections get what they say, and a sentence for each that cannot be used, once for each
        change; what was served by it before still is."""

def self_signed(names: Sequence[str]) -> tuple[str, str]:
    """A certificate for development and its key, in PEM, for these names. Raises ValueError."""

@final
class ListeningSocket:
    """A listening socket that a server is given, and what arrives there."""

    def __new__(
        cls,
        descriptor: int,
        protocol: str = "http",
        proxy: str | None = None,
        certificates: Certificates | None = None,
        redirect: int | None = None,
    ) -> ListeningSocket:
        """descriptor: of the socket; `Server` duplicates it. protocol: "http" or "uwsgi". proxy: the version of the
        PROXY header that each connection begins with ("v1", "v2", "any"); None: no header. certificates: connections
        are encrypted with these, which are the same for all sockets of a server; None: they are not. redirect: requests
        are redirected to `https://` at this port of the same host; None: they are not. Raises ValueError."""

@final
class Server:
    """A server of one application on a set of listening sockets. Methods may be called from any thread."""

    def __new__(
        cls,
        application: WSGIApplication,
        settings: Mapping[str, object],
        listeners: Sequence[ListeningSocket],
        scoreboard: tuple[Scoreboard, int] | None = None,
        master: tuple[int, float, float] | None = None,
    ) -> Server:
        """Makes a server, which does not run yet.

        settings: as `ServerSettings.core` gives them (sizes in bytes, times in seconds). listeners: where to
        accept clients. scoreboard: and the slot of this worker in it. master: the reading end of the liveness pipe,
        how long requests in flight may take once the master has ended, and how much later the process then ends by
        force (seconds). Raises ValueError for unknown, missing or unfit settings, OSError when a resource is
        refused."""

    def greenlet_runner(self, pause: Callable[[int, float | None], bool], /) -> GreenletRunner:
        """Has requests run in greenlets of the calling thread's hub, instead of `start`.

        pause: called in those as `pause(ticket, seconds)`; waits until `GreenletRunner.take` returns the ticket (True)
        or the seconds are over (False). Raises RuntimeError when the setting `executor` is not "greenlets", or at the
        second call.
        """

    def start(self, /, started: Callable[[], object] | None = None) -> None:
        """Starts the pool threads ("tailrace-0", ...) and returns.

        started: called when they run and before they serve, since a request may hold the interpreter from then on.
        Raises RuntimeError when the setting `executor` is "greenlets", and what `started` raises.
        """

    def run_here(self, /) -> None:
        """Serves on the calling thread until stopped. Raises what a signal handler raises, and as `start`."""

    def stop(self, /, graceful_timeout: float) -> None:
        """Begins to stop and returns; requests in flight have `graceful_timeout` seconds.

        Accepts nothing more and closes idle connections. Called again with 0 it stops now. May be called from a signal
        handler.
        """

    def add_follower(self, /, descriptor: int) -> None:
        """Shuts down the sending direction of this socket, which is duplicated, when the server drains.

        The server then takes the requests of its sessions until the other end is closed, but no longer than requests in
        flight have. Raises ValueError and OSError for what is no descriptor.
        """

    def join(self, /, timeout: float | None = None) -> bool:
        """Waits, with the GIL released, until the server has stopped; False when `timeout` seconds were not enough, and
        at once in a thread that runs requests of this server."""

    def fault(self, /) -> str | None:
        """The internal error that ended the server; None when there was none."""

    def stats(self, /) -> dict[str, int]:
        """Counters and gauges: connections, requests, threads, running, queued and others."""

    def cut_requests(self, /) -> list[tuple[str, float]]:
        """The requests that the end of the server interrupted: method and target, and for how many seconds they had
        run. Each is returned once."""

    def reopen_logs(self, /) -> None:
        """Opens the access log again under its name, after a rotation. Raises OSError; then it goes to the old file."""

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
