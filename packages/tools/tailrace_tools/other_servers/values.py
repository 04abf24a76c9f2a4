"""Conversions of values: from another server's options to options of Tailrace.

Values that need no conversion are passed on: the kinds of `tailrace.cli.values` read text and numbers alike, and check
them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from tailrace_tools.other_servers.rows import Conversion, Others, Refused

_TRUE: Final = ("1", "true", "yes", "on", "")
# Loop engines of uWSGI and workers of gunicorn that run on gevent.
_GEVENT: Final = re.compile(r"gevent(_wsgi|_pywsgi)?|.*[.:]g?gevent\w*|.*GeventWorker|.*GeventPyWSGIWorker")
_SPEAKS_ASGI: Final = re.compile(r"asgi|uvicorn.*|.*uvicorn.*|hypercorn.*|.*\.AsgiWorker", re.IGNORECASE)
_PORT: Final = re.compile(r"[0-9]{1,5}")
_LARGEST_HEAD: Final = 65536


def is_on(value: object) -> bool:
    """Whether a switch is on, from Python, a command line or an ini file."""
    return value is True or (not isinstance(value, bool) and str(value).strip().lower() in _TRUE)


def listed(value: object) -> list[str]:
    """A list, or text that is separated by commas."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in listed(each)]
    return [str(value)]


def number(value: object) -> int:
    """A whole number. Raises ValueError."""
    try:
        if isinstance(value, bool) or len(str(value)) > 30:
            raise ValueError
        return int(str(value).strip())
    except ValueError:
        raise ValueError("must be a whole number") from None


