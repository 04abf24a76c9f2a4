"""The options table: every option of Tailrace, once.

Command line flags, `TAILRACE_*` variables, the keys of `tailrace.toml`, the keyword arguments of `tailrace.run`,
`tailrace.serve_in_thread` and `tailrace.gevent.serve`, the settings of the Rust core and the page docs/options.md all
derive from `OPTIONS`. To add an option, add a row here, use it in one file, and test it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace._tailrace import check_access_log_format, check_trusted_proxy, log_destination_kind
from tailrace.cli import static_values, values
from tailrace.cli.values import Kind

APPLICATION: Final = "Application"
ADDRESSES: Final = "Addresses"
PROCESSES: Final = "Processes"
THREADS: Final = "Threads"
GREENLETS: Final = "Greenlets"
LIMITS: Final = "Limits"
TIMES: Final = "Times"
RESPONSES: Final = "Requests and responses"
STATIC: Final = "Static files"
LOGS: Final = "Logs"
GROUPS: Final = (APPLICATION, ADDRESSES, PROCESSES, THREADS, GREENLETS, LIMITS, TIMES, RESPONSES, STATIC, LOGS)


class Place(enum.Enum):
    """A way to serve that does not support every option; the value is its name.

    A function refuses an option that it does not support. On the command line this is a warning, or an error if it is
    one of CONFLICTS."""

    RUN = "tailrace.run"
    THREAD = "tailrace.serve_in_thread"
    HUB = "tailrace.gevent.serve"
    DEBUG = "--debug"
    # With --reload, or as process 1, there is a master, and these options have their effect.
    DEBUG_ALONE = "--debug without --reload"
    RELOAD = "--reload"
    GEVENT = "--gevent"
    WITHOUT_GEVENT = "without --gevent"


# The functions for programs that have the application already.
FUNCTIONS: Final = (Place.RUN, Place.THREAD, Place.HUB)


@dataclass(frozen=True)
class Option:
    """One option.

    name: the key in files and of `tailrace.run`; the flag is `--` with dashes, the variable `TAILRACE_` in capitals.
    core: the setting of the Rust core that takes the value unchanged; None when there is none.
    flags: further spellings on the command line.
    positional: an argument of the command line rather than a flag.
    example: a value as it is written in a file.
    foreign: a variable that other servers read too. It counts where nothing else says the value, after what stands in
        its second place.
    absent: where it is not taken or has no effect, with the reason and what to do instead.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    group: str
    core: str | None = None
    flags: tuple[str, ...] = ()
    positional: bool = False
    example: object = None
    foreign: tuple[str, str] | None = None
    absent: Mapping[Place, str] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return "TAILRACE_" + self.name.upper()


def _root_path(raw: str) -> str:
    stripped = raw.rstrip("/")
    if stripped and not stripped.startswith("/"):
        raise ValueError(f"must begin with a slash: /{stripped}")
    if not stripped.isascii():
        raise ValueError("must be ASCII: write other characters percent-encoded")
    return stripped


def _field_value(raw: str) -> str:
    if not raw.isascii():
        raise ValueError("must be ASCII")
    return raw.strip()


def _log_format(raw: str) -> str:
    check_access_log_format(raw)
    return raw


def _log(raw: str) -> str:
    if raw == LOGGING:
        raise ValueError("only --access-log takes this word; --log-config configures logging")
    log_destination_kind(raw)
    return "stderr" if raw == "-" else raw


def _access_log(raw: str) -> str:
    if raw != LOGGING:
        log_destination_kind(raw)
    return raw


def _trusted_proxy(raw: str) -> str:
    check_trusted_proxy(raw)
    return raw


def _embedded(reason: str) -> dict[Place, str]:
    """Absent from all functions for one reason."""
    return dict.fromkeys(FUNCTIONS, reason)


def _beside(reason: str) -> dict[Place, str]:
    """Absent where the caller's own code goes on in the process."""
    return dict.fromkeys((Place.THREAD, Place.HUB), reason)


_ONE_REQUEST: Final = "there is one request at a time, on the main thread"
_NO_WORKERS: Final = _beside("it serves in this process alone; tailrace.run and the command have worker processes")
_OF_A_MASTER: Final = {**_NO_WORKERS, Place.DEBUG_ALONE: "there is no master process"}
_WHOLE_PROCESS: Final = _beside("it concerns the whole process, which is the caller's to set up")
_TOO_LATE: Final = (
    "the program runs already, too late to patch it; on a hub of gevent's, call tailrace.gevent.serve, or let "
    "`tailrace --gevent` load the application"
)
_LIMIT_OF_GREENLETS: Final = {
    Place.RUN: _TOO_LATE,
    Place.THREAD: _TOO_LATE,
    Place.DEBUG: _ONE_REQUEST,
    Place.WITHOUT_GEVENT: "there are no greenlets",
}
_LOG_OF_THE_PROGRAM: Final = _beside(
    "logging is the caller's to set up; logging.getLogger('tailrace').setLevel('WARNING') does the same"
)
_HANDLER_OF_THE_PROGRAM: Final = _beside(
    "logging is the caller's to set up; give logging.getLogger('tailrace') a handler such as "
    "tailrace.LogHandler('syslog')"
)
# The access log goes to the logger `tailrace.access`.
LOGGING: Final = "logging"


