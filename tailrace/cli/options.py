"""The options table: every option of Tailrace, once.

Command line flags, `TAILRACE_*` variables, the keys of `tailrace.toml`, the keyword arguments of `tailrace.run`,
`tailrace.serve_in_thread` and `tailrace.gevent.serve`, the settings of the Rust core and the page docs/options.md all
derive from `OPTIONS`. To add an option, add a row here and its field to `server_settings`, use it in one file, and test
it. `option` says what a row is.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from tailrace._tailrace import (
    check_access_log_format,
    check_request_id,
    check_trusted_proxy,
    log_destination_kind,
)
from tailrace.cli import static_values, values
from tailrace.cli.option import (
    ADDRESSES,
    APPLICATION,
    FUNCTIONS,
    GREENLETS,
    LIMITS,
    LOGS,
    PROCESSES,
    RESPONSES,
    STATIC,
    THREADS,
    TIMES,
    TLS,
    Foreign,
    Option,
    Place,
)


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


def _field_value(raw: str) -> str:
    if not raw.isascii():
        raise ValueError("must be ASCII")
    return raw.strip()


def _log_format(raw: str) -> str:
    check_access_log_format(raw)
    return raw


def _log(raw: str) -> str:
    if log_destination_kind(raw) == "logging":
        raise ValueError("only --access-log accepts `logging`; use --log-config to configure Python's logging")
    return "stderr" if raw == "-" else raw


def _access_log(raw: str) -> str:
    log_destination_kind(raw)
    return raw


def _trusted_proxy(raw: str) -> str:
    check_trusted_proxy(raw)
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


def _hsts(text: str) -> str:
    if text and not re.fullmatch(r"[0-9]{1,10}(; ?includeSubDomains)?(; ?preload)?", text):
        raise ValueError("must be a number of seconds, which '; includeSubDomains' and '; preload' may follow")
    return text


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


# What `{name}` gives in --access-log-format. The core knows the same names; a test compares.
ACCESS_LOG_ATOMS: Final = {
    "time": "time when the response ended (RFC 3339, UTC)",
    "client": "client address; `-` on a UNIX socket",
    "method": "request method",
    "target": "request target as sent",
    "path": "the target's path, still percent-encoded",
    "query": "the target's query, without the question mark",
    "protocol": "`HTTP/1.1` or `HTTP/1.0`",
    "status": "status code",
    "bytes": "body bytes sent",
    "duration_ms": "time from the complete request to the end of the response, in milliseconds",
    "proxied_ms": "time that a trusted proxy had the request before, by its `X-Request-Start`, in milliseconds",
    "queued_ms": "time that the complete request waited for a thread or greenlet, in milliseconds",
    "app_ms": "time from the application call to the end of `close()`, in milliseconds",
    "first_block_ms": "time from the application call to its first non-empty block, in milliseconds",
    "blocks": "number of blocks that the application returned",
    "writes": "number of system calls that wrote the response",
    "drained_ms": "time from the application call until the kernel had the last byte, in milliseconds",
    "waited_ms": "time that the application thread waited for the client to accept queued bytes, in milliseconds",
    "held_ms": "time that the complete response was held for other requests (`--hold-writes`), in milliseconds",
    "delivery": "how it was sent: `one-write`, `direct`, `coalesced`, `sendfile`, `compressed`, `spilled`, `none`",
    "ending": "`complete`, `client-gone`, `broken`, `timed-out` (past its deadline), `cut` (when the server stopped) "
    "or `cancelled` (`--cancel-on-disconnect`)",
    "host": "`Host` field",
    "referer": "`Referer` field",
    "user_agent": "`User-Agent` field",
    "worker": "worker number, from 1",
    "ended": "time when the response ended, in seconds since 1970",
    "id": "id of the request (`--request-id`)",
    "trace": "trace id of the request's `traceparent` field, if the field is valid",
    "coding": "coding by which the server compressed the body (`--compress`): `gzip`, `zstd` or `br`",
    "plain_bytes": "body bytes before the server compressed them",
    "cpu_ms": "processor time of the application, in milliseconds",
    "interpreter_ms": "time that the server waited for the interpreter, in milliseconds",
    "gc_ms": "time of garbage collections in the thread of the request, in milliseconds",
    "compress_ms": "processor time that the compression took, in milliseconds",
}

# Those that name something.
ACCESS_LOG_FIELDS: Final = {
    "request:NAME": "a request header field, such as `{request:x-request-id}`",
    "response:NAME": "a response header field, such as `{response:content-type}`",
    "environ:NAME": (
        "an `environ` value as the application leaves it, such as `{environ:REMOTE_USER}`: text, bytes or a number, up "
        "to 4 KiB; `-` for anything else"
    ),
}

# What the atoms of gunicorn give, in a format that has `%(name)s` and none of the names above.
ACCESS_LOG_LETTERS: Final = {
    "%(h)s": "client address",
    "%(l)s": "`-`",
    "%(u)s": "user of `Authorization: Basic`",
    "%(t)s": "time when the response ended, as `[22/Nov/2026:01:02:03 +0000]`",
    "%(r)s": "method, target and version",
    "%(m)s": "request method",
    "%(U)s": "the target's path, still percent-encoded",
    "%(q)s": "the target's query, without the question mark",
    "%(H)s": "`HTTP/1.1` or `HTTP/1.0`",
    "%(s)s": "status code",
    "%(B)s": "body bytes sent",
    "%(b)s": "the same as `%(B)s`",
    "%(f)s": "`Referer` field",
    "%(a)s": "`User-Agent` field",
    "%(T)s": "time from the complete request to the end of the response, in whole seconds",
    "%(M)s": "the same time in whole milliseconds",
    "%(D)s": "the same time in whole microseconds",
    "%(L)s": "the same time in seconds, with six decimals",
    "%(p)s": "process id, as `<7>`",
    "%({NAME}i)s": "a request field",
    "%({NAME}o)s": "a response field",
    "%({NAME}e)s": "an `environ` value, like `{environ:NAME}`",
}


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "app",
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
    ),
    Option(
        "factory",
        values.boolean(),
        False,
        "Call CALLABLE without arguments to get the application.",
        APPLICATION,
        absent=_embedded("call the factory, and pass the application that it returns"),
    ),
    Option(
        "chdir",
        values.path("DIRECTORY"),
        None,
        "Change to this directory before loading the application; Python searches it for modules first.",
        APPLICATION,
        example="/srv/mysite",
        absent=_embedded("the application is already imported; call os.chdir before you import it"),
    ),
    Option(
        "env_file",
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
    ),
    Option(
        "reload",
        values.boolean(),
        False,
        "Reload the application when its code changes, for development.",
        APPLICATION,
        details=(
            "Runs one worker, and replaces it when a `.py` or `.so` file of the application or a file that "
            "`--reload-include` names changes. If the code does not load, the browser shows the traceback until the "
            "next change. Needs `pip install 'tailrace[reload]'`."
        ),
        absent=_NO_RELOAD,
    ),
    Option(
        "reload_include",
        values.several(values.text("GLOB"), may_be_empty=True),
        (),
        "With --reload, also watch these files: a path, a directory or a glob. Repeatable.",
        APPLICATION,
        details=(
            "For templates, translations and settings: `templates`, `'conf/*.toml'`, `'shop/**/*.html'`. A change to "
            "such a file reloads the application, like a change to its code. Paths are relative to the working "
            "directory. `*` and `?` match characters of a name, `[ab]` matches one of these characters, and `**` "
            "matches any number of directories; `{a,b}` has no special meaning. A directory stands for all files in "
            "it. Wildcards and directories do not match `__pycache__`, `node_modules`, `site-packages` or names that "
            "begin with a dot; spell out such names. Do not include files that the application writes."
        ),
        example=["templates", "conf/*.toml"],
        absent={**_NO_RELOAD, Place.WITHOUT_RELOAD: "files are not watched"},
    ),
    Option(
        "reload_exclude",
        values.several(values.text("GLOB"), may_be_empty=True),
        (),
        "With --reload, ignore these files, written as in --reload-include. Repeatable.",
        APPLICATION,
        details="Takes precedence over `--reload-include`, and also applies to code: `'tests/**'`.",
        example=["tests"],
        absent={**_NO_RELOAD, Place.WITHOUT_RELOAD: "files are not watched"},
    ),
    Option(
        "debug",
        values.boolean(),
        False,
        "Serve on one thread and show tracebacks in the browser, for development.",
        APPLICATION,
        details=(
            "One process serves, one request at a time. The application runs on the main thread, so `breakpoint()` "
            "works in the terminal. The browser shows the traceback of an exception that the framework does not catch."
        ),
        core="debug",
        absent={
            Place.THREAD: "it needs the main thread, which the caller uses; call tailrace.run instead",
            Place.HUB: "it serves one request at a time, whereas a hub serves thousands; call tailrace.run instead",
            Place.GEVENT: "--debug serves one request at a time, --gevent thousands",
        },
    ),
    Option(
        "bind",
        values.several(values.text("ADDRESS")),
        ("127.0.0.1:8000",),
        "Address to listen on, such as :8000, [::1]:8000 or unix:/run/app.sock. Repeatable.",
        ADDRESSES,
        details=(
            "The forms are `host:port`, `[::1]:8000`, `:8000` (every IPv4 address), `8000` (127.0.0.1), "
            "`localhost:8000` (this machine, IPv4 and IPv6), `unix:/run/app.sock`, `unix:@abstract`, or `fd://3` "
            "for a socket that systemd or another parent opened. Port 0 picks a free port. A URL names the "
            "protocol: `http://host:port`, `uwsgi://host:port`, `http+unix:/path`, `uwsgi+unix:/path`, "
            "`uwsgi+fd://3`. Options for a single address follow a question mark: `proxy=v1`, `v2` or `any` (each "
            "connection must begin with a PROXY header), `mode=660` (permissions of a UNIX socket), `backlog=4096`. "
            "If `$PORT` is set, as platforms such as Heroku and Cloud Run do, the default is `0.0.0.0:$PORT`."
        ),
        short="-b",
        example=["127.0.0.1:8000", "uwsgi+unix:/run/app.sock?mode=660"],
        foreign=Foreign("PORT", "0.0.0.0:{}", values.whole(1, 65535)),
    ),
    Option(
        "trusted_proxies",
        values.several_or("none", values.text("PEER", check=_trusted_proxy)),
        ("unix",),
        "Proxies whose forwarding headers are trusted: addresses, networks, unix, * or none. Repeatable.",
        ADDRESSES,
        details=(
            "`unix` stands for every peer on a UNIX socket, `*` for every peer, `10.0.0.0/8` for a network. A trusted "
            "proxy supplies the client's address, scheme, host, port and prefix in the fields of `--forwarded-fields`, "
            "in a PROXY header or in uwsgi packets. The client is the last address that is not trusted itself. From "
            "any other peer, these fields are removed, and PROXY headers and uwsgi packets are rejected. If "
            "`$FORWARDED_ALLOW_IPS` is set, the default is `unix` plus the peers that the variable lists."
        ),
        core="trusted_proxies",
        example=["unix", "10.0.0.0/8"],
        foreign=Foreign("FORWARDED_ALLOW_IPS", "unix,{}"),
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
                metavar="FIELD",
            ),
        ),
        ("forwarded", "x-forwarded-for", "x-forwarded-proto"),
        "Header fields that the trusted proxies set in every request. Repeatable.",
        ADDRESSES,
        details=(
            "`forwarded`, `x-forwarded-for`, `x-forwarded-proto`, `x-forwarded-host`, `x-forwarded-port`, "
            "`x-forwarded-prefix`, `x-forwarded` (all with that prefix), `any` or `none`. Name a field only if "
            "the proxies replace whatever their clients send in it. All other forwarding fields are removed. A "
            "request whose `Forwarded` and `X-Forwarded` fields disagree gets 400."
        ),
        core="forwarded_fields",
        example=["x-forwarded"],
    ),
    Option(
        "backlog",
        values.whole(1, 65535),
        2048,
        "Length of the kernel's accept queue.",
        ADDRESSES,
    ),
    Option(
        "umask",
        values.octal(),
        None,
        "File mode creation mask. Default: inherited from the parent process.",
        ADDRESSES,
        details="Also applies to UNIX sockets and log files.",
        example="0o027",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "socket_mode",
        values.octal(),
        None,
        "Permission bits of UNIX sockets, regardless of --umask.",
        ADDRESSES,
        example="0o660",
    ),
    Option(
        "certfile",
        values.several(values.path("FILE"), may_be_empty=True),
        (),
        "Certificate chain in PEM for https:// addresses. Repeatable: clients choose by host name.",
        TLS,
        details=(
            "The server's certificate comes first, then the intermediate ones: the `fullchain.pem` of certbot. A "
            "client gets the first certificate for the name that it asks for, and the first of all if there is none. "
            "The files are read again on SIGHUP and within 5 s of a change, and open connections stay. See "
            "[TLS](guides/tls.md)."
        ),
        example=["/etc/letsencrypt/live/shop.example/fullchain.pem"],
    ),
    Option(
        "keyfile",
        values.several(values.path("FILE"), may_be_empty=True),
        (),
        "Private key in PEM of each --certfile, in the same order. Default: in the same file.",
        TLS,
        details="RSA or ECDSA, as PKCS#8, PKCS#1 or SEC 1. For encrypted keys, see `--keyfile-password-file`.",
        example=["/etc/letsencrypt/live/shop.example/privkey.pem"],
    ),
    Option(
        "keyfile_password_file",
        values.path("FILE"),
        None,
        "File with the password of encrypted keys.",
        TLS,
        details="White space at the end of the file is ignored.",
        example="/run/secrets/key-password",
    ),
    Option(
        "ocsp_file",
        values.several(values.path("FILE"), may_be_empty=True),
        (),
        "OCSP response in DER for each --certfile, in the same order, sent with the certificate.",
        TLS,
        example=["/etc/tailrace/shop.example.ocsp"],
    ),
    Option(
        "tls_min",
        values.choice("1.2", "1.3"),
        "1.2",
        "Oldest version of TLS that clients may use.",
        TLS,
        details="With either, all cipher suites have forward secrecy and authenticated encryption.",
        example="1.3",
    ),
    Option(
        "client_ca",
        values.path("FILE"),
        None,
        "Ask clients for a certificate that one of these authorities (PEM) has signed.",
        TLS,
        details=(
            "The environ then has `SSL_CLIENT_VERIFY` (`SUCCESS` or `NONE`), `SSL_CLIENT_S_DN`, `SSL_CLIENT_I_DN`, "
            "`SSL_CLIENT_M_SERIAL` and `SSL_CLIENT_CERT`."
        ),
        example="/etc/tailrace/clients.pem",
    ),
    Option(
        "client_cert",
        values.choice("required", "optional"),
        "required",
        "With --client-ca, whether a client without a certificate is refused.",
        TLS,
        details="A certificate that none of the authorities has signed is always refused.",
        example="optional",
    ),
    Option(
        "self_signed",
        values.boolean(),
        False,
        "Serve https:// addresses with a certificate for development, which browsers warn of.",
        TLS,
        details="It is made once, for `localhost` and the name of this machine, and kept in `~/.cache/tailrace`.",
    ),
    Option(
        "redirect_http",
        values.several(values.text("ADDRESS"), may_be_empty=True),
        (),
        "Listen here, too, and redirect requests to the first https:// address. Repeatable.",
        TLS,
        details=(
            "The response is 308, which keeps method and body. Requests below `/.well-known/acme-challenge/` are "
            "served instead, so that an authority can check the host over HTTP: see [TLS](guides/tls.md#certbot)."
        ),
        example=["0.0.0.0:80"],
    ),
    Option(
        "hsts",
        values.text("SECONDS", check=_hsts),
        "",
        "Tell browsers to use HTTPS alone for this long (Strict-Transport-Security).",
        TLS,
        details=(
            "`; includeSubDomains` and `; preload` may follow the number. Responses over `https://` addresses have "
            "the field, unless the application sets one. Begin with a short time: over HTTP, a browser cannot be told "
            "to forget it."
        ),
        example="31536000; includeSubDomains",
    ),
    Option(
        "workers",
        values.or_auto(values.whole(1, 1024)),
        1,
        "Number of worker processes. auto: one per available CPU.",
        PROCESSES,
        details=(
            "A master process holds the sockets, watches the workers and replaces them. `auto` counts the CPUs that "
            "the process may run on, up to the CPU quota of its container, rounded up; SIGHUP counts again. If "
            "`$WEB_CONCURRENCY` is set, it is the default. See [containers.md](guides/containers.md)."
        ),
        short="-w",
        example="auto",
        foreign=Foreign("WEB_CONCURRENCY"),
        absent={**_NO_WORKERS, Place.RELOAD: "only one worker runs", Place.DEBUG: "only one process serves"},
    ),
    Option(
        "preload",
        values.boolean(),
        False,
        "Load the application once, before the workers are forked, so that they share its memory.",
        PROCESSES,
        details=(
            "A process of its own loads it and forks the workers, which are ready at once. They also share files and "
            "connections that the application opens while it loads. Threads that the application starts while it "
            "loads do not run in the workers. See [Preloading](guides/preload.md)."
        ),
        absent={
            **_embedded("the application is already loaded, and worker processes share its memory anyway"),
            Place.DEBUG_ALONE: _OF_A_MASTER[Place.DEBUG_ALONE],
            Place.RELOAD: "each worker must load the application itself to get the new code",
            Place.GEVENT: "what forks workers must stay unpatched: each is patched before it loads the application",
        },
    ),
    Option(
        "refork",
        values.several(values.whole(1), may_be_empty=True),
        (),
        "With --preload, let a worker that has processed this many requests fork the others anew. Repeatable.",
        PROCESSES,
        details=(
            "By then the worker has more in memory that the others can share, such as compiled templates and caches. "
            "It finishes its requests, calls the hook `worker_stop`, and becomes the mold. The others are then "
            "replaced one by one. With several numbers, this happens at each. See "
            "[Preloading](guides/preload.md#refork)."
        ),
        example=[1000, 10000],
        absent={
            **_embedded("worker processes are the caller's"),
            Place.DEBUG_ALONE: _OF_A_MASTER[Place.DEBUG_ALONE],
            Place.WITHOUT_PRELOAD: "there is no mold; add --preload",
        },
    ),
    Option(
        "gc",
        values.choice("default", "freeze", "idle"),
        "default",
        "When Python's garbage collector runs full collections, and which objects it exempts.",
        PROCESSES,
        details=(
            "`freeze`: after the warm-up, each worker exempts the objects that the application has loaded, so that "
            "full collections take less time. `idle`: in addition, full collections are postponed "
            "until no request runs, within a limit. See [processes.md](processes.md#garbage-collection)."
        ),
        example="idle",
        absent={
            **_embedded("the collector is the caller's"),
            Place.DEBUG: "requests run one at a time, on the main thread",
        },
    ),
    Option(
        "warmup",
        values.several(values.text("PATH", check=_warmup), may_be_empty=True),
        (),
        "Have each new worker answer a GET request for this path before it serves. Repeatable.",
        PROCESSES,
        details=(
            "The first request of a worker may be slow: it imports modules, compiles templates and fills caches. A "
            "response with a status of 500 or more, or an exception, fails the start or the reload like an error while "
            "the application loads. The host is `localhost`; give a URL for another one. See "
            "[processes.md](processes.md#warm-up)."
        ),
        example=["/", "https://shop.example/cart"],
        absent=_beside("the application is the caller's, who can call it before"),
    ),
    Option(
        "hooks",
        values.text("MODULE"),
        None,
        "Module or file with functions to call at startup, around requests and at exit.",
        PROCESSES,
        details=(
            "The functions are `on_start()`, `post_fork(worker)`, `worker_start(worker)`, `pre_request(environ)`, "
            "`post_request(record)`, `worker_stop(worker)`, `worker_exit(worker)` and `on_exit()`; each is "
            "optional. See [processes.md](processes.md) and [hooks.md](reference/hooks.md)."
        ),
        example="mysite.hooks",
        absent=_NO_WORKERS,
    ),
    Option(
        "user",
        values.text("USER"),
        None,
        "Run as this user (name or number) once the sockets are bound.",
        PROCESSES,
        details="Applies to the master and the workers.",
        example="www-data",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "group",
        values.text("GROUP"),
        None,
        "Run as this group (name or number). Default: the user's group.",
        PROCESSES,
        example="www-data",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "pidfile",
        values.path(),
        None,
        "Write the process id of the master to this file.",
        PROCESSES,
        details=(
            "Without a master, the file contains the id of the only process. A second server with the same file does "
            "not start."
        ),
        example="/run/mysite/tailrace.pid",
        absent=_WHOLE_PROCESS,
    ),
    Option(
        "max_requests",
        values.whole(0),
        0,
        "Replace a worker after about this many requests, without losing any. 0: never.",
        PROCESSES,
        details="The worker drains once its successor serves.",
        example=100_000,
        absent=_OF_A_MASTER,
    ),
    Option(
        "max_requests_jitter",
        values.whole(0),
        0,
        "Add up to this many requests, chosen at random, to each worker's --max-requests.",
        PROCESSES,
        details="It prevents the workers from all being replaced at the same time.",
        absent=_OF_A_MASTER,
    ),
    Option(
        "max_lifetime",
        values.seconds(zero=True),
        0.0,
        "Replace a worker after this time, shortened at random by up to 10 %. 0: never.",
        PROCESSES,
        example="12h",
        absent=_OF_A_MASTER,
    ),
    Option(
        "max_rss",
        values.or_auto(values.size()),
        0,
        "Replace a worker whose resident memory exceeds this size. 0: never. auto: before a container is full.",
        PROCESSES,
        details=(
            "Shared pages are included. `auto` replaces the worker that has grown the most when the container's memory "
            "in use approaches its limit; [containers.md](guides/containers.md) states the formula."
        ),
        example="1GiB",
        absent=_OF_A_MASTER,
    ),
    Option(
        "hang_timeout",
        values.seconds(zero=True),
        30.0,
        "Kill and replace a worker that hangs for this long, at least 3 s. 0: never.",
        PROCESSES,
        details=(
            "A worker hangs if its process is stopped, or if C code does not release the interpreter. The log names "
            "its requests and shows the stacks of its threads."
        ),
    ),
    Option(
        "status",
        values.text("ADDRESS"),
        None,
        "Serve a live page, health checks, metrics and stacks at this address.",
        PROCESSES,
        details=(
            "The address is `host:port`, `https://host:port` (with `--certfile`) or `unix:/path`. A separate process "
            "answers `/`, `/health`, `/ready`, `/status.json`, `/stacks`, `/metrics` and `/events`. Keep the address "
            "private: it shows requests. If it cannot be opened, the server starts without it. Python stacks need `pip "
            "install 'tailrace[status]'`. See "
            "[status.md](status.md)."
        ),
        example="127.0.0.1:9000",
        absent=_OF_A_MASTER,
    ),
    Option(
        "agent",
        values.text("ADDRESS"),
        None,
        "Answer HAProxy's agent-check at this address with the server's free capacity.",
        PROCESSES,
        details=(
            "The address is `host:port` or `unix:/path`. Each connection gets one line: the capacity, such as `up "
            "75%`, `drain` during a stop, or `down` while no worker serves. The status process answers; it also runs "
            "without `--status`. If the address cannot be opened, the server starts without it."
        ),
        example="127.0.0.1:9001",
        absent=_OF_A_MASTER,
    ),
    Option(
        "statsd",
        values.text("ADDRESS"),
        None,
        "Send metrics to this host:port over UDP every 10 seconds, with DogStatsD tags.",
        PROCESSES,
        details="The metrics are those of `/metrics`.",
        example="127.0.0.1:8125",
        absent=_OF_A_MASTER,
    ),
    Option(
        "otlp_endpoint",
        values.text("URL", check=_collector),
        None,
        "Export a trace of each request to this OpenTelemetry collector (OTLP over HTTP).",
        PROCESSES,
        details=(
            "The status process sends spans for the queue, the application and the delivery to `/v1/traces` under this "
            "URL. The application gets a `traceparent`, so that its own spans belong to the same trace. Headers, "
            "certificates and the service name come from the standard environment variables, such as "
            "`OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_SERVICE_NAME`. Needs `pip install 'tailrace[otlp]'`. See "
            "[OpenTelemetry](guides/opentelemetry.md)."
        ),
        example="http://127.0.0.1:4318",
        absent=_OF_A_MASTER,
    ),
    Option(
        "otlp_sample",
        values.share(),
        1.0,
        "Fraction of requests to trace, from 0 to 1, unless a trusted proxy decides.",
        PROCESSES,
        details=(
            "If a proxy in `--trusted-proxies` sends a `traceparent`, its sampled flag decides instead. The flag of "
            "any other client is ignored."
        ),
        example=0.1,
        absent=_OF_A_MASTER,
    ),
    Option(
        "threads",
        values.whole(1, 4096),
        128,
        "Maximum number of application threads. 1: for code that is not thread-safe.",
        THREADS,
        details="Threads start on demand and exit when idle. Further requests wait, up to `--max-queue`.",
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
        "Run each request in a greenlet on gevent's hub.",
        GREENLETS,
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
    ),
    Option(
        "max_greenlets",
        values.whole(1, 50_000),
        10_000,
        "With --gevent, maximum number of concurrent requests per worker.",
        GREENLETS,
        details="Further requests wait, up to `--max-queue`.",
        example=2_000,
        absent=_LIMIT_OF_GREENLETS,
    ),
    Option(
        "hub_warn",
        values.seconds(zero=True),
        0.1,
        "With --gevent, log a greenlet that blocks the hub for longer than this. 0: never.",
        GREENLETS,
        details=(
            "The log entry includes the stack of the greenlet. A greenlet that computes, or waits in a call that is "
            "not patched, blocks all others."
        ),
        example="250ms",
        absent=_LIMIT_OF_GREENLETS,
    ),
    Option(
        "request_line_limit",
        values.size(64),
        8190,
        "Maximum length of a request line. Longer request lines get 414.",
        LIMITS,
        core="request_line_limit",
    ),
    Option(
        "header_bytes_limit",
        values.size(256),
        65536,
        "Maximum total size of a request's header fields. Larger requests get 431.",
        LIMITS,
        core="header_bytes_limit",
    ),
    Option(
        "header_count_limit",
        values.whole(1, 65535),
        128,
        "Maximum number of header fields in a request. Requests with more get 431.",
        LIMITS,
        core="header_count_limit",
    ),
    Option(
        "max_body",
        values.size(),
        1 << 30,
        "Maximum size of a request body. Larger requests get 413.",
        LIMITS,
        core="max_body",
        example="100MiB",
    ),
    Option(
        "client_memory",
        values.size(1 << 20),
        None,
        "Maximum memory that a worker holds for its clients. Default: 512 MiB.",
        LIMITS,
        details=(
            "Above this limit, the oldest incomplete requests get 503. Half of the memory is for responses "
            "(`--response-buffer`; the excess moves to files and does not count), and a quarter is for request bodies "
            "(`--body-buffer`). The default is larger if these two options need more. In a container with a memory "
            "limit, the default is a quarter of the limit divided by the number of workers, from 16 MiB to 512 MiB. "
            "See [containers.md](guides/containers.md)."
        ),
        example="1GiB",
    ),
    Option(
        "body_memory",
        values.size(),
        None,
        "Maximum size of a request body in memory. Larger bodies are kept in temporary files.",
        LIMITS,
        details=(
            "The files are in `TMPDIR` and have no names. Default: half of `--body-buffer`, but at least 1 MiB and at "
            "most 64 MiB."
        ),
        example="64MiB",
    ),
    Option(
        "body_buffer",
        values.size(),
        None,
        "Maximum memory for all request bodies. Default: a quarter of --client-memory.",
        LIMITS,
        details="Above this limit, all except small bodies are kept in temporary files.",
        example="128MiB",
    ),
    Option(
        "stream_body",
        values.boolean(),
        False,
        "Call the application before the request body has arrived.",
        LIMITS,
        details=(
            "Tailrace calls the application when the head of a request is complete. Reads of `wsgi.input` wait for the "
            "client and occupy the thread. A chunked body has no `CONTENT_LENGTH`, which some frameworks need. "
            "Without this option, Tailrace calls the application when the whole body has arrived."
        ),
        core="stream_body",
    ),
    Option(
        "response_queue",
        values.size(4096),
        4 << 20,
        "Maximum memory for one response to a slow client. The rest moves to a file.",
        LIMITS,
        details="See `--response-spill`.",
        core="response_queue",
    ),
    Option(
        "response_buffer",
        values.size(65536),
        None,
        "Maximum memory for all responses to slow clients. Default: half of --client-memory.",
        LIMITS,
        details=(
            "The maximum is three quarters of `--client-memory`. The excess moves to temporary files; see "
            "`--response-spill`."
        ),
        example="256MiB",
    ),
    Option(
        "response_spill",
        values.size(),
        4 << 30,
        "Maximum size of all responses in temporary files. 0: no files.",
        LIMITS,
        details=(
            "The files are in `TMPDIR`, which should not be in memory, and have no names. With them, no thread waits "
            "for slow clients. A response that the application has not finished may use up to 1/64 of this size. Above "
            "the limit, application threads wait for their clients, and requests for which no thread is free get 503."
        ),
        core="response_spill",
        example="20GiB",
    ),
    Option(
        "max_queue",
        values.whole(1, 1_000_000),
        2048,
        "Maximum number of requests waiting for a thread, per worker. Further requests get 503.",
        LIMITS,
        details="With `--gevent`, requests wait for a greenlet. The 503 response has a `Retry-After` field.",
        core="max_queue",
    ),
    Option(
        "max_connections",
        values.whole(1, 10_000_000),
        100_000,
        "Maximum number of connections per worker.",
        LIMITS,
        details=(
            "A worker raises its limit on open files as far as possible. If that limit is too low, the worker keeps "
            "fewer connections. At the maximum, each new client causes the connection that has been idle the longest "
            "to be closed. If none is idle, new clients wait in the kernel's queue."
        ),
        core="max_connections",
    ),
    Option(
        "max_connections_per_client",
        values.whole(0, 60_000),
        0,
        "Maximum number of connections of one client, to all workers together. 0: no limit.",
        LIMITS,
        details=(
            "A further connection is closed, after 429 where possible. A client is an IPv4 address or an IPv6 /64. "
            "Connections from `--trusted-proxies` and through UNIX sockets are not limited, unless a PROXY header "
            "names the client. See [Limits per client](deploy.md#limits-per-client)."
        ),
        core="client_connections",
        example=100,
    ),
    Option(
        "max_requests_per_client",
        values.rate(),
        None,
        "Maximum rate of requests of one client, such as 10/s, 600/min or 5000/h; more get 429.",
        LIMITS,
        details=(
            "A client may send that many requests at once, and then as many as the rate allows, counted over all "
            "workers. The client is the one that a trusted proxy names. Requests for static files count. See [Limits "
            "per client](deploy.md#limits-per-client)."
        ),
        core="client_rate",
        example="600/min",
    ),
    Option(
        "request_timeout",
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
    ),
    Option(
        "cancel_on_disconnect",
        values.choice("off", "safe", "all"),
        "off",
        "Which requests to cancel when their client disconnects.",
        LIMITS,
        details=(
            "`tailrace.ClientDisconnected` is raised in the thread or greenlet of the request. `safe`: requests with "
            "GET, HEAD, OPTIONS or TRACE. `all`: every request, even in the middle of a change. See "
            "[Disconnected clients](guides/disconnected-clients.md)."
        ),
        core="cancel_on_disconnect",
        example="safe",
        absent={Place.DEBUG: "requests run on the thread that would see the client disconnect"},
    ),
    Option(
        "half_close",
        values.choice("continue", "disconnect"),
        "continue",
        "How to treat a client that closes only its sending direction.",
        LIMITS,
        details=(
            "`continue`: the client still waits for its response. `disconnect`: the client has left. A client or proxy "
            "that closes its TCP connection while its request is processed looks the same, so use `disconnect` behind "
            "nginx over TCP. See [Disconnected clients](guides/disconnected-clients.md#what-counts-as-a-disconnect)."
        ),
        core="half_close",
        example="disconnect",
        absent={Place.DEBUG: "requests run on the thread that would see the client disconnect"},
    ),
    Option(
        "queue_timeout",
        values.seconds(zero=True),
        0.0,
        "Maximum time that a request waits for a thread; then 503. 0: no limit.",
        TIMES,
        details="With `--gevent`, requests wait for a greenlet. The 503 response has a `Retry-After` field.",
        core="queue_timeout",
        example=10,
    ),
    Option(
        "header_timeout",
        values.seconds(zero=False),
        15.0,
        "Maximum time from the first byte of a request head to its last; then 408.",
        TIMES,
        core="header_timeout",
    ),
    Option(
        "body_timeout",
        values.seconds(zero=False),
        30.0,
        "Maximum pause between two parts of a request body; then 408.",
        TIMES,
        core="body_timeout",
    ),
    Option(
        "idle_timeout",
        values.seconds(zero=False),
        75.0,
        "Close a connection without a request after this time.",
        TIMES,
        details="It should be longer than the idle timeout of a proxy in front.",
        core="idle_timeout",
    ),
    Option(
        "write_timeout",
        values.seconds(zero=False),
        60.0,
        "Disconnect a client that accepts no response data for this long.",
        TIMES,
        core="write_timeout",
    ),
    Option(
        "min_body_rate",
        values.size(),
        240,
        "Minimum rate of a request body, in bytes per second; below it, 408. 0: any rate.",
        TIMES,
        details="Tailrace measures the average rate, and checks it once `--body-timeout` has passed.",
        core="min_body_rate",
    ),
    Option(
        "min_response_rate",
        values.size(),
        240,
        "Minimum rate at which a client reads a response, in bytes per second. 0: any rate.",
        TIMES,
        details=(
            "Tailrace measures the average rate while response data is waiting, and checks it once `--write-timeout` "
            "has passed. Slower clients are disconnected."
        ),
        core="min_response_rate",
    ),
    Option(
        "graceful_timeout",
        values.seconds(zero=True),
        30.0,
        "Time for requests in flight to finish after SIGTERM or SIGINT.",
        TIMES,
        details=(
            "A second signal stops the server at once. With `--reload`, the default is 1 s, and the option also "
            "applies when files have changed."
        ),
    ),
    Option(
        "shutdown_delay",
        values.seconds(zero=True),
        0.0,
        "Keep serving for this long after SIGTERM, while /ready answers 503.",
        TIMES,
        details=(
            "Gives load balancers time to notice that the server is stopping. It accepts connections and serves as "
            "before, but `/ready` answers 503 and the HAProxy agent says `drain`. Then it closes its sockets, and "
            "`--graceful-timeout` begins. Another signal ends the delay. SIGINT and SIGQUIT cause none. See "
            "[Kubernetes](guides/docker-kubernetes.md#kubernetes)."
        ),
        example=5,
        absent=_OF_A_MASTER,
    ),
    Option(
        "reload_trial",
        values.seconds(zero=True),
        0.0,
        "After SIGHUP, try the new code in one worker for this long, beside the old workers.",
        TIMES,
        details=(
            "If that worker does worse than the old workers in the same time, it ends and they stay, as if the new "
            "code had not loaded. It does worse if its share of 5xx responses is clearly more than twice theirs plus "
            "one percentage point, if its 95th percentile of the application's time is more than 1.5 times theirs plus "
            "50 ms, or if it crashes or hangs. See [Trial](processes.md#trial). 0: no trial."
        ),
        example=10,
        absent=_OF_A_MASTER,
    ),
    Option(
        "hold_writes",
        values.seconds(zero=True, most=0.01),
        0.001,
        "Batch small responses for up to this long while other requests are waiting. 0: off.",
        RESPONSES,
        details=(
            "Batching means fewer wake-ups and higher throughput. It applies to complete responses of up to 16 KiB to "
            "GET, HEAD, OPTIONS or TRACE. The maximum is 10 ms. With 0, each response is sent at once, as is the first "
            "block of a generator, which may otherwise wait for 1 ms."
        ),
        core="hold_writes",
        example=0,
    ),
    Option(
        "root_path",
        values.text("PATH", check=_root_path),
        "",
        "URL path under which the application is mounted (SCRIPT_NAME).",
        RESPONSES,
        details="This path is removed from the start of `PATH_INFO`.",
        core="root_path",
        example="/app",
    ),
    Option(
        "url_scheme",
        values.choice("http", "https"),
        "http",
        "Value of wsgi.url_scheme. Set https if a proxy in front terminates TLS.",
        RESPONSES,
        core="url_scheme",
    ),
    Option(
        "underscore_headers",
        values.choice("drop", "keep", "refuse"),
        "drop",
        "What to do with request fields that have an underscore in their name.",
        RESPONSES,
        details=(
            "CGI variables cannot distinguish an underscore from a dash. `drop` removes the fields, `keep` passes them "
            "on, and `refuse` answers the request with 400."
        ),
        core="underscore_headers",
    ),
    Option(
        "server_header",
        values.text("TEXT", check=_field_value),
        "tailrace",
        "Server field of responses in which the application sets none. Empty: no field.",
        RESPONSES,
        core="server_header",
    ),
    Option(
        "server_timing",
        values.boolean(),
        False,
        "Add a Server-Timing field, which browsers' developer tools show.",
        RESPONSES,
        details=(
            "The field states how long the request was queued, and how long the application took to return its first "
            "block."
        ),
        core="server_timing",
    ),
    Option(
        "early_hints",
        values.boolean(),
        False,
        "Let the application send 103 Early Hints with environ['wsgi.early_hints'].",
        RESPONSES,
        details=(
            "It is a callable for a list of header tuples, as in gunicorn. Turn it on only if the proxy in front "
            "passes on interim responses. nginx before 1.29 takes them for the final response if it uses HTTP/1.1. See "
            "[Early Hints](http.md#early-hints)."
        ),
        core="early_hints",
    ),
    Option(
        "compress",
        values.boolean(),
        False,
        "Compress responses of the application with zstd, gzip or Brotli.",
        RESPONSES,
        details=(
            "The coding depends on the client's `Accept-Encoding`. Separate threads compress, so that application "
            "threads do not wait. Do not compress pages that contain both a secret and text from the request, since "
            "their length then reveals the secret (BREACH). See [Compression](guides/compression.md)."
        ),
        core="compress",
    ),
    Option(
        "compress_types",
        values.several(values.text("TYPE", check=_media_type), may_be_empty=True),
        (),
        "Media types to compress, such as application/json or text/*. Repeatable.",
        RESPONSES,
        details=(
            "Default: text, JSON, XML, JavaScript and other types that become smaller, but not `text/event-stream`. "
            "Named types replace the default."
        ),
        core="compress_types",
        example=["text/*", "application/json"],
    ),
    Option(
        "compress_min_size",
        values.size(),
        1024,
        "Minimum length of a response to compress, if the length is known in advance.",
        RESPONSES,
        core="compress_min_size",
    ),
    Option(
        "request_id",
        values.text("HEADER", check=_request_id),
        "",
        "Give each request an id in this header field, such as X-Request-ID. none: off.",
        RESPONSES,
        details=(
            "A proxy of `--trusted-proxies` may state the id: up to 128 visible ASCII characters, without quotes, "
            "commas and backslashes. Any other request gets a new id, a UUID of version 7, which replaces what the "
            "client sent. The id is in `environ` (`HTTP_X_REQUEST_ID`), in the response unless the application sets "
            "the field, in both logs and on the status page. See [Request ids](guides/request-ids.md)."
        ),
        core="request_id",
        example="X-Request-ID",
    ),
    Option(
        "static",
        values.pairs(static_values.mount, "PREFIX=FOLDER", "/assets=./dist", static_values.write_mount),
        (),
        "Serve the files of a folder under a URL path, without the application. Repeatable.",
        STATIC,
        details=(
            "With `/assets=./dist`, `./dist/app.js` is served as `/assets/app.js`. Missing files get 404. If several "
            "paths match, the longest one applies; `/` matches every path. A relative folder is relative to the "
            "current directory. `tailrace static list` shows what is served."
        ),
        example=["/assets=./dist", "/media=/srv/media"],
    ),
    Option(
        "overlay",
        values.path("FOLDER"),
        None,
        "Serve the files of this folder at /; the application answers everything else.",
        STATIC,
        details="For files such as `favicon.ico` and `robots.txt`.",
        example="./public",
    ),
    Option(
        "spa",
        values.file_below(),
        None,
        "Send this file of a --static folder for missing paths (single-page applications).",
        STATIC,
        details="The status is 200. The option applies to missing paths whose last part has no extension.",
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
        "Send files that responses name in X-Sendfile or X-Accel-Redirect. Repeatable.",
        STATIC,
        details=(
            "The file replaces the body of the response. With `FOLDER`, the field contains the path of a file in that "
            "folder, as in `X-Sendfile: /srv/media/a.pdf`. With `PREFIX=FOLDER`, the field contains a URL path, as in "
            "`X-Accel-Redirect: /protected/a.pdf` for `/protected=/srv/media`. If the name of a folder contains `=`, "
            "write `=FOLDER`. Without this option, these fields are sent to the client."
        ),
        example=["/srv/media", "/protected=/srv/media"],
    ),
    Option(
        "static_index",
        values.names("NAMES"),
        ("index.html",),
        "Index files, separated by commas; the first that exists is served for a folder. Empty: none.",
        STATIC,
        core="static_index",
        example=["index.html", "index.htm"],
    ),
    Option(
        "static_listing",
        values.boolean(),
        False,
        "Serve a directory listing for a --static folder without an index file.",
        STATIC,
        details="The page lists up to 10,000 files and folders with their sizes and dates.",
        core="static_listing",
    ),
    Option(
        "static_404",
        values.file_below(),
        None,
        "Send this file of a --static folder, with status 404, for missing files.",
        STATIC,
        core="static_not_found",
        example="404.html",
    ),
    Option(
        "static_cache",
        values.pairs(static_values.cache_rule, "PATTERN=VALUE", "/assets=1y,immutable", static_values.write_cache_rule),
        (),
        "Cache-Control of static files that match a pattern. Repeatable.",
        STATIC,
        details=(
            "`PATTERN` is one of three forms: a path, such as `/assets`, which includes everything under it; a path "
            "or, without a slash, a file name with `*` for any characters, such as `*.html`; or the word "
            "`fingerprinted`, for files whose name contains a hash of their content, such as `app.3f2a9c1b.js`. "
            "`VALUE` is `none`, or a comma-separated list of directives, such as `no-cache`, and times, such as `1y`. "
            "The first matching pattern applies; `fingerprinted` is tried last. Default: "
            "`fingerprinted=public,1y,immutable`."
        ),
        example=["/assets=1y,immutable", "*.html=no-cache"],
    ),
    Option(
        "mime",
        values.pairs(static_values.media_type, ".EXT=TYPE", ".data=text/plain", ".{}={}".format),
        (),
        "Content-Type of static files with this extension. Repeatable.",
        STATIC,
        details="The type is sent as written.",
        core="static_types",
        example=[".data=text/plain"],
    ),
    Option(
        "static_symlinks",
        values.choice("beneath", "never", "follow"),
        "beneath",
        "Symbolic links to follow: those that stay inside the folder, none, or all.",
        STATIC,
        core="static_symlinks",
    ),
    Option(
        "static_dotfiles",
        values.choice("well-known", "never", "all"),
        "well-known",
        "Names with a leading dot to serve: .well-known only, none, or all.",
        STATIC,
        details="`.well-known` is served only at the top of a folder.",
        core="static_dotfiles",
    ),
    Option(
        "static_precompressed",
        values.boolean(),
        True,
        "Send app.js.br, app.js.zst or app.js.gz, if it exists, to clients that accept it.",
        STATIC,
        core="static_precompressed",
    ),
    Option(
        "static_compress",
        values.boolean(),
        False,
        "Compress text-like files with Brotli or gzip on first use and cache the result.",
        STATIC,
        details=(
            "The result stays in memory (`--static-memory`). Files are compressed in the background, so the first "
            "client gets the uncompressed file. The option applies to files of 256 bytes to 8 MiB without a compressed "
            "sibling."
        ),
        core="static_compress",
    ),
    Option(
        "static_memory",
        values.size(),
        32 << 20,
        "Maximum memory per worker for static files, including compressed versions.",
        STATIC,
        core="static_memory",
        example="128MiB",
    ),
    Option(
        "static_memory_file",
        values.size(),
        64 << 10,
        "Maximum size of a static file that is kept in memory.",
        STATIC,
        core="static_memory_file",
    ),
    Option(
        "static_descriptors",
        values.whole(0, 1_000_000),
        512,
        "Maximum number of static files that each worker keeps open.",
        STATIC,
        core="static_descriptors",
    ),
    Option(
        "access_log",
        values.path("DESTINATION", check=_access_log),
        None,
        "Write one line per response to this file or another destination of --log; - is standard output.",
        LOGS,
        details=(
            "By default, there is no access log. The destinations are those of `--log`, and `logging`, which stands "
            "for the logger `tailrace.access` of Python's `logging`. SIGUSR1 reopens a file. No request waits for the "
            "log: lines that cannot be written in time are dropped and counted."
        ),
        core="access_log",
        example="/var/log/tailrace/access.log",
    ),
    Option(
        "access_log_format",
        values.text("combined|common|json|FORMAT", check=_log_format),
        "combined",
        "Format of the access log: a name, or a text with atoms such as {status}.",
        LOGS,
        details=(
            "The names are `combined`, `common` and `json`. A text contains atoms in braces, such as `'{client} "
            "{method} {target} {status} {duration_ms} {request:x-request-id} {environ:REMOTE_USER}'`. Atoms can name "
            "any request or response field and any key of `environ`. A text may use gunicorn's atoms instead, such as "
            "`'%(h)s \"%(r)s\" %(s)s %({X-Request-Id}i)s'`. After the word `json`, atoms are the members of an object: "
            "`'json {time} {status} {request:x-request-id}'`. A format must not contain a line end."
        ),
        core="access_log_format",
        example="{client} {method} {target} {status} {duration_ms}",
    ),
    Option(
        "slow",
        values.seconds(zero=True),
        0.0,
        "Log a request that runs longer than this, with its stack. 0: never.",
        LOGS,
        details=(
            "The request is logged while it is still running, with its phase and the stack of its thread or greenlet. "
            "It is logged again when it ends, with a breakdown of its time."
        ),
        core="slow",
        example="1s",
    ),
    Option(
        "query_masking",
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
    ),
    Option(
        "log",
        values.path("DESTINATION", check=_log),
        "stderr",
        "Destination of the server's own log: stderr, stdout, a file, syslog, syslog://HOST:514 or journal.",
        LOGS,
        details=(
            "SIGUSR1 reopens a file. `syslog` is the local daemon; `syslog:/dev/log?facility=local0&tag=shop` also "
            "names its socket, the facility and the tag; `syslog://HOST:514` is a server, reached over UDP. Nothing "
            "waits for the destination: entries that it does not accept in time are dropped and counted."
        ),
        example="syslog",
        absent=_HANDLER_OF_THE_PROGRAM,
    ),
    Option(
        "log_format",
        values.choice("text", "json"),
        "text",
        "Format of the server's own log: lines of text, or one JSON object per entry.",
        LOGS,
        example="json",
        absent=_HANDLER_OF_THE_PROGRAM,
    ),
    Option(
        "log_level",
        values.choice("debug", "info", "warning", "error"),
        "info",
        "Minimum level of the server's own log.",
        LOGS,
        absent=_LOG_OF_THE_PROGRAM,
    ),
    Option(
        "log_config",
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
    ),
)

BY_NAME: Final[dict[str, Option]] = {option.name: option for option in OPTIONS}

# The options that `tailrace --help` shows, in this order; `tailrace serve --help` shows all.
COMMON: Final = (
    *("bind", "workers", "threads", "gevent", "reload", "debug", "access_log", "static", "status", "trusted_proxies"),
    *("graceful_timeout", "log_level"),
)

# Options of the command line that contradict each other, which is an error. Other combinations of the table are
# warnings.
CONFLICTS: Final = (("debug", Place.GEVENT), ("preload", Place.GEVENT), ("preload", Place.RELOAD))