def text(value: object) -> str:
    """A value as text. Raises ValueError."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise ValueError("must be text")


def to(ours: str, prefix: str = "", suffix: str = "") -> Conversion:
    """The value with a prefix and a suffix, such as a unit."""
    return lambda value, others: {ours: f"{prefix}{text(value)}{suffix}"}


def ignored(before: str = "") -> Conversion:
    """Files that `--reload` ignores. before: what each path begins with, such as `**/` for any depth."""
    return lambda value, others: {"reload_include": [f"!{before}{name}" for name in listed(value)]}


def switch(ours: str) -> Conversion:
    """A switch that turns ours on."""
    return lambda value, others: {ours: True} if is_on(value) else {}


def as_text(ours: str) -> Conversion:
    """A number or text as text, such as a user."""
    return lambda value, others: {ours: text(value)}


def if_positive(ours: str, reason: str) -> Conversion:
    """A number; for 0, the reason why it is not converted."""

    def convert(value: object, others: Others) -> Mapping[str, Any]:
        if text(value).strip() in ("0", "0.0"):
            raise Refused(reason)
        return {ours: value}

    return convert


# Addresses.


def gunicorn_bind(value: object, others: Others) -> Mapping[str, Any]:
    """`bind`, with what `proxy_protocol` and `protocol` say of all addresses."""
    mode = str(others.get("proxy_protocol", "off")).lower()
    proxy = "" if mode in ("off", "false") else f"?proxy={mode if mode in ('v1', 'v2') else 'any'}"
    protocol = "uwsgi" if str(others.get("protocol", "http")).lower() == "uwsgi" else "http"
    found = []
    for each in listed(value):
        address = each.removeprefix("tcp://")
        if address.startswith("unix:"):
            path = address.removeprefix("unix:")
            address = f"unix:{path[2:] if path.startswith('//') else path}"
        elif address.isdecimal() or (":" not in address and not address.startswith("fd")):
            address = f"{address}:8000"
        found.append(_with(protocol, address, proxy))
    return {"bind": found}


def _with(protocol: str, address: str, proxy: str = "") -> str:
    """An address as a URL where it has to be one."""
    if protocol == "http" and not proxy:
        return address
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("unix", "fd"):
        return f"{protocol}+{scheme}:{rest}{proxy}"
    return f"{protocol}://{address}{proxy}"


def gunicorn_protocol(value: object, others: Others) -> Mapping[str, Any]:
    """`protocol` and `proxy_protocol` without `bind`."""
    return {} if "bind" in others or "bind" not in (found := gunicorn_bind("127.0.0.1:8000", others)) else found


def uwsgi_bind(protocol: str) -> Conversion:
    """`http-socket`, `socket` and the like; None: `--protocol` decides."""

    def convert(value: object, others: Others) -> Mapping[str, Any]:
        spoken = protocol
        if protocol == "any":
            spoken = str(others.get("protocol", "uwsgi")).lower()
            if spoken not in ("http", "http11", "uwsgi"):
                raise Refused(f"Tailrace speaks HTTP and uwsgi, but not {spoken}")
            spoken = spoken[:4] if spoken != "uwsgi" else spoken
        proxy = "?proxy=any" if spoken == "http" and is_on(others.get("enable_proxy_protocol", "0")) else ""
        address = text(value).strip()
        if "," in address and protocol == "http":
            raise Refused("the address has options of the HTTP router; set `bind` to the address alone")
        if address.startswith("="):
            raise Refused("a shared socket; set `bind` to its address")
        # uWSGI's notation for all addresses.
        address = address.removeprefix("*") if address.startswith("*:") else address
        if address.startswith("@"):
            address = f"unix:{address}"
        elif _PORT.fullmatch(address):
            address = f":{address}"
        elif not re.search(r":[0-9]+$", address) and not address.startswith("fd://"):
            address = f"unix:{address}"
        return {"bind": [_with(spoken, address, proxy)]}

    return convert


def waitress_listen(value: object, others: Others) -> Mapping[str, Any]:
    """`--listen`: addresses that are separated by spaces; `*` is every address of both families."""
    found: list[str] = []
    for each in (part for one in (value if isinstance(value, list) else [value]) for part in text(one).split()):
        found += (
            [f"0.0.0.0{each[1:]}", f"[::]{each[1:]}"]
            if each.startswith("*:")
            else [each if ":" in each else f"{each}:8080"]
        )
    return {"bind": found}


def host_and_port(host: str, port: int) -> Conversion:
    """Two options that correspond to one of ours, with the server's defaults. The first of them gets the address."""

    def convert(value: object, others: Others) -> Mapping[str, Any]:
        where = text(others.get("host", host))
        if ":" in where:
            where = f"[{where.strip('[]')}]"
        return {"bind": [f"{where}:{number(others.get('port', port))}"]}

    return convert


def socket_mode(value: object, others: Others) -> Mapping[str, Any]:
    """`mode` of UNIX sockets: octal text, or its bits; a bare `chmod-socket` is 666."""
    return {"mode": "666" if value in (None, True, "", "true") else value}


def gunicorn_umask(value: object, others: Others) -> Mapping[str, Any]:
    """gunicorn's umask, which applies only to its UNIX sockets."""
    mode = socket_mode_of(value)
    if not any(each.startswith("unix:") for each in listed(others.get("bind", ""))):
        raise Refused("gunicorn applies it only to UNIX sockets, and none is configured", is_needless=True)
    return {"mode": mode}


def socket_mode_of(umask: object) -> int:
    """The permission bits of a socket that gunicorn creates. umask: decimal without a prefix, octal after `0` or `0o`.
    Raises ValueError."""
    try:
        bits = umask if isinstance(umask, int) else int(re.sub(r"\A0(?=[0-9])", "0o", text(umask).strip()), 0)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise ValueError("must be octal permission bits from 0 to 0o777, such as 0o007")
    return 0o777 & ~bits