# What `{name}` gives in --access-log-format. The core knows the same names; a test compares.
ACCESS_LOG_ATOMS: Final = {
    "time": "when the response ended, RFC 3339, UTC",
    "client": "address of the client; `-` on a UNIX socket",
    "method": "request method",
    "target": "request target as it was sent",
    "path": "the target's path, still percent-encoded",
    "query": "the target's query, without the question mark",
    "protocol": "`HTTP/1.1` or `HTTP/1.0`",
    "status": "status code",
    "bytes": "bytes of the body that were sent",
    "duration_ms": "from the complete request to the end of the response, milliseconds",
    "queued_ms": "how long the complete request waited for a thread, milliseconds",
    "app_ms": "how long the application's thread ran it, milliseconds",
    "first_block_ms": "from the call of the application to its first block that is not empty, milliseconds",
    "blocks": "blocks that the application returned",
    "writes": "system calls that wrote the response",
    "drained_ms": "from the call of the application until the kernel had the last byte, milliseconds",
    "waited_ms": "how long the application's thread waited for the client to accept queued bytes, milliseconds",
    "held_ms": "how long the complete response was held while further requests waited (`--hold-writes`), milliseconds",
    "delivery": "`one-write`, `direct`, `coalesced`, `sendfile`, `spilled` (file) or `none`: how the body was sent",
    "ending": "`complete`, `client-gone`, `broken`, `timed-out` at its deadline, or `cut` at the end of a stop",
    "host": "`Host` field",
    "referer": "`Referer` field",
    "user_agent": "`User-Agent` field",
    "worker": "number of the worker, from 1",
    "ended": "when the response ended, seconds since 1970",
}

# Those that name something.
ACCESS_LOG_FIELDS: Final = {
    "request:NAME": "a field of the request, such as `{request:x-request-id}`",
    "response:NAME": "a field of the response, such as `{response:content-type}`",
    "environ:NAME": "a key of `environ` as the application leaves it, such as `{environ:REMOTE_USER}`: text, bytes or "
    "a number, up to 4 KiB; `-` for all else",
}

