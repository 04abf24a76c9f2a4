"""The options table: every option of Penstock, once.

Command line flags, `PENSTOCK_*` variables, the keys of `penstock.toml`, the keyword arguments of `penstock.run`, the
settings of the Rust core and the page docs/options.md all derive from `OPTIONS`. To add an option, add a row here,
use it in one file, and test it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock import values
from penstock.values import Kind

APPLICATION: Final = "Application"
ADDRESSES: Final = "Addresses"
PROCESSES: Final = "Processes"
THREADS: Final = "Threads"
GREENLETS: Final = "Greenlets"
LIMITS: Final = "Limits"
TIMES: Final = "Times"
RESPONSES: Final = "Requests and responses"
LOGS: Final = "Logs"
GROUPS: Final = (APPLICATION, ADDRESSES, PROCESSES, THREADS, GREENLETS, LIMITS, TIMES, RESPONSES, LOGS)


@dataclass(frozen=True)
class Option:
    """One option.

    name: the key in files and of `penstock.run`; the flag is `--` with dashes, the variable `PENSTOCK_` in capitals.
    core: the name of the setting of the Rust core that takes the value as it is; None when Python uses it.
    flags: further spellings on the command line.
    positional: an argument of the command line rather than a flag.
    example: a value as one writes it in a file.
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

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return "PENSTOCK_" + self.name.upper()


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