def tls_version(value: object, others: Others) -> Mapping[str, Any]:
    """gunicorn's `ssl_version`, a name or number from the ssl module, or granian's."""
    name = text(value).strip().upper().removeprefix("SSL.").removeprefix("PROTOCOL_").replace("_", ".")
    if name in ("5", "TLSV1.2", "TLS1.2"):
        return {"tls_min": "1.2"}
    if name in ("TLSV1.3", "TLS1.3"):
        return {"tls_min": "1.3"}
    if name in ("2", "16", "17", "TLS", "TLS.SERVER", "TLS.CLIENT", "SSLV23"):
        raise Refused("Tailrace also negotiates the highest TLS version, 1.2 or later", is_needless=True)
    raise Refused("Tailrace speaks TLS 1.2 and 1.3 only")


# Proxies.


def trusted(value: object, others: Others) -> Mapping[str, Any]:
    """Proxies; those on UNIX sockets are trusted by the other servers, too."""
    found = [each for each in listed(value) if each not in ("unix", "")]
    return {"trusted_proxies": ["*"] if "*" in found else ["unix", *found]}


def forwarded_headers(value: object, others: Others) -> Mapping[str, Any]:
    """Names of header fields, as waitress and mod_wsgi write them."""
    return {"forwarded_headers": [each.lower().replace("_", "-") for part in listed(value) for each in part.split()]}


def header_map(value: object, others: Others) -> Mapping[str, Any]:
    """gunicorn's `header_map`."""
    word = text(value).lower()
    return {"underscore_headers": {"dangerous": "keep"}.get(word, word)}


# The application.


def uwsgi_app(value: object, others: Others) -> Mapping[str, Any]:
    """`module` or `wsgi-file`, with `callable`."""
    name = text(value).strip()
    called = others.get("callable")
    has_one = ":" in name.rpartition("/")[2]
    return {"app": name if has_one or called is None else f"{name}:{text(called)}"}


def uwsgi_mount(value: object, others: Others) -> Mapping[str, Any]:
    """`mount = /path=application`."""
    if isinstance(others.get("mount"), list):
        raise Refused("only one application can be served; start a server for each, or dispatch in the application")
    path, equals, application = text(value).partition("=")
    if not equals:
        raise Refused("the mount does not name an application")
    found = dict(uwsgi_app(application, others))
    if path.rstrip("/"):
        found["root_path"] = path.rstrip("/")
    return found


def part_of(*keys: str, reason: str) -> Conversion:
    """An option that was used in the conversion of another option."""

    def convert(value: object, others: Others) -> Mapping[str, Any]:
        if any(key in others for key in keys):
            return {}
        raise Refused(reason)

    return convert


def search_path(value: object, others: Others) -> Mapping[str, Any]:
    """Directories for modules: that of `chdir` is searched anyway."""
    here = others.get("chdir") or others.get("working_directory") or "."
    # The current directory of a uWSGI configuration is often that of its file.
    rest = [each for each in listed(value) if os.path.normpath(each) != os.path.normpath(str(here))]
    if not rest:
        raise Refused(
            "modules are imported from the current directory, or that of `chdir`, by default", is_needless=True
        )
    raise Refused(f"set PYTHONPATH={os.pathsep.join(rest)} in the environment, or make this directory `chdir`")


def variables(value: object, others: Others) -> Mapping[str, Any]:
    """NAME=value, which `--env-file` reads from a file of its own."""
    # A variable may be a secret, but the source contains it, too.
    raise Refused("set the variable in the environment, or in the file that `env_file` names")


# Processes and threads.


def cpus(value: object, others: Others) -> Mapping[str, Any]:
    """A number of processes; words such as uWSGI's `%k` have become `auto`."""
    return {"workers": value}


def worker_class(value: object, others: Others) -> Mapping[str, Any]:
    """gunicorn's `worker_class`."""
    name = text(value)
    if _GEVENT.fullmatch(name):
        return {"gevent": True}
    if name in ("sync", "gthread"):
        return {}
    if _SPEAKS_ASGI.fullmatch(name):
        raise Refused("Tailrace serves WSGI applications, but this worker is for ASGI; Django supports both")
    if name == "eventlet":
        raise Refused("Tailrace runs greenlets on gevent: set `gevent = true`, if no code imports eventlet itself")
    if name == "tornado":
        raise Refused("Tailrace has no tornado workers; a WSGI application runs in threads, or with `gevent = true`")
    raise Refused("Tailrace does not load worker classes; requests run in threads, or with `gevent = true`")