# What the atoms of gunicorn give, in a format that has `%(name)s` and none of the names above.
ACCESS_LOG_LETTERS: Final = {
    "%(h)s": "address of the client",
    "%(l)s": "`-`",
    "%(u)s": "user of `Authorization: Basic`",
    "%(t)s": "when the response ended, as `[22/Nov/2026:01:02:03 +0000]`",
    "%(r)s": "method, target and version",
    "%(m)s": "request method",
    "%(U)s": "the target's path, still percent-encoded",
    "%(q)s": "the target's query, without the question mark",
    "%(H)s": "`HTTP/1.1` or `HTTP/1.0`",
    "%(s)s": "status code",
    "%(B)s": "bytes of the body that were sent",
    "%(b)s": "the same",
    "%(f)s": "`Referer` field",
    "%(a)s": "`User-Agent` field",
    "%(T)s": "time from the complete request to the end of the response, whole seconds",
    "%(M)s": "that time in whole milliseconds",
    "%(D)s": "that time in whole microseconds",
    "%(L)s": "that time in seconds, with six decimals",
    "%(p)s": "process id, as `<7>`",
    "%({NAME}i)s": "a field of the request",
    "%({NAME}o)s": "a field of the response",
    "%({NAME}e)s": "a key of `environ`, as `{environ:NAME}`",
}


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "app",
        values.text("MODULE:CALLABLE"),
        None,
        "The WSGI application: `module:name`, `package.module:object.attribute`, `module:create_app('production')`, "
        "a module that has `application` or `app`, or the path of a .py or .wsgi file.",
        APPLICATION,
        positional=True,
        example="mysite.wsgi:application",
        absent=_embedded("it is the first argument: the application itself"),
    ),
    Option(
        "factory",
        values.boolean(),
        False,
        "CALLABLE is a function without arguments that returns the application.",
        APPLICATION,
        absent=_embedded("call the function, and pass on the application that it returns"),
    ),
    Option(
        "chdir",
        values.path("DIRECTORY"),
        None,
        "Change to this directory first; modules are searched in it before anywhere else.",
        APPLICATION,
        example="/srv/mysite",
        absent=_embedded("the application has been imported already: call os.chdir before"),
    ),
    Option(
        "env_file",
        values.path(),
        None,
        "Set variables of the environment from the NAME=value lines of this file, TAILRACE_* ones included. Variables "
        "that are set already keep their value. A reload reads the file again.",
        APPLICATION,
        example="/etc/mysite.env",
        absent=_embedded(
            "the application has been imported already, and has read its environment: set os.environ before"
        ),
    ),
    Option(
        "reload",
        values.boolean(),
        False,
        "For development: one worker, which is replaced when files of the application change. If they do not load, the "
        "browser shows the traceback until the next change. Needs `pip install 'tailrace[reload]'`.",
        APPLICATION,
        absent=_embedded("it cannot replace what the program has imported; use `tailrace MODULE:CALLABLE --reload`"),
    ),
    Option(
        "debug",
        values.boolean(),
        False,
        "For development: one process and one thread. The application runs on the main thread, so that breakpoint() "
        "works in the terminal. The browser shows the traceback of an exception that the framework does not catch.",
        APPLICATION,
        core="debug",
        absent={
            Place.THREAD: "it needs the main thread, which the caller uses; call tailrace.run instead",
            Place.HUB: "it serves one request at a time, a hub thousands; call tailrace.run instead",
            Place.GEVENT: "one serves a request at a time, the other one thousands",
        },
    ),
    Option(
        "bind",
        values.several(values.text("ADDRESS")),
        ("127.0.0.1:8000",),
        "Address to listen on: host:port, [::1]:8000, :8000 (every IPv4 address), 8000 (this machine only), "
        "localhost:8000 (this machine, IPv4 and IPv6), unix:/run/app.sock, unix:@abstract, or fd://3 for a socket that "
        "systemd or another parent opened. As a URL it names the protocol: http://host:port, uwsgi://host:port, "
        "http+unix:/path, uwsgi+unix:/path, uwsgi+fd://3. Options of the one address follow a question mark: proxy=v1, "
        "v2 or any (each connection begins with a PROXY header), mode=660 (of a UNIX socket), backlog=4096. May be "
        "given several times. Port 0 means any free port.",
        ADDRESSES,
        flags=("-b",),
        example=["127.0.0.1:8000", "uwsgi+unix:/run/app.sock?mode=660"],
    ),
    Option(
        "trusted_proxies",
        values.several_or("none", values.text("PEER", check=_trusted_proxy)),
        ("unix",),
        "The proxies that are believed about their clients: addresses, networks such as 10.0.0.0/8, unix (who connects "
        "to a UNIX socket), * (everybody), or none. They may state the client's address, scheme, host, port and prefix "
        "in the fields of --forwarded-fields, in a PROXY header and in uwsgi packets. "
        "The address is the last one that is not trusted itself. Of everybody else these fields are removed, and PROXY "
        "headers and uwsgi packets refused. With $FORWARDED_ALLOW_IPS set, the default is unix and what that lists.",
        ADDRESSES,
        core="trusted_proxies",
        example=["unix", "10.0.0.0/8"],
        foreign=("FORWARDED_ALLOW_IPS", "unix"),
    ),
    Option(
        "forwarded_fields",
        values.several_or(
            "none",
            values.choice(
                "any",
                "forwarded",
                "x-forwarded",
                "x-forwarded-for",
                "x-forwarded-proto",
                "x-forwarded-host",
                "x-forwarded-port",
                "x-forwarded-prefix",
            ),
        ),
        ("forwarded", "x-forwarded-for", "x-forwarded-proto"),
        "The fields that the trusted proxies write in each request, whatever their clients send: forwarded, "
        "x-forwarded-for and so on, x-forwarded (all of these), or any. The others are removed, since they may be the "
        "client's own. A request that has Forwarded and an X-Forwarded field is refused with 400 unless they agree.",
        ADDRESSES,
        core="forwarded_fields",
        example=["x-forwarded"],
    ),
    Option(
        "backlog",
        values.whole(1, 65535),
        2048,
        "Most connections that wait in the kernel to be accepted.",
        ADDRESSES,
    ),
    Option(
        "umask",
        values.octal(),
        None,
        "File mode creation mask of the process; it also applies to UNIX sockets. Unset: as inherited.",
        ADDRESSES,
        example="0o027",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "socket_mode",
        values.octal(),
        None,
        "Permission bits of UNIX sockets; the mask does not apply to them.",
        ADDRESSES,
        example="0o660",
    ),
    Option(
        "workers",
        values.count_or("auto", 1, 1024),
        1,
        "Number of worker processes. A master process holds the sockets, watches the workers and replaces them. auto: "
        "as many as the CPUs that may be used.",
        PROCESSES,
        flags=("-w",),
        example="auto",
        absent={**_NO_WORKERS, Place.RELOAD: "there is one worker", Place.DEBUG: "there is one process that serves"},
    ),
    Option(
        "preload",
        values.boolean(),
        False,
        "Load the application once, before the workers are forked: they share its memory and are ready at once. They "
        "also share the files and connections that it opens while it loads. Threads that it starts do not run in them.",
        PROCESSES,
        absent={
            **_embedded("the application has been loaded already, and worker processes share its memory without this"),
            Place.DEBUG_ALONE: _OF_A_MASTER[Place.DEBUG_ALONE],
            Place.RELOAD: "each worker loads the application, so that it is the new one",
            Place.GEVENT: "the master must stay unpatched, and each worker is patched before it loads the application",
        },
    ),
    Option(
        "hooks",
        values.text("MODULE"),
        None,
        "A module or file with any of the functions on_start(), post_fork(worker), worker_start(worker), "
        "pre_request(environ), post_request(record), worker_stop(worker), worker_exit(worker) and on_exit().",
        PROCESSES,
        example="mysite.hooks",
        absent=_NO_WORKERS,
    ),
    Option(
        "user",
        values.text("USER"),
        None,
        "Change to this user, by name or number, when the sockets are bound: master and workers.",
        PROCESSES,
        example="www-data",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "group",
        values.text("GROUP"),
        None,
        "Change to this group, by name or number. Unset: the group of the user.",
        PROCESSES,
        example="www-data",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "pidfile",
        values.path(),
        None,
        "Write the process id of the master, or of the only process, into this file. A second server with the same "
        "file does not start.",
        PROCESSES,
        example="/run/mysite/tailrace.pid",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "max_requests",
        values.whole(0),
        0,
        "Replace a worker after about this many requests, without losing one: its successor serves before it drains. "
        "0: never.",
        PROCESSES,
        example=100_000,
        absent=_OF_A_MASTER,
    ),
    Option(
        "max_requests_jitter",
        values.whole(0),
        0,
        "Add a random number of requests, up to this one, to --max-requests of each worker, so that not all are "
        "replaced at once.",
        PROCESSES,
        absent=_OF_A_MASTER,
    ),
    Option(
        "max_lifetime",
        values.seconds(zero=True),
        0.0,
        "Replace a worker after this time, less a random part of up to a tenth. 0: never.",
        PROCESSES,
        example="12h",
        absent=_OF_A_MASTER,
    ),
    Option(
        "max_rss",
        values.size(),
        0,
        "Replace a worker whose resident memory, shared pages included, is larger than this. 0: never.",
        PROCESSES,
        example="1GiB",
        absent=_OF_A_MASTER,
    ),
    Option(
        "hang_timeout",
        values.seconds(zero=True),
        30.0,
        "Kill and replace a worker that hangs for this long, at least 3 s: its process is stopped, or code in C does "
        "not release the interpreter. The log has its requests and the stacks of its threads. 0: never.",
        PROCESSES,
    ),
    Option(
        "status",
        values.text("ADDRESS"),
        None,
        "Answer /health, /ready, /status.json, /stacks and /metrics at this address, host:port or unix:/path, from a "
        "process of its own. Keep it private: it shows requests. If it cannot be opened, the server starts without it. "
        "/metrics and the stacks need `pip install 'tailrace[status]'`.",
        PROCESSES,
        example="127.0.0.1:9000",
        absent=_OF_A_MASTER,
    ),
    Option(
        "agent",
        values.text("ADDRESS"),
        None,
        "Answer HAProxy's agent-check at this address, host:port or unix:/path: each connection is told in one line "
        "how much the server can take (`up 75%`), `drain` while it stops, `down` while no worker serves. The process "
        "of --status answers, which runs for this option alone, too. If the address cannot be opened, the server "
        "starts without it.",
        PROCESSES,
        example="127.0.0.1:9001",
        absent=_OF_A_MASTER,
    ),
    Option(
        "statsd",
        values.text("ADDRESS"),
        None,
        "Send the figures of /metrics, with tags as DogStatsD has them, to this host:port by UDP every 10 seconds.",
        PROCESSES,
        example="127.0.0.1:8125",
        absent=_OF_A_MASTER,
    ),
    Option(
        "threads",
        values.whole(1, 4096),
        128,
        "Most threads that run the application at once. They are started when requests wait, and end when idle. Use 1 "
        "for applications that are not thread-safe.",
        THREADS,
        absent={
            Place.DEBUG: _ONE_REQUEST,
            Place.HUB: "requests run in greenlets, which max_greenlets limits",
            Place.GEVENT: "requests run in greenlets, which --max-greenlets limits",
        },
    ),
    Option(
        "gevent",
        values.boolean(),
        False,
        "Run each request in a greenlet of its own on gevent's hub, so that ten thousand requests can sleep, or wait "
        "for a database or another server, at once. Each worker patches the standard library before it loads the "
        "application. On SIGURG the stacks of all greenlets are logged. Needs `pip install 'tailrace[gevent]'`.",
        GREENLETS,
        absent={
            Place.RUN: _TOO_LATE,
            Place.THREAD: _TOO_LATE,
            Place.HUB: "it serves on greenlets without being told",
            Place.DEBUG: _ONE_REQUEST,
        },
    ),
    Option(
        "max_greenlets",
        values.whole(1, 50_000),
        10_000,
        "With --gevent, most requests that the application of a worker runs at once; more wait, up to --max-queue.",
        GREENLETS,
        example=2_000,
        absent=_LIMIT_OF_GREENLETS,
    ),
    Option(
        "hub_warn",
        values.seconds(zero=True),
        0.1,
        "With --gevent, log the stack of a greenlet that blocks the hub, and so every other greenlet, for longer than "
        "this, because it computes or waits in a call that is not patched. 0: never.",
        GREENLETS,
        example="250ms",
        absent=_LIMIT_OF_GREENLETS,
    ),
    Option(
        "request_line_limit",
        values.size(64),
        8190,
        "Longest request line; a longer one is answered 414.",
        LIMITS,
        core="request_line_limit",
    ),
    Option(
        "header_bytes_limit",
        values.size(256),
        65536,
        "Most bytes of all field lines of a request; more are answered 431.",
        LIMITS,
        core="header_bytes_limit",
    ),
    Option(
        "header_count_limit",
        values.whole(1, 65535),
        128,
        "Most header fields of a request; more are answered 431.",
        LIMITS,
        core="header_count_limit",
    ),
    Option(
        "max_body",
        values.size(),
        1 << 30,
        "Largest request body; a larger one is answered 413.",
        LIMITS,
        core="max_body",
        example="100MiB",
    ),
    Option(
        "client_memory",
        values.size(1 << 20),
        None,
        "Maximum memory that a worker holds for its clients. Past it, the oldest incomplete requests get 503. Half of"
        " it is for responses (--response-buffer; the excess moves to files and does not count), a"
        " quarter for request bodies (--body-buffer). Default: 512 MiB, or more if those two options need it.",
        LIMITS,
        example="1GiB",
    ),
    Option(
        "body_memory",
        values.size(),
        None,
        "A request body up to this size is kept in memory, a larger one in an unlinked temporary file (in TMPDIR)."
        " Unset: half of --body-buffer, but at least 1 MiB and at most 64 MiB.",
        LIMITS,
        example="64MiB",
    ),
    Option(
        "body_buffer",
        values.size(),
        None,
        "Most memory for all request bodies together. Past it, all but small bodies are kept in temporary files. Unset:"
        " a quarter of --client-memory.",
        LIMITS,
        example="128MiB",
    ),
    Option(
        "stream_body",
        values.boolean(),
        False,
        "Call the application when the head of a request is complete. Its reads of wsgi.input wait for the client, and"
        " hold the thread meanwhile. A chunked body then has no CONTENT_LENGTH, which some frameworks need. Without"
        " this option the application is called when the whole body has arrived.",
        LIMITS,
        core="stream_body",
    ),
    Option(
        "response_queue",
        values.size(4096),
        4 << 20,
        "Most memory for one response whose client accepts it slowly. The rest is kept in a temporary file, see"
        " --response-spill.",
        LIMITS,
        core="response_queue",
    ),
    Option(
        "response_buffer",
        values.size(65536),
        None,
        "Maximum memory for all responses that wait for slow clients, capped at three quarters of --client-memory. The"
        " rest is kept in temporary files, see --response-spill. Default: half of --client-memory.",
        LIMITS,
        example="256MiB",
    ),
    Option(
        "response_spill",
        values.size(),
        4 << 30,
        "Most bytes of responses in unlinked temporary files (in TMPDIR, which should not be in memory), so that no "
        "thread waits for slow clients. A response that the application has not finished may use a 64th of it. Past "
        "it, application threads wait for their clients, and requests for which no thread is free are answered 503. 0: "
        "no files.",
        LIMITS,
        core="response_spill",
        example="20GiB",
    ),
    Option(
        "max_queue",
        values.whole(1, 1_000_000),
        2048,
        "Most requests that wait for a thread or greenlet of a worker; more are answered 503 with Retry-After.",
        LIMITS,
        core="max_queue",
    ),
    Option(
        "max_connections",
        values.whole(1, 10_000_000),
        100_000,
        "Most connections of a worker at once; fewer if the limit of open files, which a worker raises as far as"
        " possible, does not allow so many. For a further client, the connection that has been idle for longest is"
        " closed; if none is idle, the client waits in the kernel's queue.",
        LIMITS,
        core="max_connections",
    ),
    Option(
        "request_timeout",
        values.seconds(zero=True),
        0.0,
        "How long the application may take for a request. Then the client is answered 504, tailrace.RequestTimeout is"
        " raised in the thread or greenlet, and the log has its stack. A worker in which it does not return is"
        " replaced. With --stream-body, the time of waiting for the client is included. 0: no limit.",
        TIMES,
        core="request_timeout",
        example=30,
    ),
    Option(
        "queue_timeout",
        values.seconds(zero=True),
        0.0,
        "A request that has waited this long for a thread or greenlet is answered 503 with Retry-After. 0: no limit.",
        TIMES,
        core="queue_timeout",
        example=10,
    ),
    Option(
        "header_timeout",
        values.seconds(zero=False),
        15.0,
        "Longest time from the first byte of a request head to its last; then 408.",
        TIMES,
        core="header_timeout",
    ),
    Option(
        "body_timeout",
        values.seconds(zero=False),
        30.0,
        "Longest time between two pieces of a request body; then 408.",
        TIMES,
        core="body_timeout",
    ),
    Option(
        "idle_timeout",
        values.seconds(zero=False),
        75.0,
        "A connection without a request is closed after this time. It should be longer than that of a proxy in front.",
        TIMES,
        core="idle_timeout",
        flags=("--keep-alive",),
    ),
    Option(
        "write_timeout",
        values.seconds(zero=False),
        60.0,
        "A client that accepts nothing of a response for this long is disconnected.",
        TIMES,
        core="write_timeout",
    ),
    Option(
        "min_body_rate",
        values.size(),
        240,
        "Least average rate of a request body after --body-timeout, in bytes per second; below it, 408. 0: any rate.",
        TIMES,
        core="min_body_rate",
    ),
    Option(
        "min_response_rate",
        values.size(),
        240,
        "Least average rate at which a client accepts a waiting response after --write-timeout, in bytes per second;"
        " below it, the client is disconnected. 0: any rate.",
        TIMES,
        core="min_response_rate",
    ),
    Option(
        "graceful_timeout",
        values.seconds(zero=True),
        30.0,
        "How long requests in flight may take to finish after SIGTERM or SIGINT. A second signal stops at once. With "
        "--reload the default is 1 s, and it also applies when files have changed.",
        TIMES,
    ),
    Option(
        "hold_writes",
        values.seconds(zero=True, most=0.01),
        0.001,
        "Batch complete responses of up to 16 KiB to GET, HEAD, OPTIONS or TRACE for up to this long while other"
        " requests are waiting. Higher throughput. Maximum: 10ms. 0: send each response at once, including the first"
        " block of a generator, which may otherwise wait for 1 ms.",
        RESPONSES,
        core="hold_writes",
        example=0,
    ),
    Option(
        "root_path",
        values.text("PATH", check=_root_path),
        "",
        "SCRIPT_NAME: the path under which the application is mounted. It is removed from the start of PATH_INFO.",
        RESPONSES,
        core="root_path",
        example="/app",
    ),
    Option(
        "url_scheme",
        values.choice("http", "https"),
        "http",
        "wsgi.url_scheme: https if a proxy in front terminates TLS.",
        RESPONSES,
        core="url_scheme",
    ),
    Option(
        "underscore_headers",
        values.choice("drop", "keep", "refuse"),
        "drop",
        "What to do with request fields that have an underscore in their name, which CGI variables cannot distinguish "
        "from a dash: drop them, keep them, or refuse the request with 400.",
        RESPONSES,
        core="underscore_headers",
    ),
    Option(
        "server_header",
        values.text("TEXT", check=_field_value),
        "tailrace",
        "Server field of responses for which the application sets none. Empty: no such field.",
        RESPONSES,
        core="server_header",
    ),
    Option(
        "server_timing",
        values.boolean(),
        False,
        "Add a Server-Timing field with the time that a request was queued and the time that the application took until"
        " its first block; browsers show it.",
        RESPONSES,
        core="server_timing",
    ),
    Option(
        "static",
        values.pairs(static_values.mount, "PREFIX=FOLDER", "/assets=./dist", static_values.write_mount),
        (),
        "Serve the files of a folder under a path of URLs, without the application: /assets=./dist. What the folder "
        "does not have is answered 404. May be given several times; the longest path that fits counts. / is for every "
        "path. A relative folder is below the current directory. `tailrace static list` shows what is served.",
        STATIC,
        example=["/assets=./dist", "/media=/srv/media"],
    ),
    Option(
        "overlay",
        values.path("FOLDER"),
        None,
        "Serve the files of this folder, such as favicon.ico and robots.txt, at the root of all URLs. What it does not "
        "have goes to the application.",
        STATIC,
        example="./public",
    ),
    Option(
        "spa",
        values.file_below(),
        None,
        "For single-page applications: send this file of a --static folder, with status 200, for paths that the folder "
        "does not have and whose last part has no extension.",
        STATIC,
        core="static_fallback",
        example="index.html",
    ),
    Option(
        "sendfile_root",
        values.pairs(
            static_values.mount,
            "FOLDER|PREFIX=FOLDER",
            "/srv/media",
            static_values.write_root,
            nameless=static_values.root,
        ),
        (),
        "Send files that the application names in its response, in place of a body. FOLDER: by the path of a file in "
        "it, X-Sendfile: /srv/media/a.pdf. PREFIX=FOLDER: by a path of URLs, X-Accel-Redirect: /protected/a.pdf for "
        "/protected=/srv/media. May be given several times. A folder with a = in its name: =FOLDER. Unset: these "
        "fields are sent to the client.",
        STATIC,
        example=["/srv/media", "/protected=/srv/media"],
    ),
    Option(
        "static_index",
        values.names("NAMES"),
        ("index.html",),
        "The file that is served for a folder: the first of these names, separated by commas, that it has. Empty: "
        "none.",
        STATIC,
        core="static_index",
        example=["index.html", "index.htm"],
    ),
    Option(
        "static_listing",
        values.boolean(),
        False,
        "Serve a page for a folder of --static that has no such file: its files and folders, with sizes and dates, at "
        "most 10,000.",
        STATIC,
        core="static_listing",
    ),
    Option(
        "static_404",
        values.file_below(),
        None,
        "Send this file of a --static folder, with status 404, for what the folder does not have.",
        STATIC,
        core="static_not_found",
        example="404.html",
    ),
    Option(
        "static_cache",
        values.pairs(static_values.cache_rule, "PATTERN=VALUE", "/assets=1y,immutable", static_values.write_cache_rule),
        (),
        "Cache-Control of static files. PATTERN: a path and all below it, such as /assets; a path or, without a slash, "
        "a file's name in which * stands for any characters, such as *.html; or the word fingerprinted: files whose "
        "name contains a hash of their content, such as app.3f2a9c1b.js. VALUE: words such as no-cache, and times, "
        "separated by commas, or none. May be given several times; the first pattern that fits counts, fingerprinted "
        "last. Unset: fingerprinted=public,1y,immutable.",
        STATIC,
        example=["/assets=1y,immutable", "*.html=no-cache"],
    ),
    Option(
        "mime",
        values.pairs(static_values.media_type, ".EXT=TYPE", ".data=text/plain", ".{}={}".format),
        (),
        "Content-Type of static files with this extension, sent as written. May be given several times.",
        STATIC,
        core="static_types",
        example=[".data=text/plain"],
    ),
    Option(
        "static_symlinks",
        values.choice("beneath", "never", "follow"),
        "beneath",
        "Which symbolic links are followed: those that lead to something below the folder, none, or all.",
        STATIC,
        core="static_symlinks",
    ),
    Option(
        "static_dotfiles",
        values.choice("well-known", "never", "all"),
        "well-known",
        "Which names that begin with a dot are served: .well-known alone, at the top of a folder; none; or all.",
        STATIC,
        core="static_dotfiles",
    ),
    Option(
        "static_precompressed",
        values.boolean(),
        True,
        "To a client that accepts it, send app.js.br, app.js.zst or app.js.gz, if it exists, in place of app.js.",
        STATIC,
        core="static_precompressed",
    ),
    Option(
        "static_compress",
        values.boolean(),
        False,
        "Compress files of types that become smaller by it, such as text, by Brotli or gzip, once, and keep the result "
        "in memory (--static-memory). It is made in the background: the first client gets the file as it is. For files "
        "of 256 bytes to 8 MiB that have no compressed sibling.",
        STATIC,
        core="static_compress",
    ),
    Option(
        "static_memory",
        values.size(),
        32 << 20,
        "Most memory of a worker for the content of static files, compressed forms included.",
        STATIC,
        core="static_memory",
        example="128MiB",
    ),
    Option(
        "static_memory_file",
        values.size(),
        64 << 10,
        "A static file up to this size is kept in memory.",
        STATIC,
        core="static_memory_file",
    ),
    Option(
        "static_descriptors",
        values.whole(0, 1_000_000),
        512,
        "Most static files that a worker keeps open.",
        STATIC,
        core="static_descriptors",
    ),
    Option(
        "access_log",
        values.path("DESTINATION", check=_access_log),
        None,
        "Write a line for each response to this file, which SIGUSR1 reopens, or to one of the other destinations of "
        "--log; `-` is standard output. logging: the logger tailrace.access. Lines that cannot be written in time are "
        "dropped and counted.",
        LOGS,
        core="access_log",
        example="/var/log/tailrace/access.log",
    ),
    Option(
        "access_log_format",
        values.text("combined|common|json|FORMAT", check=_log_format),
        "combined",
        "Format of the access log: a name, or a text with atoms in braces, such as '{client} {method} {target} "
        "{status} {duration_ms} {request:x-request-id} {response:content-type} {environ:REMOTE_USER}', or with those "
        "of gunicorn, such as '%(h)s \"%(r)s\" %(s)s %({X-Request-Id}i)s'. After the word json, atoms are the members "
        "of an object: 'json {time} {status} {request:x-request-id}'.",
        LOGS,
        core="access_log_format",
        example="{client} {method} {target} {status} {duration_ms}",
    ),
    Option(
        "slow",
        values.seconds(zero=True),
        0.0,
        "Log a request that has run for this long while it still runs, with what it does and the stack of its thread "
        "or greenlet; and again when it is done, with where its time went. 0: none.",
        LOGS,
        core="slow",
        example="1s",
    ),
    Option(
        "query_masking",
        values.choice("secrets", "all", "none"),
        "secrets",
        "Query string values to mask as *** in the server's own log, on the status pages and in the output of the "
        "commands that read them. secrets: those of parameters with names such as token, key, password, code or "
        "signature. The access log is not affected; its format decides.",
        LOGS,
        core="query_masking",
        example="all",
    ),
    Option(
        "log",
        values.path("DESTINATION", check=_log),
        "stderr",
        "Destination of the server's own log: stderr, stdout, the path of a file, which SIGUSR1 reopens, syslog (the "
        "local daemon), syslog:/dev/log?facility=local0&tag=shop, syslog://HOST:514 (UDP), or journal. Nothing waits "
        "for it: entries that are not accepted in time are dropped and counted.",
        LOGS,
        example="syslog",
        absent=_HANDLER_OF_THE_PROGRAM,
    ),
    Option(
        "log_format",
        values.choice("text", "json"),
        "text",
        "Format of the server's own log: text, or an object of JSON per entry.",
        LOGS,
        example="json",
        absent=_HANDLER_OF_THE_PROGRAM,
    ),
    Option(
        "log_level",
        values.choice("debug", "info", "warning", "error"),
        "info",
        "Lowest level that the server's own log shows.",
        LOGS,
        absent=_LOG_OF_THE_PROGRAM,
    ),
    Option(
        "log_config",
        values.path("FILE"),
        None,
        "Configure Python's logging by this .toml or .json file, a dictionary for logging.config.dictConfig, before "
        "the application is loaded. It replaces --log, --log-format and --log-level; the loggers are tailrace, "
        "tailrace.error and tailrace.access. A reload reads the file again.",
        LOGS,
        example="logging.toml",
        absent=_beside("logging is the caller's to set up; call logging.config.dictConfig"),
    ),
)

