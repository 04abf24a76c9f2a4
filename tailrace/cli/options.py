"""Every option of Tailrace, declared once.

Command line flags, `TAILRACE_*` variables, the keys of `tailrace.toml`, the keyword arguments of `tailrace.run`,
`tailrace.serve_in_thread` and `tailrace.gevent.serve`, the values of a server, the settings of the Rust core and the
page docs/options.md all derive from the fields of `OptionValues`. To add an option, add a field here, and use it as
`settings.NAME`. See `option` for what a field contains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final, Literal
from urllib.parse import urlsplit

from tailrace._tailrace import (
    MAX_OPEN_FILES,
    check_access_log_format,
    check_origin,
    check_request_id,
    check_trusted_proxy,
    log_destination_kind,
)
from tailrace.cli import static_values, values
from tailrace.cli.option import (
    ADDRESSES,
    APPLICATION,
    CONCURRENCY,
    FUNCTIONS,
    LIMITS,
    LOGS,
    PROCESSES,
    RESPONSES,
    STATIC,
    TIMES,
    TLS,
    Option,
    Place,
    PlatformVariable,
    option,
)
from tailrace.system import bus_address


def _is_url(raw: str) -> bool:
    """Whether it is an http or https URL."""
    try:
        url = urlsplit(raw)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets that do not match, or what is no port
        return False


def _is_plain(raw: str) -> bool:
    """Whether it is ASCII without spaces and control characters."""
    return raw.isascii() and all(each > " " for each in raw)


def _warmup(raw: str) -> str:
    if not _is_plain(raw) or not (_is_url(raw) or (raw[:1] == "/" and raw[1:2] != "/")):
        raise ValueError("must be a path that begins with / or an http or https URL, without spaces, in ASCII")
    return raw


def _collector(raw: str) -> str:
    if not _is_url(raw) or not _is_plain(raw) or "?" in raw or "#" in raw:
        raise ValueError("must be the http or https URL of a collector, such as http://127.0.0.1:4318")
    return raw.rstrip("/").removesuffix("/v1/traces")


def _root_path(raw: str) -> str:
    stripped = raw.rstrip("/")
    if stripped and not stripped.startswith("/"):
        raise ValueError(f"must begin with a slash: /{stripped}")
    if not stripped.isascii():
        raise ValueError("must be ASCII: write other characters percent-encoded")
    return stripped


def _events_path(raw: str) -> str:
    if not raw.startswith("/") or not _is_plain(raw) or "?" in raw or "#" in raw:
        raise ValueError("must be a path that begins with /, without a query")
    if raw.endswith("*"):
        prefix = f"{raw.rstrip('*').rstrip('/')}/"
        raise ValueError(f"a path that ends with / is a prefix, so write {prefix} instead of {raw}")
    return raw


# By the kinds of session IDs: what has the name, and its characters, which are those of parameters that need no escape,
# and of cookies and fields (RFC 9110 section 5.6.2).
_STICKY_NAMES: Final = {
    "query": ("a query parameter", r"[A-Za-z0-9._~-]"),
    "cookie": ("a cookie", r"[A-Za-z0-9!#$%&'*+.^_`|~-]"),
    "header": ("a header", r"[A-Za-z0-9!#$%&'*+.^_`|~-]"),
}
_MAX_STICKY_NAME: Final = 64  # characters


def _sticky(raw: str) -> str:
    kind, colon, name = raw.partition(":")
    if colon and kind not in _STICKY_NAMES and kind.lower() in _STICKY_NAMES:
        raise ValueError(f"write {kind.lower()}: instead of {kind}:")
    if kind not in _STICKY_NAMES or not name:
        raise ValueError("must be query:, cookie: or header:, followed by a name, such as cookie:SESSION")
    what, allowed = _STICKY_NAMES[kind]
    if wrong := re.sub(allowed, "", name):
        raise ValueError(f"the name of {what} must not contain {wrong[0]!r}")
    if len(name) > _MAX_STICKY_NAME:
        raise ValueError(f"the name must have at most {_MAX_STICKY_NAME} characters, not {len(name)}")
    return raw


def _bus(raw: str) -> str:
    bus_address.parse(raw)
    return raw


def _field_value(raw: str) -> str:
    if not raw.isascii():
        raise ValueError("must be ASCII")
    return raw.strip()


def _log(raw: str) -> str:
    if log_destination_kind(raw) == "logging":
        raise ValueError("only --access-log accepts `logging`; use --log-config to configure Python's logging")
    return "stderr" if raw == "-" else raw


def _access_log(raw: str) -> str:
    log_destination_kind(raw)
    return raw


def _request_id(raw: str) -> str:
    if raw.lower() in ("", "none"):
        return ""
    check_request_id(raw)
    return raw


def _media_type(raw: str) -> str:
    """A media type, or all of a kind, in lower case (RFC 9110 section 8.3.1)."""
    name = raw.lower()
    if not re.fullmatch(r"[\w!#$&^.+-]+/([\w!#$&^.+-]+|\*)", name, re.ASCII):
        raise ValueError(f"must be media types such as application/json or text/*, and {raw!r} is not")
    return name


def _embedded(reason: str) -> dict[Place, str]:
    """Absent from all functions for one reason."""
    return dict.fromkeys(FUNCTIONS, reason)


def _beside(reason: str) -> dict[Place, str]:
    """Absent where the caller's own code goes on in the process."""
    return dict.fromkeys((Place.THREAD, Place.HUB), reason)


_ONE_REQUEST: Final = "requests run one at a time, on the main thread"
_NO_WORKERS: Final = _beside(
    "it serves in the current process only; for worker processes, use tailrace.run or the `tailrace` command"
)
_OF_A_MASTER: Final = {**_NO_WORKERS, Place.DEBUG_ALONE: "there is no master process"}
_WHOLE_PROCESS: Final = _beside("it affects the whole process, which the caller sets up")
_TOO_LATE: Final = (
    "the program is already running, so it is too late to patch the standard library; call tailrace.gevent.serve, or "
    "start the application with `tailrace --gevent`"
)
_NO_RELOAD: Final = _embedded(
    "it cannot replace modules that the program has imported; use `tailrace MODULE:CALLABLE --reload`"
)
_LIMIT_OF_GREENLETS: Final = {
    Place.RUN: _TOO_LATE,
    Place.THREAD: _TOO_LATE,
    Place.DEBUG: _ONE_REQUEST,
    Place.WITHOUT_GEVENT: "there are no greenlets",
}
_LOG_OF_THE_PROGRAM: Final = _beside(
    "the caller sets up logging; call logging.getLogger('tailrace').setLevel('WARNING')"
)
_HANDLER_OF_THE_PROGRAM: Final = _beside(
    "the caller sets up logging; add a handler such as tailrace.LogHandler('syslog') to logging.getLogger('tailrace')"
)