# What `{name}` gives in a format of one's own. The core knows the same names; a test compares.
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
    "queued_ms": "complete request waiting for a thread, milliseconds",
    "app_ms": "the application's thread at work on it, milliseconds",
    "first_block_ms": "from the call of the application to its first block that is not empty, milliseconds",
    "blocks": "blocks that the application returned",
    "writes": "system calls that wrote the response",
    "waited_ms": "the application's thread waiting for the client to take what was queued, milliseconds",
    "delivery": "`one-write`, `direct`, `gathered`, `sendfile` or `none`: how the body travelled",
    "ending": "`complete`, `client-gone`, `broken`, or `timed-out` at its deadline",
    "host": "`Host` field",
    "referer": "`Referer` field",
    "user_agent": "`User-Agent` field",
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
    ),
    Option(
        "factory",
        values.boolean(),
        False,
        "CALLABLE is a function without arguments that returns the application.",
        APPLICATION,
    ),
    Option(
        "chdir",
        values.path("DIRECTORY"),
        None,
        "Change to this directory first; modules are searched in it before anywhere else.",
        APPLICATION,
        example="/srv/mysite",
    ),
    Option(
        "env_file",
        values.path(),
        None,
        "Read variables for the application, and PENSTOCK_* ones, from the NAME=value lines of this file; what the "
        "environment has already stays. A reload reads it again.",
        APPLICATION,
        example="/etc/mysite.env",
    ),
    Option(
        "reload",
        values.boolean(),
        False,
        "For development: one worker, which is replaced when files of the application change; while they do not load, "
        "the browser shows the traceback. Needs `pip install 'penstock[reload]'`.",
        APPLICATION,
    ),
    Option(
        "debug",
        values.boolean(),
        False,
        "For development: one process, one thread, the application on the main thread so that breakpoint() works in "
        "the terminal, and tracebacks of what the framework lets through in the browser.",
        APPLICATION,
        core="debug",
    ),
    Option(
        "bind",
        values.several(values.text("ADDRESS")),
        ("127.0.0.1:8000",),
        "Listen here: host:port, [::1]:8000, :8000 (every IPv4 address), 8000 (this machine only), "
        "unix:/run/app.sock, unix:@abstract, or fd://3 for a socket that systemd or another parent opened. Repeat "
        "for more. Port 0 picks a free one.",
        ADDRESSES,
        flags=("-b",),
        example=["127.0.0.1:8000", "unix:/run/app.sock"],
    ),
    Option(
        "backlog",
        values.whole(1, 65535),
        2048,
        "Connections that the kernel keeps waiting to be accepted.",
        ADDRESSES,
    ),
    Option(
        "umask",
        values.octal(),
        None,
        "File mode creation mask of the process, and so of UNIX sockets. Unset: as inherited.",
        ADDRESSES,
        example="0o027",
    ),
    Option(
        "socket_mode",
        values.octal(),
        None,
        "Permission bits of UNIX sockets, whatever the mask is.",
        ADDRESSES,
        example="0o660",
    ),
    Option(
        "workers",
        values.count_or("auto", 1, 1024),
        1,
        "Processes that serve, watched by another one that holds the sockets and replaces them. auto: as many as CPUs "
        "may be used.",
        PROCESSES,
        flags=("-w",),
        example="auto",
    ),
    Option(
        "preload",
        values.boolean(),
        False,
        "Load the application once, before the workers are forked: they share its memory and are ready at once. What "
        "it opens while it loads is shared by them, and threads that it starts are missing in them.",
        PROCESSES,
    ),
    Option(
        "hooks",
        values.text("MODULE"),
        None,
        "A module or file with any of the functions on_start(), post_fork(worker), worker_ready(worker), "
        "worker_exit(worker) and on_exit().",
        PROCESSES,
        example="mysite.hooks",
    ),
    Option(
        "user",
        values.text("USER"),
        None,
        "Become this user, by name or number, once the sockets are bound, in the master and in the workers.",
        PROCESSES,
        example="www-data",
    ),
    Option(
        "group",
        values.text("GROUP"),
        None,
        "Become this group, by name or number. Unset: the user's own.",
        PROCESSES,
        example="www-data",
    ),
    Option(
        "pidfile",
        values.path(),
        None,
        "Write the number of the master's process into this file; a second server with the same one does not start.",
        PROCESSES,
        example="/run/mysite/penstock.pid",
    ),
    Option(
        "max_requests",
        values.whole(0),
        0,
        "Replace a worker after about so many requests, without losing one: its successor serves before it drains. 0: "
        "never.",
        PROCESSES,
        example=100_000,
    ),
    Option(
        "max_requests_jitter",
        values.whole(0),
        0,
        "Up to so many requests more, by chance for each worker, so that they are not replaced all at once.",
        PROCESSES,
    ),
    Option(
        "max_lifetime",
        values.seconds(zero=True),
        0.0,
        "Replace a worker after this time, or up to a tenth sooner by chance. 0: never.",
        PROCESSES,
        example="12h",
    ),
    Option(
        "max_rss",
        values.size(),
        0,
        "Replace a worker that has more than this in memory, shared pages counted. 0: never.",
        PROCESSES,
        example="1GiB",
    ),
    Option(
        "threads",
        values.whole(1, 4096),
        128,
        "Threads that may run the application at once, at most. They start when requests wait and end when idle. 1 "
        "serves applications that are not thread-safe.",
        THREADS,
    ),
    Option(
        "gevent",
        values.boolean(),
        False,
        "Run each request in a greenlet of its own on gevent's hub, so that ten thousand that sleep, or wait for a "
        "database or another server, are ordinary. Each worker patches the standard library before it loads the "
        "application. SIGURG writes what every greenlet does to the log. Needs `pip install 'penstock[gevent]'`.",
        GREENLETS,
    ),
    Option(
        "max_greenlets",
        values.whole(1, 50_000),
        10_000,
        "With --gevent, requests that a worker's application has at once, at most; more wait, up to --max-queue.",
        GREENLETS,
        example=2_000,
    ),
    Option(
        "hub_warn",
        values.seconds(zero=True),
        0.1,
        "With --gevent, log the stack of a greenlet that keeps the hub, and so every other greenlet, for longer than "
        "this: it computes, or waits in a call that is not patched. 0: never.",
        GREENLETS,
        example="250ms",
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
        "body_memory",
        values.size(),
        1 << 20,
        "A request body up to this size stays in memory, a larger one goes to an unlinked temporary file (in TMPDIR).",
        LIMITS,
        core="body_memory",
    ),
    Option(
        "body_buffer",
        values.size(),
        128 << 20,
        "Of all request bodies together, keep this much in memory; past it, all but small ones go to temporary files.",
        LIMITS,
        core="body_buffer",
    ),
    Option(
        "stream_body",
        values.boolean(),
        False,
        "Start the application as soon as the head of a request is there; its reads of wsgi.input then wait for the"
        " client, and hold a thread meanwhile. A chunked body then has no CONTENT_LENGTH, which some frameworks rely"
        " on. Without it, bodies are read whole first.",
        LIMITS,
        core="stream_body",
    ),
    Option(
        "response_queue",
        values.size(4096),
        4 << 20,
        "Of one response, keep this much for a client that takes it slowly; then the application waits.",
        LIMITS,
        core="outbox_limit",
    ),
    Option(
        "response_buffer",
        values.size(65536),
        256 << 20,
        "Of all responses together, keep this much memory for clients that take them slowly; past it, application"
        " threads wait for their clients.",
        LIMITS,
        core="response_buffer",
    ),
    Option(
        "max_queue",
        values.whole(1, 1_000_000),
        2048,
        "Requests that may wait for a thread or greenlet of a worker; more are answered 503 with Retry-After.",
        LIMITS,
        core="max_queue",
    ),
    Option(
        "max_connections",
        values.whole(1, 10_000_000),
        100_000,
        "Connections of a worker at once; more wait in the kernel's queue.",
        LIMITS,
        core="max_connections",
    ),
    Option(
        "request_timeout",
        values.seconds(zero=True),
        0.0,
        "The application has this long for a request. Then its client is answered 504, penstock.RequestTimeout is"
        " raised in its thread or greenlet, and the log shows where that was; a worker in which it does not come back"
        " is replaced. With --stream-body, waiting for the client counts, too. 0: as long as it likes.",
        TIMES,
        core="request_timeout",
        example=30,
    ),
    Option(
        "queue_timeout",
        values.seconds(zero=True),
        0.0,
        "A request that has waited this long for a thread or greenlet is answered 503 with Retry-After. 0: it waits.",
        TIMES,
        core="queue_timeout",
        example=10,
    ),
    Option(
        "header_timeout",
        values.seconds(zero=False),
        15.0,
        "From the first byte of a request head to its end; then 408.",
        TIMES,
        core="header_timeout",
    ),
    Option(
        "body_timeout",
        values.seconds(zero=False),
        30.0,
        "Between two pieces of a request body; then 408.",
        TIMES,
        core="body_timeout",
    ),
    Option(
        "idle_timeout",
        values.seconds(zero=False),
        75.0,
        "A connection without a request is closed after this time. Longer than a proxy in front keeps its own.",
        TIMES,
        core="idle_timeout",
        flags=("--keep-alive",),
    ),
    Option(
        "write_timeout",
        values.seconds(zero=False),
        60.0,
        "A client that takes nothing of a response for this long is given up.",
        TIMES,
        core="write_timeout",
    ),
    Option(
        "min_body_rate",
        values.size(),
        240,
        "Bytes a second that a request body must arrive with on average, after --body-timeout; then 408. 0: any rate.",
        TIMES,
        core="min_body_rate",
    ),
    Option(
        "min_response_rate",
        values.size(),
        240,
        "Bytes a second that a client must take a waiting response with on average, after --write-timeout; else it is"
        " given up. 0: any rate.",
        TIMES,
        core="min_response_rate",
    ),
    Option(
        "graceful_timeout",
        values.seconds(zero=True),
        30.0,
        "After SIGTERM or SIGINT, requests in flight have this long to finish. A second signal stops at once.",
        TIMES,
    ),
    Option(
        "root_path",
        values.text("PATH", check=_root_path),
        "",
        "SCRIPT_NAME: the path under which the application is mounted; a request path that begins with it loses it.",
        RESPONSES,
        core="root_path",
        example="/app",
    ),
    Option(
        "url_scheme",
        values.choice("http", "https"),
        "http",
        "wsgi.url_scheme: https when a proxy in front ends TLS.",
        RESPONSES,
        core="url_scheme",
    ),
    Option(
        "underscore_headers",
        values.choice("drop", "keep", "refuse"),
        "drop",
        "Request fields with an underscore in the name, which CGI variables cannot tell from a dash: drop them, keep "
        "them, or refuse the request with 400.",
        RESPONSES,
        core="underscore_headers",
    ),
    Option(
        "server_header",
        values.text("TEXT", check=_field_value),
        "penstock",
        "Server field of responses whose application sends none. Empty: no such field.",
        RESPONSES,
        core="server_header",
    ),
    Option(
        "server_timing",
        values.boolean(),
        False,
        "Tell in a Server-Timing field how long a request was queued and how long the application took to its first"
        " block; browsers show it.",
        RESPONSES,
        core="server_timing",
    ),
    Option(
        "access_log",
        values.path("PATH"),
        None,
        "Write a line for each response to this file, or `-` for standard output. Unset: no access log. SIGUSR1 "
        "reopens it.",
        LOGS,
        core="access_log",
        example="/var/log/penstock/access.log",
    ),
    Option(
        "access_log_format",
        values.text("combined|common|json|FORMAT"),
        "combined",
        "Format of the access log: a name, or text with atoms in braces, such as '{client} {method} {target} "
        "{status} {duration_ms}'.",
        LOGS,
        core="access_log_format",
        example="{client} {method} {target} {status} {duration_ms}",
    ),
    Option(
        "log_level",
        values.choice("debug", "info", "warning", "error"),
        "info",
        "Least level of the server's own log, on standard error.",
        LOGS,
    ),
)

BY_NAME: Final[dict[str, Option]] = {option.name: option for option in OPTIONS}


def worker_count(chosen: Mapping[str, Any]) -> int:
    """The number that `workers` stands for."""
    return len(os.sched_getaffinity(0)) if chosen["workers"] == "auto" else int(chosen["workers"])


# Settings of the core that follow from several options or from the way the server is started.
DERIVED: Final[dict[str, Callable[[Mapping[str, Any]], object]]] = {
    "hub": lambda chosen: chosen["gevent"],
    "threads": lambda chosen: chosen["max_greenlets"] if chosen["gevent"] else chosen["threads"],
    "single_thread": lambda chosen: chosen["debug"],
    "multithread": lambda chosen: chosen["gevent"] or (chosen["threads"] > 1 and not chosen["debug"]),
    "multiprocess": lambda chosen: worker_count(chosen) > 1 and not chosen["debug"],
}


def core_settings(chosen: Mapping[str, Any]) -> dict[str, object]:
    """The settings of the Rust core for these option values."""
    settings = {option.core: chosen[option.name] for option in OPTIONS if option.core is not None}
    return settings | {name: derive(chosen) for name, derive in DERIVED.items()}