BY_NAME: Final[dict[str, Option]] = {option.name: option for option in OPTIONS}

# Options of the command line that contradict each other, which is an error. Other combinations of the table are
# warnings.
CONFLICTS: Final = (("debug", Place.GEVENT), ("preload", Place.GEVENT), ("preload", Place.RELOAD))


def worker_count(chosen: Mapping[str, Any]) -> int:
    """The number of workers; `auto` is as many as there are CPUs that may be used."""
    return len(os.sched_getaffinity(0)) if chosen["workers"] == "auto" else int(chosen["workers"])


CLIENT_MEMORY: Final = 512 << 20


def client_memory(chosen: Mapping[str, Any]) -> tuple[int, int, int]:
    """Bytes that a worker holds for its clients in all, and of these, bytes for responses and for request bodies."""
    total = CLIENT_MEMORY if chosen["client_memory"] is None else chosen["client_memory"]
    responses = total // 2 if chosen["response_buffer"] is None else chosen["response_buffer"]
    bodies = total // 4 if chosen["body_buffer"] is None else chosen["body_buffer"]
    if chosen["client_memory"] is None:
        # A quarter of the total is kept for heads and small bodies.
        total = max(total, (responses + bodies) * 4 // 3)
    return total, responses, bodies


def body_memory(chosen: Mapping[str, Any]) -> int:
    """Bytes of one request body that are kept in memory."""
    if chosen["body_memory"] is not None:
        return int(chosen["body_memory"])
    return max(1 << 20, min(64 << 20, client_memory(chosen)[2] // 2))


# What a browser need not ask for again: another content has another name.
FINGERPRINTED_FOREVER: Final = "public, max-age=31536000, immutable"


def static_mounts(chosen: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Path of the URLs, folder, and whether the application gets what the folder does not have."""
    mounts = [(prefix, folder, False) for prefix, folder in chosen["static"]]
    return [*mounts, ("", chosen["overlay"], True)] if chosen["overlay"] is not None else mounts


# Settings of the core that follow from several options or from the way the server is started.
DERIVED: Final[dict[str, Callable[[Mapping[str, Any]], object]]] = {
    "executor": lambda chosen: "greenlets" if chosen["gevent"] else "inline" if chosen["debug"] else "threads",
    "threads": lambda chosen: chosen["max_greenlets"] if chosen["gevent"] else chosen["threads"],
    "client_memory": lambda chosen: client_memory(chosen)[0],
    "response_buffer": lambda chosen: client_memory(chosen)[1],
    "body_memory": body_memory,
    "body_buffer": lambda chosen: client_memory(chosen)[2],
    "static_mounts": static_mounts,
    "static_named": lambda chosen: list(chosen["sendfile_root"]),
    "static_cache": lambda chosen: [rule for rule in chosen["static_cache"] if rule[0] != static_values.FINGERPRINTED],
    "static_fingerprinted": lambda chosen: dict(chosen["static_cache"]).get(
        static_values.FINGERPRINTED, FINGERPRINTED_FOREVER
    ),
    # A worker of a master adds its number to the option values.
    "worker": lambda chosen: chosen.get("worker", 1),
    "multithread": lambda chosen: chosen["gevent"] or (chosen["threads"] > 1 and not chosen["debug"]),
    "multiprocess": lambda chosen: worker_count(chosen) > 1 and not chosen["debug"],
}


def core_settings(chosen: Mapping[str, Any]) -> dict[str, object]:
    """The settings of the Rust core for these option values."""
    settings = {option.core: chosen[option.name] for option in OPTIONS if option.core is not None}
    return settings | {name: derive(chosen) for name, derive in DERIVED.items()}