# `ServerSettings` inherits the fields and has the methods of a dataclass. Making them here as well takes a millisecond.
@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OptionValues:
    """The value of each option. Sizes are in bytes, times in seconds. For None, see the help of the option."""

    app: str | None = option(
        values.text("MODULE:CALLABLE"),
        None,
        "The WSGI application: a module and a callable, a factory call, or a file.",
        APPLICATION,
        details=(
            "The forms are `module:name`, `package.module:object.attribute`, `module:create_app('production')`, a "
            "module that defines `application` or `app`, or the path of a `.py` or `.wsgi` file."
        ),
        positional=True,
        example="mysite.wsgi:application",
        absent=_embedded("pass the application itself as the first argument"),
    )
    factory: bool = option(
        values.boolean(),
        False,
        "Call CALLABLE without arguments to get the application.",
        APPLICATION,
        absent=_embedded("call the factory, and pass the application that it returns"),
    )
    chdir: str | None = option(
        values.path("DIRECTORY"),
        None,
        "Change to this directory before loading the application; Python searches it for modules first.",
        APPLICATION,
        example="/srv/mysite",
        absent=_embedded("the application is already imported; call os.chdir before you import it"),
    )
    env_file: str | None = option(
        values.path(),
        None,
        "Set environment variables from the NAME=value lines of this file.",
        APPLICATION,
        details=(
            "`TAILRACE_*` variables in the file set options. Variables that are already set keep their value. A reload "
            "reads the file again."
        ),
        example="/etc/mysite.env",
        absent=_embedded(
            "the application is already imported and has read its environment; set os.environ before you import it"
        ),
    )
    reload: bool = option(
        values.boolean(),
        False,
        "Reload the application when its code changes, for development.",
        APPLICATION,
        details=(
            "Tailrace runs one worker, and replaces it when a `.py` or `.so` file of the application changes, or a "
            "file that matches `--reload-include`. If the code does not load, the browser shows the traceback until "
            "the next change. Needs `pip install 'tailrace[reload]'`."
        ),
        absent=_NO_RELOAD,
    )
    reload_include: tuple[str, ...] = option(
        values.several(values.text("GLOB"), may_be_empty=True),
        (),
        "With --reload, also watch these files: a path, a directory or a glob; !GLOB ignores files. Repeatable.",
        APPLICATION,
        details=(
            "Use it for templates, translations and settings: `templates`, `'conf/*.toml'`, `'shop/**/*.html'`. A "
            "change to such a file reloads the application, like a change to its code. Paths are relative to the "
            "working directory. `*` and `?` match characters of a name, `[ab]` matches one of these characters, and "
            "`**` matches any number of directories; `{a,b}` has no special meaning. A directory includes all files in "
            "it. Wildcards and directories do not match `__pycache__`, `node_modules`, `site-packages` or names that "
            "begin with a dot; spell out such names. Do not include files that the application writes. A value that "
            "begins with `!`, such as `'!tests/**'`, ignores matching files, even code and files that match other "
            "values."
        ),
        example=["templates", "conf/*.toml", "!tests"],
        absent={**_NO_RELOAD, Place.WITHOUT_RELOAD: "files are not watched"},
    )
    debug: bool = option(
        values.boolean(),
        False,
        "Serve on one thread and show tracebacks in the browser, for development.",
        APPLICATION,
        details=(
            "One process handles one request at a time. The application runs on the main thread, so `breakpoint()` "
            "works in the terminal. The browser shows the traceback of an exception that the framework does not catch. "
            "The terminal shows a line for each response, unless `--access-log` is set."
        ),
        core="debug",
        absent={
            Place.THREAD: "it needs the main thread, which the caller uses; call tailrace.run instead",
            Place.HUB: "it serves one request at a time, whereas a hub serves thousands; call tailrace.run instead",
            Place.GEVENT: "--debug serves one request at a time, --gevent thousands",
        },
    )
    bind: tuple[str, ...] = option(
        values.several(values.text("ADDRESS")),
        ("127.0.0.1:8000",),
        "Address to listen on, such as :8000, [::1]:8000 or unix:/run/app.sock. Repeatable.",
        ADDRESSES,
        details=(
            "The forms are `host:port`, `[::1]:8000`, `:8000` (every IPv4 address), `8000` (127.0.0.1), "
            "`localhost:8000` (this machine, IPv4 and IPv6), `unix:/run/app.sock`, `unix:@abstract`, or `fd://3` for a "
            "socket that systemd or another parent opened. Port 0 picks a free port. A URL specifies the protocol: "
            "`http://host:port`, `uwsgi://host:port`, `http+unix:/path`, `uwsgi+unix:/path`, `uwsgi+fd://3`. Options "
            "for a single address follow a question mark: `proxy=v1`, `v2` or `any` (each connection must begin with a "
            "PROXY header), `mode=660` (permissions of a UNIX socket; by default, `--umask` decides), `backlog=4096` "
            "(length of the kernel's accept queue; 2048 by default). If `$PORT` is set, as platforms such as Heroku "
            "and Cloud Run do, the default is `0.0.0.0:$PORT`."
        ),
        short="-b",
        example=["127.0.0.1:8000", "uwsgi+unix:/run/app.sock?mode=660"],
        platform_variable=PlatformVariable("PORT", "0.0.0.0:{}", values.whole(1, 65535)),
    )
    trusted_proxies: tuple[str, ...] = option(
        values.several_or("none", values.text("PEER", check=check_trusted_proxy)),
        ("unix",),
        "Proxies whose forwarding headers are trusted: addresses, networks, unix, * or none. Repeatable.",
        ADDRESSES,
        details=(
            "`unix` stands for every peer on a UNIX socket, `*` for every peer, `10.0.0.0/8` for a network. A trusted "
            "proxy supplies the client's address, scheme, host, port and prefix in the headers of "
            "`--forwarded-headers`, in a PROXY header or in uwsgi packets. The client is the last address that is not "
            "listed itself. From any other peer, these headers are removed, and PROXY headers and uwsgi packets are "
            "rejected. If only this machine can reach the server, because each `--bind` is a UNIX socket or a loopback "
            "address, the default is `unix`, `127.0.0.0/8` and `::1`. If `$FORWARDED_ALLOW_IPS` is set, the default is "
            "`unix` plus the peers that the variable lists."
        ),
        core="trusted_proxies",
        example=["unix", "10.0.0.0/8"],
        platform_variable=PlatformVariable("FORWARDED_ALLOW_IPS", "unix,{}"),
    )
    forwarded_headers: tuple[str, ...] = option(
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
                metavar="HEADER",
            ),
        ),
        ("forwarded", "x-forwarded-for", "x-forwarded-proto"),
        "Headers that the trusted proxies set in every request. Repeatable.",
        ADDRESSES,
        details=(
            "The values are `forwarded`, `x-forwarded-for`, `x-forwarded-proto`, `x-forwarded-host`, "
            "`x-forwarded-port`, `x-forwarded-prefix`, `x-forwarded` (all with that prefix), `any` or `none`. List a "
            "header only if the proxies replace whatever their clients send in it. All other forwarding headers are "
            "removed. A request whose `Forwarded` and `X-Forwarded` headers disagree gets 400."
        ),
        core="forwarded_headers",
        example=["x-forwarded"],
    )
    publish_bind: tuple[str, ...] = option(
        values.several(values.text("ADDRESS"), may_be_empty=True),
        (),
        "Accept events for held connections at this address (POST /publish/). Repeatable.",
        ADDRESSES,
        details=(
            "The address is `host:port` or `unix:/path`. Keep it private: anyone who can connect to it can publish. An "
            "application that Tailrace runs can call `tailrace.publish` without this option. See [Server-sent "
            "events](guides/server-sent-events.md)."
        ),
        example=["127.0.0.1:5561"],
    )
    publish_bus: str | None = option(
        values.text("URL", check=_bus),
        None,
        "Share published events with other servers through Redis, Valkey or PostgreSQL at this URL.",
        ADDRESSES,
        details=(
            "The URL begins with `redis://`, `rediss://` (TLS) or `postgresql://`. An event published on one server "
            "reaches the clients of all servers with the same URL. To separate sites that use the same service, append "
            "`?channel=NAME`. Anyone who can write to the service can publish, so protect it. If the URL contains a "
            "password, set it as `TAILRACE_PUBLISH_BUS`, because other users can see command lines. `tailrace config` "
            "prints the URL with its password. Requires `pip install 'tailrace[redis]'` or `pip install "
            "'tailrace[postgresql]'`. See [Share events between "
            "servers](guides/several-servers.md)."
        ),
        example="redis://127.0.0.1:6379",
        absent=_OF_A_MASTER,
    )
    umask: int | None = option(
        values.octal(),
        None,
        "File mode creation mask. Default: inherited from the parent process.",
        ADDRESSES,
        details="Also applies to UNIX sockets and log files.",
        example="0o027",
        absent=_WHOLE_PROCESS,
    )
    certfile: tuple[str, ...] = option(
        values.several(values.path("FILE"), may_be_empty=True),
        (),
        "Certificate chain in PEM for https:// addresses; the requested host name selects it. Repeatable.",
        TLS,
        details=(
            "The server's certificate comes first, then the intermediate ones, as in certbot's `fullchain.pem`. A "
            "client gets the first certificate that matches the requested host name, or the first one if none matches. "
            "The files are read again on SIGHUP and within 5 s of a change; open connections are not affected. See "
            "[TLS](guides/tls.md)."
        ),
        example=["/etc/letsencrypt/live/shop.example/fullchain.pem"],
    )
    keyfile: tuple[str, ...] = option(
        values.several(values.path("FILE"), may_be_empty=True),
        (),
        "Private key in PEM for each --certfile, in the same order. Default: read from the --certfile.",
        TLS,
        details="RSA or ECDSA, as PKCS#8, PKCS#1 or SEC 1. For encrypted keys, see `--keyfile-password-file`.",
        example=["/etc/letsencrypt/live/shop.example/privkey.pem"],
    )
    keyfile_password_file: str | None = option(
        values.path("FILE"),
        None,
        "File with the password for encrypted keys.",
        TLS,
        details="Whitespace at the end of the file is ignored.",
        example="/run/secrets/key-password",
    )
    tls_min: str = option(
        values.choice("1.2", "1.3"),
        "1.2",
        "Minimum TLS version.",
        TLS,
        details="With either version, all cipher suites have forward secrecy and authenticated encryption.",
        example="1.3",
    )
    client_ca: str | None = option(
        values.path("FILE"),
        None,
        "Ask clients for a certificate signed by one of the authorities in this PEM file.",
        TLS,
        details=(
            "`environ` then contains `SSL_CLIENT_VERIFY` (`SUCCESS` or `NONE`), `SSL_CLIENT_S_DN`, `SSL_CLIENT_I_DN`, "
            "`SSL_CLIENT_M_SERIAL` and `SSL_CLIENT_CERT`."
        ),
        example="/etc/tailrace/clients.pem",
    )
    client_cert: str = option(
        values.choice("required", "optional"),
        "required",
        "With --client-ca, whether clients must present a certificate.",
        TLS,
        details="A certificate that is not signed by one of the authorities is always rejected.",
        example="optional",
    )
    self_signed: bool = option(
        values.boolean(),
        False,
        "Use a self-signed certificate for https:// addresses, for development. Browsers warn about it.",
        TLS,
        details=(
            "Tailrace creates the certificate once, for `localhost` and the name of this machine, and keeps it in "
            "`~/.cache/tailrace`."
        ),
    )
    redirect_http: tuple[str, ...] = option(
        values.several(values.text("ADDRESS"), may_be_empty=True),
        (),
        "Redirect requests at this address to the first https:// address. Repeatable.",
        TLS,
        details=(
            "The response is 308, which preserves the method and the body. Requests for "
            "`/.well-known/acme-challenge/TOKEN` are not redirected, so that a certificate authority can check the "
            "host over HTTP: see [TLS](guides/tls.md#certbot)."
        ),
        example=["0.0.0.0:80"],
    )
    workers: int | Literal["auto"] = option(
        values.or_auto(values.whole(1, 1024)),
        1,
        "Number of worker processes. auto: one per available CPU.",
        PROCESSES,
        details=(
            "A master process holds the sockets, watches the workers and replaces them. `auto` counts the CPUs that "
            "the process may run on, up to the CPU quota of its container, rounded up; SIGHUP repeats the count. If "
            "`$WEB_CONCURRENCY` is set, it is the default. See [Containers](guides/containers.md)."
        ),
        short="-w",
        example="auto",
        platform_variable=PlatformVariable("WEB_CONCURRENCY"),
        absent={**_NO_WORKERS, Place.RELOAD: "only one worker runs", Place.DEBUG: "only one process handles requests"},
    )
    sticky: str | None = option(
        values.text("query:NAME, cookie:NAME or header:NAME", check=_sticky),
        None,
        "Send all requests of a session to the worker that opened it. The session ID is in a cookie, a header, or "
        "(Socket.IO) the query parameter sid.",
        PROCESSES,
        details=(
            "For sessions in the memory of one worker. A session opens with a response that sets this cookie to a new "
            "value, or has this header; with `query:NAME`, with one that has status 200 and begins like an Engine.IO "
            'handshake (`0{"sid":"..."`). If another worker receives a later request with that value, it passes the '
            "connection to the worker that opened the session. Connections that Tailrace encrypts cannot be passed, so "
            "terminate TLS in a proxy in front. When a worker is replaced, its sessions end. See [Sessions in "
            "memory](guides/sessions-in-memory.md) and [Socket.IO](guides/socketio.md)."
        ),
        core="sticky",
        example="query:sid",
        absent={**_NO_WORKERS, Place.RELOAD: "only one worker runs", Place.DEBUG: "only one process handles requests"},
    )
    preload: bool = option(
        values.boolean(),
        False,
        "Load the application once, before the workers are forked, so that they share its memory.",
        PROCESSES,
        details=(
            "A separate process loads the application and forks the workers, which are ready immediately. They also "
            "share files and connections that the application opens while it loads. Threads that it starts while it "
            "loads do not run in the workers. See [Preloading](processes.md#preloading-and-memory)."
        ),
        absent={
            **_embedded("the application is already loaded, and worker processes share its memory anyway"),
            Place.DEBUG_ALONE: _OF_A_MASTER[Place.DEBUG_ALONE],
            Place.RELOAD: "each worker must load the application itself to get the new code",
            Place.GEVENT: "the process that forks the workers must stay unpatched; each worker patches the standard "
            "library before it loads the application",
        },
    )
    gc: Literal["python", "freeze", "idle"] = option(
        values.choice("python", "freeze", "idle"),
        "freeze",
        "When Python's garbage collector runs full collections, and which objects it exempts.",
        PROCESSES,
        details=(
            "`freeze`: after the warm-up, each worker exempts the objects that the application has loaded, so that "
            "full collections take less time. `idle`: in addition, full collections are postponed until no request "
            "is running, within a limit. `python`: neither. See [Garbage collection](processes.md#garbage-collection)."
        ),
        example="idle",
        absent={
            **_embedded("the caller configures the garbage collector"),
            Place.DEBUG: "requests run one at a time, on the main thread",
        },
    )
    warmup: tuple[str, ...] = option(
        values.several(values.text("PATH", check=_warmup), may_be_empty=True),
        (),
        "Request this path in each new worker before it accepts requests. Repeatable.",
        PROCESSES,
        details=(
            "The first request of a worker may be slow: it imports modules, compiles templates and fills caches. If "
            "the response has a status of 500 or more, or the application raises an exception, the start or reload "
            "fails, as if the application could not be loaded. The host is `localhost`; give a URL for another one. "
            "See [Warm-up](processes.md#warm-up)."
        ),
        example=["/", "https://shop.example/cart"],
        absent=_beside("the caller can call the application before it starts the server"),
    )
    hooks: str | None = option(
        values.text("MODULE"),
        None,
        "Module or file with functions to call at startup, around requests and at exit.",
        PROCESSES,
        details=(
            "The functions are `on_start()`, `post_fork(worker)`, `worker_start(worker)`, `pre_request(environ)`, "
            "`post_request(record)`, `worker_stop(worker)`, `worker_exit(worker)` and `on_exit()`; each is "
            "optional. See [Hooks](reference/hooks.md)."
        ),
        example="mysite.hooks",
        absent=_NO_WORKERS,
    )
    user: str | None = option(
        values.text("USER"),
        None,
        "Run as this user (name or number) once the sockets are bound.",
        PROCESSES,
        details="Applies to the master and the workers.",
        example="www-data",
        absent=_WHOLE_PROCESS,
    )
    group: str | None = option(
        values.text("GROUP"),
        None,
        "Run as this group (name or number). Default: the user's group.",
        PROCESSES,
        example="www-data",
        absent=_WHOLE_PROCESS,
    )
    pidfile: str | None = option(
        values.path(),
        None,
        "Write the process ID of the master to this file.",
        PROCESSES,
        details=(
            "Without a master, the file contains the ID of the only process. If another server uses the same file, the "
            "server does not start."
        ),
        example="/run/mysite/tailrace.pid",
        absent=_WHOLE_PROCESS,
    )
    max_requests: int = option(
        values.whole(0),
        0,
        "Replace a worker after this many requests, plus a random 0 to 10 %. 0: never.",
        PROCESSES,
        details="The worker drains once its successor is ready.",
        example=100_000,
        absent=_OF_A_MASTER,
    )
    max_lifetime: float = option(
        values.seconds(zero=True),
        0.0,
        "Replace a worker after this time, shortened at random by up to 10 %. 0: never.",
        PROCESSES,
        example="12h",
        absent=_OF_A_MASTER,
    )
    max_rss: int | Literal["auto"] = option(
        values.or_auto(values.size()),
        0,
        "Replace a worker whose resident memory exceeds this size. 0: never. auto: before a container is full.",
        PROCESSES,
        details=(
            "Shared pages are included. `auto` replaces the worker that has grown the most when the container's memory "
            "in use approaches its limit; see the formula in [Containers](guides/containers.md)."
        ),
        example="1GiB",
        absent=_OF_A_MASTER,
    )
    hang_timeout: float = option(
        values.seconds(zero=True),
        30.0,
        "Kill and replace a worker that hangs for this long (minimum: 3 s). 0: never.",
        PROCESSES,
        details=(
            "A worker hangs if its process is stopped, or if C code does not release the GIL. The log shows its "
            "requests and the stacks of its threads."
        ),
    )
    status: str | None = option(
        values.text("ADDRESS"),
        None,
        "Serve a live page, health checks, metrics and stacks at this address.",
        PROCESSES,
        details=(
            "The address is `host:port`, `https://host:port` (with `--certfile`) or `unix:/path`. A separate process "
            "answers `/`, `/health`, `/ready`, `/status.json`, `/stacks`, `/metrics` and `/events`. Keep the address "
            "private: it shows requests. If it cannot be opened, the server starts without it. Python stacks need `pip "
            "install 'tailrace[status]'`. See "
            "[Status](status.md)."
        ),
        example="127.0.0.1:9000",
        absent=_OF_A_MASTER,
    )
    haproxy_agent: str | None = option(
        values.text("ADDRESS"),
        None,
        "Answer HAProxy's agent-check at this address with the server's free capacity.",
        PROCESSES,
        details=(
            "The address is `host:port` or `unix:/path`. Each connection gets one line: the capacity, such as `up "
            "75%`, `drain` during a stop, or `down` while no worker is ready. The status process answers; it also runs "
            "without `--status`. If the address cannot be opened, the server starts without it."
        ),
        example="127.0.0.1:9001",
        absent=_OF_A_MASTER,
    )
    statsd: str | None = option(
        values.text("ADDRESS"),
        None,
        "Send metrics to this host:port over UDP every 10 seconds, with DogStatsD tags.",
        PROCESSES,
        details="The metrics are those of `/metrics`.",
        example="127.0.0.1:8125",
        absent=_OF_A_MASTER,
    )
    otlp_endpoint: str | None = option(
        values.text("URL", check=_collector),
        None,
        "Export a trace of each request to this OpenTelemetry collector (OTLP over HTTP).",
        PROCESSES,
        details=(
            "The status process sends spans for the queue, the application and the delivery to `/v1/traces` under this "
            "URL. The application gets a `traceparent`, so that its own spans belong to the same trace. Headers, "
            "certificates, the service name and the sampler come from the standard environment variables, such as "
            "`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` and `OTEL_TRACES_SAMPLER`. Needs "
            "`pip install 'tailrace[otlp]'`. See [OpenTelemetry](guides/opentelemetry.md)."
        ),
        example="http://127.0.0.1:4318",
        absent=_OF_A_MASTER,
    )
    threads: int = option(
        values.whole(1, 4096),
        128,
        "Maximum number of application threads. 1: for code that is not thread-safe.",
        CONCURRENCY,
        details=(
            "Threads start on demand and exit when idle. Further requests wait, up to `--max-queue`. Each thread may "
            "keep a database connection open. Keep `--workers` times `--threads` below the connection limit of the "
            "database (100 by default in PostgreSQL), or use a pool."
        ),
        absent={
            Place.DEBUG: _ONE_REQUEST,
            Place.HUB: "requests run in greenlets, which max_greenlets limits",
            Place.GEVENT: "requests run in greenlets, which --max-greenlets limits",
        },
    )
    gevent: bool = option(
        values.boolean(),
        False,
        "Run each request in a greenlet on gevent's hub.",
        CONCURRENCY,
        details=(
            "Ten thousand requests can wait at the same time, for example for a database or another server. Each "
            "worker patches the standard library before it loads the application. SIGURG logs the stacks of all "
            "greenlets. Needs `pip install 'tailrace[gevent]'`."
        ),
        absent={
            Place.RUN: _TOO_LATE,
            Place.THREAD: _TOO_LATE,
            Place.HUB: "it always serves with greenlets",
            Place.DEBUG: _ONE_REQUEST,
        },
    )
    max_greenlets: int = option(
        values.whole(1, 50_000),
        10_000,
        "With --gevent, maximum number of concurrent requests per worker.",
        CONCURRENCY,
        details="Further requests wait, up to `--max-queue`.",
        example=2_000,
        absent=_LIMIT_OF_GREENLETS,
    )
    request_line_limit: int = option(
        values.size(64),
        8190,
        "Maximum length of a request line. Longer request lines get 414.",
        LIMITS,
        core="request_line_limit",
    )
    header_bytes_limit: int = option(
        values.size(256),
        65536,
        "Maximum total size of a request's header fields. Larger requests get 431.",
        LIMITS,
        details="A request with more than 128 header fields also gets 431.",
        core="header_bytes_limit",
    )
    max_body: int = option(
        values.size(),
        1 << 30,
        "Maximum size of a request body. Larger requests get 413.",
        LIMITS,
        core="max_body",
        example="100MiB",
    )
    client_memory: int | None = option(
        values.size(1 << 20),
        None,
        "Maximum memory that a worker holds for its clients. Default: 512 MiB.",
        LIMITS,
        details=(
            "Above this limit, the oldest incomplete requests get 503. Half of the memory is for responses to slow "
            "clients; a single response may use a sixteenth of the total, up to 4 MiB. A quarter is for request "
            "bodies; a single body may use an eighth of the total, up to 64 MiB. The excess moves to unnamed files in "
            "`TMPDIR`. In a container with a memory limit, the default is a quarter of the limit divided by the number "
            "of workers, from 16 MiB to 512 MiB. See [Containers](guides/containers.md)."
        ),
        example="1GiB",
    )
    stream_body: bool = option(
        values.boolean(),
        False,
        "Call the application before the request body has arrived.",
        LIMITS,
        details=(
            "Tailrace calls the application as soon as the request headers are complete. Reads of `wsgi.input` wait "
            "for the client and occupy the thread. A chunked body has no `CONTENT_LENGTH`, which some frameworks need. "
            "Without this option, Tailrace calls the application when the whole body has arrived."
        ),
        core="stream_body",
    )
    response_spill: int = option(
        values.size(),
        4 << 30,
        "Maximum size of all responses in temporary files. 0: no files.",
        LIMITS,
        details=(
            "While responses to slow clients fit into these files, no thread waits for a client. The files are "
            "unnamed. They are in `TMPDIR`, which should be on disk rather than in memory. A response that the "
            "application has not finished may use up to 1/64 of this size. Above the limit, application threads wait "
            "for their clients, and requests for which no thread is free get 503."
        ),
        core="response_spill",
        example="20GiB",
    )
    max_queue: int = option(
        values.whole(1, 1_000_000),
        2048,
        "Maximum number of requests waiting for a thread, per worker. Further requests get 503.",
        LIMITS,
        details="With `--gevent`, requests wait for a greenlet. The 503 response contains a `Retry-After` header.",
        core="max_queue",
    )
    max_connections_per_client: int = option(
        values.whole(0, 60_000),
        0,
        "Maximum number of connections per client, across all workers. 0: no limit.",
        LIMITS,
        details=(
            "Further connections are closed, after a 429 response where possible. A client is an IPv4 address or an "
            "IPv6 /64. Connections from `--trusted-proxies` and through UNIX sockets are not limited, unless a PROXY "
            "header supplies the client's address. See [Limits per client](http.md#limits-per-client)."
        ),
        core="client_connections",
        example=100,
    )
    max_requests_per_client: tuple[int, int] | None = option(
        values.rate(),
        None,
        "Maximum request rate per client, such as 10/s, 600/min or 5000/h. Excess requests get 429.",
        LIMITS,
        details=(
            "With 600/min, a client may send 600 requests in one burst, and then 600 a minute, counted over all "
            "workers. Behind a trusted proxy, the client is the one whose address the proxy supplies. Requests for "
            "static files count. See [Limits per client](http.md#limits-per-client)."
        ),
        core="client_rate",
        example="600/min",
    )
    request_timeout: float = option(
        values.seconds(zero=True),
        0.0,
        "Maximum time for the application to process a request; then 504. 0: no limit.",
        TIMES,
        details=(
            "After that time, the client gets 504, `tailrace.RequestTimeout` is raised in the thread or greenlet, and "
            "its stack is logged. If the request still does not end, its worker is replaced. With `--stream-body`, "
            "time spent waiting for the client counts."
        ),
        core="request_timeout",
        example=30,
    )
    cancel_on_disconnect: Literal["off", "safe", "all"] = option(
        values.choice("off", "safe", "all"),
        "off",
        "Which requests to cancel when their client disconnects.",
        LIMITS,
        details=(
            "`tailrace.ClientDisconnected` is raised in the thread or greenlet of the request. `safe`: requests with "
            "GET, HEAD, OPTIONS or TRACE. `all`: every request, even in the middle of a change. See "
            "[Disconnected clients](guides/server-sent-events.md#cancel-work-for-disconnected-clients)."
        ),
        core="cancel_on_disconnect",
        example="safe",
        absent={Place.DEBUG: "requests run on the thread that would see the client disconnect"},
    )
    queue_timeout: float = option(
        values.seconds(zero=True),
        0.0,
        "Maximum time that a request waits for a thread; then 503. 0: no limit.",
        TIMES,
        details="With `--gevent`, requests wait for a greenlet. The 503 response contains a `Retry-After` header.",
        core="queue_timeout",
        example=10,
    )
    header_timeout: float = option(
        values.seconds(zero=False),
        15.0,
        "Maximum time from the first to the last byte of the request line and headers; then 408.",
        TIMES,
        core="header_timeout",
    )
    body_timeout: float = option(
        values.seconds(zero=False),
        30.0,
        "Maximum pause between two parts of a request body; then 408.",
        TIMES,
        details=(
            "Once this time has passed, the body must also have arrived at an average of at least 240 bytes per second."
        ),
        core="body_timeout",
    )
    keepalive_timeout: float = option(
        values.seconds(zero=False),
        75.0,
        "Close a connection after it has been idle for this long.",
        TIMES,
        details="Set it higher than the idle timeout of a proxy in front.",
        core="keepalive_timeout",
    )
    write_timeout: float = option(
        values.seconds(zero=False),
        60.0,
        "Disconnect a client that accepts no response data for this long.",
        TIMES,
        details=(
            "Once response data has been waiting for this time, the client must also accept an average of at least 240 "
            "bytes per second."
        ),
        core="write_timeout",
    )
    graceful_timeout: float = option(
        values.seconds(zero=True),
        20.0,
        "Time for requests in flight to finish after SIGTERM or SIGINT.",
        TIMES,
        details=(
            "A second signal stops the server immediately. Workers that are still running 5 s after "
            "this time are killed; with the default, that is within the 30 s of a Kubernetes pod. With `--reload`, the "
            "default is 1 s, and the option also applies when files have changed."
        ),
    )
    shutdown_delay: float = option(
        values.seconds(zero=True),
        0.0,
        "Continue to accept requests for this long after SIGTERM, while /ready returns 503.",
        TIMES,
        details=(
            "Gives load balancers time to notice that the server is stopping. During the delay, the HAProxy agent "
            "reports `drain`. Afterwards, the server closes its sockets, and `--graceful-timeout` begins. Another "
            "signal ends the delay. SIGINT and SIGQUIT stop the server without a delay. See "
            "[Kubernetes](guides/containers.md#kubernetes)."
        ),
        example=5,
        absent=_OF_A_MASTER,
    )
    reload_trial: float = option(
        values.seconds(zero=True),
        0.0,
        "After SIGHUP, try the new code in one worker for this long, alongside the old workers.",
        TIMES,
        details=(
            "If that worker does worse than the old workers in the same time, it exits and they stay, as if the new "
            "code had not loaded. It does worse if its 5xx rate is clearly more than twice theirs plus one percentage "
            "point, if its 95th percentile of the application's time is more than 1.5 times theirs plus 50 ms, or if "
            "it crashes or hangs. See [Trial](processes.md#trial). 0: no trial."
        ),
        example=10,
        absent=_OF_A_MASTER,
    )
    root_path: str = option(
        values.text("PATH", check=_root_path),
        "",
        "URL path under which the application is mounted (SCRIPT_NAME).",
        RESPONSES,
        details="This path is removed from the start of `PATH_INFO`.",
        core="root_path",
        example="/app",
    )
    url_scheme: str = option(
        values.choice("http", "https"),
        "http",
        "Value of wsgi.url_scheme. Set https if a proxy in front terminates TLS.",
        RESPONSES,
        core="url_scheme",
    )
    underscore_headers: str = option(
        values.choice("drop", "keep", "refuse"),
        "drop",
        "What to do with request headers whose names contain an underscore.",
        RESPONSES,
        details=(
            "CGI variables cannot distinguish an underscore from a dash. `drop` removes the headers, `keep` passes "
            "them on, and `refuse` rejects the request with 400."
        ),
        core="underscore_headers",
    )
    server_header: str = option(
        values.text("TEXT", check=_field_value),
        "tailrace",
        "Server header, unless the application sets its own. Empty: no header.",
        RESPONSES,
        core="server_header",
    )
    server_timing: bool = option(
        values.boolean(),
        False,
        "Add a Server-Timing header, which browsers' developer tools show.",
        RESPONSES,
        details=(
            "The header shows how long the request was queued, and how long the application took to return its first "
            "block."
        ),
        core="server_timing",
    )
    websocket_origins: tuple[str, ...] = option(
        values.several(values.text("ORIGIN", check=check_origin), splits=True),
        ("same",),
        "Sites whose pages may open a WebSocket: origins, same or any. Repeatable.",
        RESPONSES,
        details=(
            "If a page of another site opens a WebSocket to your site, the browser sends your site's cookies with it, "
            "and the page's origin in the `Origin` header. `same` allows pages whose origin matches the request's "
            "`Host`. All other pages get 403. Requests without `Origin` do not come from browsers and are not checked. "
            "See [WebSockets](guides/websockets.md)."
        ),
        core="websocket_origins",
        example=["same", "https://app.example.com"],
    )
    websocket_events: tuple[str, ...] = option(
        values.several(values.text("PATH", check=_events_path), may_be_empty=True),
        (),
        "Serve WebSockets at this path without a thread each: messages arrive as requests. Repeatable.",
        RESPONSES,
        details=(
            "A path that ends with `/` includes all paths below it. The server handles the handshake, frames, pings "
            "and closes. It sends each message to the application in a short POST request (WebSocket-over-HTTP, as in "
            "Pushpin). See [WebSockets](guides/websockets.md)."
        ),
        core="websocket_events",
        example=["/ws/"],
    )
    early_hints: bool = option(
        values.boolean(),
        False,
        "Let the application send 103 Early Hints with environ['wsgi.early_hints'].",
        RESPONSES,
        details=(
            "Call it with a list of header tuples, as in gunicorn. Turn it on only if the proxy in front forwards "
            "interim responses: over HTTP/1.1, nginx before 1.29 mistakes them for the final response. See "
            "[Early Hints](http.md#early-hints)."
        ),
        core="early_hints",
    )
    compress: bool = option(
        values.boolean(),
        False,
        "Compress responses of the application with zstd, gzip or Brotli, and static files.",
        RESPONSES,
        details=(
            "The coding depends on the client's `Accept-Encoding`. Separate threads do the compression, so application "
            "threads do not wait. Do not compress pages that contain both a secret and text from the request, since "
            "their length can then reveal the secret (BREACH). Text-like static files of 256 bytes to 8 MiB without a "
            "precompressed version are compressed with Brotli or gzip on first use, and kept in memory "
            "(`--static-memory`). See [Compression](guides/compression.md)."
        ),
        core="compress",
    )
    compress_types: tuple[str, ...] = option(
        values.several(values.text("TYPE", check=_media_type), may_be_empty=True),
        (),
        "Media types to compress, such as application/json or text/*. Repeatable.",
        RESPONSES,
        details=(
            "Default: text, JSON, XML, JavaScript and other types that compress well, but not `text/event-stream`. "
            "The types that you list replace the default. The option does not apply to static files."
        ),
        core="compress_types",
        example=["text/*", "application/json"],
    )
    request_id: str = option(
        values.text("HEADER", check=_request_id),
        "",
        "Give each request an ID in this header, such as X-Request-ID. none: off.",
        RESPONSES,
        details=(
            "A trusted proxy (`--trusted-proxies`) may supply the ID: up to 128 visible ASCII characters, without "
            "quotes, commas and backslashes. Any other request gets a new ID, a version 7 UUID, which replaces the "
            "value that the client sent. The ID is in `environ` (`HTTP_X_REQUEST_ID`), in the response unless the "
            "application sets the header, in both logs and on the status page. See [Request "
            "IDs](guides/request-ids.md)."
        ),
        core="request_id",
        example="X-Request-ID",
    )
    static: tuple[tuple[str, str], ...] = option(
        values.pairs(static_values.mount, "PREFIX=FOLDER", "/assets=./dist", static_values.write_mount),
        (),
        "Serve the files of a folder under a URL path, without the application. Repeatable.",
        STATIC,
        details=(
            "With `/assets=./dist`, `./dist/app.js` is served as `/assets/app.js`. Missing files get 404. If several "
            "paths match, the longest one applies; `/` matches every path. A relative folder is relative to the "
            "current directory. If a compressed file is next to the requested one (`app.js.br`, `app.js.zst` or "
            "`app.js.gz`), clients that accept its coding get that file. `tailrace static list` shows what is served."
        ),
        example=["/assets=./dist", "/media=/srv/media"],
    )
    overlay: str | None = option(
        values.path("FOLDER"),
        None,
        "Serve the files of this folder at /; the application answers everything else.",
        STATIC,
        details="For files such as `favicon.ico` and `robots.txt`.",
        example="./public",
    )
    static_fallback: tuple[tuple[str, str], ...] = option(
        values.pairs(static_values.fallback, "STATUS=FILE", "404=404.html", "{}={}".format),
        (),
        "Send this file of a --static folder for missing files, with status 404 or 200. Repeatable.",
        STATIC,
        details=(
            "`404=404.html` sends an error page. `200=index.html` is for single-page applications, and applies to "
            "paths whose last part has no extension. If you set both, all other paths get the error page. The file is "
            "relative to the `--static` folder of the path."
        ),
        example=["200=index.html", "404=404.html"],
    )
    sendfile_root: tuple[tuple[str | None, str], ...] = option(
        values.pairs(
            static_values.mount,
            "FOLDER|PREFIX=FOLDER",
            "/srv/media",
            static_values.write_root,
            nameless=static_values.root,
        ),
        (),
        "Send the file given in a response's X-Sendfile or X-Accel-Redirect header. Repeatable.",
        STATIC,
        details=(
            "The file replaces the body of the response. With `FOLDER`, the header contains the path of a file in that "
            "folder, as in `X-Sendfile: /srv/media/a.pdf`. With `PREFIX=FOLDER`, the header contains a URL path, as in "
            "`X-Accel-Redirect: /protected/a.pdf` for `/protected=/srv/media`. If the name of a folder contains `=`, "
            "write `=FOLDER`. Without this option, these headers are sent to the client."
        ),
        example=["/srv/media", "/protected=/srv/media"],
    )
    static_index: tuple[str, ...] = option(
        values.several(values.text("NAMES", check=static_values.index), may_be_empty=True, splits=True),
        ("index.html",),
        "Index files, separated by commas; the first that exists is served for a folder. Empty: none.",
        STATIC,
        core="static_index",
        example=["index.html", "index.htm"],
    )
    static_cache: tuple[tuple[str, str], ...] = option(
        values.pairs(static_values.cache_rule, "PATTERN=VALUE", "/assets=1y,immutable", static_values.write_cache_rule),
        (),
        "Cache-Control of static files that match a pattern. Repeatable.",
        STATIC,
        details=(
            "`PATTERN` has one of three forms: a path, such as `/assets`, which includes everything under it; a path "
            "or, without a slash, a file name with `*` for any characters, such as `*.html`; or the word "
            "`fingerprinted`, for files whose name contains a hash of their content, such as `app.3f2a9c1b.js`. "
            "`VALUE` is `none`, or a comma-separated list of directives, such as `no-cache`, and times, such as `1y`. "
            "The first matching pattern applies; `fingerprinted` is tried last. Default: "
            "`fingerprinted=public,1y,immutable`."
        ),
        example=["/assets=1y,immutable", "*.html=no-cache"],
    )
    mime: tuple[tuple[str, str], ...] = option(
        values.pairs(static_values.media_type, ".EXT=TYPE", ".data=text/plain", ".{}={}".format),
        (),
        "Content-Type of static files with this extension. Repeatable.",
        STATIC,
        details="The type is sent as written.",
        core="static_types",
        example=[".data=text/plain"],
    )
    static_symlinks: str = option(
        values.choice("beneath", "never", "follow"),
        "beneath",
        "Symbolic links to follow: those that stay inside the folder, none, or all.",
        STATIC,
        core="static_symlinks",
    )
    static_memory: int = option(
        values.size(),
        32 << 20,
        "Maximum memory per worker for static files, including compressed versions.",
        STATIC,
        details="Files of up to 64 KiB are kept in memory. "
        f"Each worker also keeps up to {MAX_OPEN_FILES} larger files open.",
        core="static_memory",
        example="128MiB",
    )
    access_log: str | None = option(
        values.path("DESTINATION", check=_access_log),
        None,
        "Write one line per response to this file or another destination of --log; - is standard output.",
        LOGS,
        details=(
            "By default, there is no access log; with `--debug`, it is on standard output. The destinations are those "
            "of `--log`, plus `logging`, which stands for the logger `tailrace.access` of Python's `logging`. SIGUSR1 "
            "reopens a file. No request waits for the log: lines that cannot be written are dropped and counted."
        ),
        core="access_log",
        example="/var/log/tailrace/access.log",
    )
    access_log_format: str = option(
        values.text("combined|common|json|FORMAT", check=check_access_log_format),
        "combined",
        "Format of the access log: a name, or a string with atoms such as {status}.",
        LOGS,
        details=(
            "The names are `combined`, `common` and `json`. A string contains atoms in braces, such as `'{client} "
            "{method} {target} {status} {duration_ms} {request:x-request-id} {environ:REMOTE_USER}'`. Atoms can name "
            "any request or response header and any key of `environ`. A string may use gunicorn's atoms instead, such "
            "as `'%(h)s \"%(r)s\" %(s)s %({X-Request-Id}i)s'`. After the word `json`, atoms become the members of an "
            "object: `'json {time} {status} {request:x-request-id}'`. A format must not contain a line break."
        ),
        core="access_log_format",
        example="{client} {method} {target} {status} {duration_ms}",
    )
    slow_request_log: float = option(
        values.seconds(zero=True),
        0.0,
        "Log a request that runs longer than this, with its stack. 0: never.",
        LOGS,
        details=(
            "The request is logged while it is still running, with its phase and the stack of its thread or greenlet. "
            "It is logged again when it ends, with a breakdown of its time."
        ),
        core="slow_request_log",
        example="1s",
    )
    query_masking: str = option(
        values.choice("secrets", "all", "none"),
        "secrets",
        "Query string values to show as *** in the server's log and on status pages.",
        LOGS,
        details=(
            "`secrets` masks the values of parameters with names such as token, key, password, code or signature. "
            "The option also applies to the output of commands that read the status pages. It does not affect the "
            "access log, whose format you choose."
        ),
        core="query_masking",
        example="all",
    )
    log: str = option(
        values.path("DESTINATION", check=_log),
        "stderr",
        "Destination of the server's own log: stderr, stdout, a file, syslog, syslog://HOST:514 or journal.",
        LOGS,
        details=(
            "SIGUSR1 reopens a file. `syslog` is the local daemon; `syslog:/dev/log?facility=local0&tag=shop` also "
            "sets the socket, the facility and the tag; `syslog://HOST:514` is a server that receives entries over "
            "UDP. Nothing waits for the destination: entries that it does not accept in time are dropped and counted."
        ),
        example="syslog",
        absent=_HANDLER_OF_THE_PROGRAM,
    )
    log_format: str = option(
        values.choice("text", "json"),
        "text",
        "Format of the server's own log: lines of text, or one JSON object per entry.",
        LOGS,
        example="json",
        absent=_HANDLER_OF_THE_PROGRAM,
    )
    log_level: str = option(
        values.choice("debug", "info", "warning", "error"),
        "info",
        "Minimum level of the server's own log.",
        LOGS,
        absent=_LOG_OF_THE_PROGRAM,
    )
    log_config: str | None = option(
        values.path("FILE"),
        None,
        "Configure Python's logging from this .toml or .json file, instead of --log, --log-format and --log-level.",
        LOGS,
        details=(
            "The file holds a dictionary for `logging.config.dictConfig`, which is applied before the application is "
            "loaded. The loggers are `tailrace`, `tailrace.error` and `tailrace.access`. A reload reads the file again."
        ),
        example="logging.toml",
        absent=_beside("the caller sets up logging; call logging.config.dictConfig"),
    )


OPTIONS: Final = tuple(Option(each.name, **each.metadata) for each in fields(OptionValues))

BY_NAME: Final[dict[str, Option]] = {option.name: option for option in OPTIONS}

# The options that `tailrace --help` shows, in this order; `tailrace serve --help` shows all.
COMMON: Final = (
    *("bind", "workers", "threads", "gevent", "reload", "debug", "access_log", "static", "status", "trusted_proxies"),
    *("graceful_timeout", "log_level"),
)

# Options of the command line that contradict each other, which is an error. Other combinations of the table are
# warnings.
CONFLICTS: Final = (("debug", Place.GEVENT), ("preload", Place.GEVENT), ("preload", Place.RELOAD))