def worker_connections(value: object, others: Others) -> Mapping[str, Any]:
    """gunicorn's `worker_connections`: a limit of greenlets."""
    kind = str(others.get("worker_class", "sync"))
    if _GEVENT.fullmatch(kind):
        return {"max_greenlets": value}
    if kind == "gthread" or (kind == "sync" and "threads" in others):
        raise Refused("the limit of open files limits connections, up to 100,000 for each worker", is_needless=True)
    raise Refused("workers of this class do not use it", is_needless=True)


def gunicorn_timeout(value: object, others: Others) -> Mapping[str, Any]:
    """gunicorn's `timeout`: for `sync` the longest request, for others the longest silence of a worker."""
    is_sync = str(others.get("worker_class", "sync")) == "sync" and str(others.get("threads", "1")) == "1"
    if text(value).strip() == "0":
        return {"hang_timeout": 0}
    return {"request_timeout": value} if is_sync else {"hang_timeout": value}


def uwsgi_gevent(value: object, others: Others) -> Mapping[str, Any]:
    """uWSGI's `gevent`: the number of greenlets."""
    count = number(value)
    return {"gevent": True, "max_greenlets": count} if count > 0 else {}


def log_level(value: object, others: Others) -> Mapping[str, Any]:
    """A level of the logging module, or of Apache."""
    word = text(value).lower().partition(" ")[0]
    names = {"critical": "error", "warn": "warning", "notset": "debug", "notice": "info", "crit": "error"}
    return {"log_level": "debug" if word.startswith("trace") else names.get(word, word)}


def header_bytes(value: object, others: Others) -> Mapping[str, Any]:
    """The size of one field, or of a buffer: a limit for all fields, if it is above ours."""
    if number(value) > _LARGEST_HEAD:
        return {"header_bytes_limit": number(value)}
    raise Refused(
        "`header_bytes_limit` limits all header fields of a request together, to 64 KiB by default", is_needless=True
    )


# Static files and logs.


def static_map(value: object, others: Others) -> Mapping[str, Any]:
    """`static-map = /static=/srv/static`."""
    found = []
    for each in value if isinstance(value, list) else [value]:
        prefix, equals, folder = text(each).partition("=")
        if not equals:
            raise ValueError("must be PREFIX=FOLDER")
        found.append(f"{prefix.rstrip('/') or '/'}={folder}")
    return {"static": found}


def static_map2(value: object, others: Others) -> Mapping[str, Any]:
    """`static-map2`, where the folder contains one with the name of the prefix."""
    return {"static": [f"{each}{each.partition('=')[0].rstrip('/')}" for each in static_map(value, others)["static"]]}


def alias(value: object, others: Others) -> Mapping[str, Any]:
    """`--url-alias /static ./static`."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError("must be a path and a folder")
    return {"static": [f"{value[0]}={value[1]}"]}


def granian_static(value: object, others: Others) -> Mapping[str, Any]:
    """`--static-path-mount`, with the routes of `--static-path-route` in the same order."""
    folders, routes = (
        each if isinstance(each, list) else [each]
        for each in (others.get("static_path_mount", value), others.get("static_path_route", "/static"))
    )
    place = folders.index(value)
    if place >= len(routes):
        raise ValueError("must have its own --static-path-route")
    return {"static": [f"{routes[place]}={text(value)}"]}


def static_expires(value: object, others: Others) -> Mapping[str, Any]:
    """Expiry in seconds for all static files."""
    return {"static_cache": [f"/=public,{number(value)}s"]} if number(value) else {"static_cache": ["/=no-cache"]}


def log_file(value: object, others: Others) -> Mapping[str, Any]:
    """A file, or `-` for standard error, which is the default."""
    where = text(value)
    if where.startswith("udp:"):
        raise Refused("`log` sends to syslog over UDP, as syslog://HOST:514")
    return {} if where in ("-", "") else {"log": _file(where)}


def uwsgi_logger(ours: str) -> Conversion:
    """`req-logger = file:/var/log/requests.log`, and `logger` likewise; a name may stand in front."""

    def convert(value: object, others: Others) -> Mapping[str, Any]:
        kind, _, where = text(value).rpartition(" ")[2].partition(":")
        address, _, tag = where.partition(",")
        if kind == "file" and where:
            return {ours: _file(where)}
        if kind == "syslog":
            tag, _, facility = where.partition(",")
            return {ours: _syslog("", facility, tag)}
        if kind == "rsyslog" and address:
            return {ours: _syslog(f"//{address}", "", tag)}
        if kind == "stdio":
            return {ours: "stderr"}
        raise Refused(f"`{ours}` takes a file, stderr, stdout, syslog, syslog://HOST:514 or journal")

    return convert


def uwsgi_syslog(value: object, others: Others) -> Mapping[str, Any]:
    """`log-syslog`, or `log-syslog = tag`."""
    return {"log": _syslog("", "", "" if is_on(value) else text(value))}


def uwsgi_rsyslog(value: object, others: Others) -> Mapping[str, Any]:
    """`rsyslog = host:port`."""
    return {"log": _syslog(f"//{text(value)}", "", "")}


def gunicorn_syslog(value: object, others: Others) -> Mapping[str, Any]:
    """`syslog`, with `syslog_addr` and others. The access log goes there, too."""
    if not is_on(value):
        return {}
    # The default on Linux.
    scheme, _, address = text(others.get("syslog_addr", "udp://localhost:514")).partition("://")
    address = address.partition("#")[0]
    if scheme not in ("udp", "unix"):
        raise Refused(f"syslog is reached over UDP (syslog://HOST:514) or a UNIX socket, not over {scheme}")
    facility = text(others.get("syslog_facility", "user")).lower().removeprefix("log_")
    where = _syslog(f"//{address}" if scheme == "udp" else address, facility, text(others.get("syslog_prefix", "")))
    is_redirected = not is_on(others.get("disable_redirect_access_to_syslog", False))
    return {"log": where, **({"access_log": where} if is_redirected and "accesslog" not in others else {})}


def log_config(value: object, others: Others) -> Mapping[str, Any]:
    """A JSON file, as ours; a file in another format must be rewritten."""
    if text(value).endswith((".json", ".toml")):
        return {"log_config": value}
    raise Refused("`log_config` takes a file whose name ends with .json or .toml")


def _syslog(daemon: str, facility: str, tag: str) -> str:
    """A destination of ours. daemon: the path of a socket, or `//host:port`; empty: the usual socket."""
    options = [f"{name}={each}" for name, each in (("facility", facility), ("tag", tag)) if each]
    return "syslog" + f":{daemon}" * bool(daemon) + f"?{'&'.join(options)}" * bool(options)


def _file(path: str) -> str:
    """The path of a file, even if it has the name of another destination."""
    return path if "/" in path else f"./{path}"


def stats(value: object, others: Others) -> Mapping[str, Any]:
    """`stats`: TCP, or a UNIX socket without a prefix."""
    address = text(value)
    if _PORT.fullmatch(address):
        address = f"127.0.0.1:{address}"
    return {"status": address if re.search(r":[0-9]+$", address) else f"unix:{address}"}


def statsd(value: object, others: Others) -> Mapping[str, Any]:
    """`statsd_host`."""
    if text(value).startswith("unix:"):
        raise Refused("metrics are sent over UDP; give host:port")
    return {"statsd": value}
