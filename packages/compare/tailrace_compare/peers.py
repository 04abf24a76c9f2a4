"""Every server of the comparison: its command as its own documentation recommends, and the reason for it.

A row never gives a server less than its documentation advises. If a server has threads or limits, a second row uses
Tailrace's defaults for them, so that a difference between defaults is visible as such. Access logs are off everywhere,
which is every server's default unless a flag here turns them off. `many` are the options that raise a server's limits
for scenarios with thousands of connections.

In a command {bin} is the directory of the server's command, {python} the environment's interpreter, {serve} the program
that starts servers without a command line, {app} the application as module:name, {module} and {name} its parts, {host}
and {port} the address, {socket} a UNIX socket, {state} a directory for the server's own files, {workers} the number of
processes, {threads} that of threads, {many} the place of the options of that name where it is not the end.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from tailrace_compare import nginx

TAILRACE = "tailrace"
TAILRACE_GEVENT = "tailrace gevent"
# Tailrace with an application that reads the files; the other servers send them by themselves.
VIEW = "tailrace, read by a view"
NGINX = "nginx"
# The standard library has it.
WSGIREF = "wsgiref"

# Tailrace's defaults: --threads, connections, the accept queue, --keepalive-timeout; with --gevent, requests at once.
THREADS = 128
CONNECTIONS = 100_000
BACKLOG = 2048
IDLE_SECONDS = 75
GREENLETS = 10_000
# Ends the names of the rows that repeat another row with these values.
AT_OUR_DEFAULTS = " at Tailrace's defaults"


@dataclass(frozen=True)
class Peer:
    """One way to run one server.

    name: in tables. package: the distribution whose version is reported; None for nginx.
    command: its command line. unix: the same on a UNIX socket; None where it cannot. scaled: what is added for more
    cores than one. why: the reason for the command, with its source. asked: takes part only where a scenario names it.
    calls_close: it calls `close()` of iterables; one that does not gets the application with `served.closing` around
    it, where there is one. of: the row that this one repeats at Tailrace's defaults.
    workers: processes for each core, and how many more. threads: the same of the threads of a process.
    needs: further distributions without which it does not run. beside: one that makes it faster; the version says
    whether it is there.
    """

    name: str
    package: str | None
    command: str
    why: str
    unix: str | None = None
    many: str = ""
    asked: bool = False
    calls_close: bool = True
    scaled: str = ""
    of: str = ""
    workers: tuple[int, int] = (1, 0)
    threads: tuple[int, int] = (0, 1)
    needs: tuple[str, ...] = ()
    beside: str = ""

    def version(self) -> str | None:
        """The installed version; None if the server or a dependency is not installed."""
        if self.package is None:
            return nginx.version()
        home = self.home()
        if any(version_of(name, home) is None for name in self.needs):
            return None
        found = version_of(self.package, home) or self.told_version()
        if found is None or not self.beside:
            return found
        faster = version_of(self.beside, home)
        return f"{found} with {self.beside} {faster}" if faster else f"{found} without {self.beside}"

    def program(self) -> str | None:
        """The server's own command; None if it has none."""
        found = re.search(r"\{bin\}/([\w-]+)", self.command)
        return found.group(1) if found else None

    def home(self) -> Path:
        """The environment that the server runs in: that of `--install` if it has the server, otherwise this one."""
        own = environment()
        is_there = self.package not in (None, TAILRACE, WSGIREF) and version_of(str(self.package), own) is not None
        return own if is_there else Path(sys.prefix)

    def directory(self) -> Path:
        """The directory that contains its command: in its environment, or on PATH."""
        here, program = commands(self.home()), self.program()
        if program is not None and not (here / program).exists() and (elsewhere := shutil.which(program)):
            return Path(elsewhere).parent
        return here

    def told_version(self) -> str | None:
        """The version that a command on PATH prints, which belongs to another environment."""
        program = self.program()
        if program is None or (path := shutil.which(program)) is None:
            return None
        try:
            told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        number = re.search(r"\d+(\.\w+)+", told.stdout + told.stderr)
        return f"{number.group(0)} on PATH" if number else "unknown version, on PATH"

    @property
    def first(self) -> str:
        """The name of the row that this one repeats, or its own: by it, scenarios know a server."""
        return self.of or self.name

    def arguments(self, over_unix: bool = False, many: bool = False, cores: int = 1, /, **values: str) -> list[str]:
        """The command line with its values filled in. Asks for `unix` only where there is one."""
        template = self.unix if over_unix and self.unix is not None else self.command
        line = as_ordinary_user() + template if self.package == "mod_wsgi" else template
        if cores > 1 and self.scaled:
            line += f" {self.scaled}"
        module, _, name = values["app"].partition(":")
        workers = cores * self.workers[0] + self.workers[1]
        if values["app"] in COUNTING:
            workers = 1
        if not self.calls_close and module in CLOSED:
            name = "closed"
            values["app"] = f"{module}:{name}"
        if "{many}" not in line:
            line += " {many}"
        values.setdefault("python", f"{values['bin']}/python")
        values.setdefault("prefix", str(self.home()))
        values |= {
            "module": module,
            "name": name,
            "workers": str(workers),
            "threads": str(cores * self.threads[0] + self.threads[1]),
        }
        program = shlex.quote(values["serve"]) if "serve" in values else "-m served.serve"
        line = line.replace("{many}", self.many if many else "").replace("{serve}", program)
        # Words first: a path may have a space.
        return [word.format(**values) for word in shlex.split(line)]

    def shown(self, app: str = "served.shapes:pong", cores: int = 1) -> str:
        """The command as a reader would type it from the repository root."""
        values = {"bin": ".venv/bin", "host": "127.0.0.1", "port": "8000", "socket": "/tmp/app.sock", "state": "/tmp/x"}
        return shlex.join(self.arguments(False, False, cores, app=app, **values))


# Applications that have a twin by the name of `closed`, which calls `close()` itself.
CLOSED = ("served.django_hello", "served.flask_hello")

# Applications that keep figures in their process, and are asked for them: they get one process of every server.
COUNTING = (
    "served.shapes:words",
    "served.shapes:deck_bytes",
    "served.shapes:payload",
    "served.shapes:growth",
    "served.shapes:crowd",
)


# And the group: Apache's, where this process is root.
ORDINARY_USER = ("nobody", "nogroup")


def as_ordinary_user() -> str:
    """Apache refuses to serve as root. As nobody it could not read an interpreter below /root: the one right to read
    any file is kept, and costs nothing while serving."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return ""
    keep = "--inh-caps +dac_read_search --ambient-caps +dac_read_search"
    user, group = ORDINARY_USER
    return f"setpriv --reuid {user} --regid {group} --clear-groups {keep} "


def version_of(package: str, home: Path | None = None) -> str | None:
    """The version of a distribution in the given environment, or in this one."""
    if package == WSGIREF:
        return f"of Python {platform.python_version()}"
    if package == NGINX:
        return nginx.version()
    if home is not None and home != Path(sys.prefix):
        return next((found.version for found in metadata.distributions(name=package, path=[str(packages(home))])), None)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def environment() -> Path:
    """The separate environment that `--install` creates for the other servers, so that this one remains unchanged.
    Its programs can also import the packages of this one."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "tailrace", f"servers-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]}")


def packages(home: Path) -> Path:
    """The directory of an environment's packages."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(home), "platbase": str(home)}))


GUNICORN = "{bin}/gunicorn --workers {workers} --no-control-socket "
# Its documentation, "Design", "How Many Workers?": (2 x cores) + 1.
GUNICORN_WORKERS = (2, 1)
# Keep-alive of two seconds and 1,000 connections are gunicorn's defaults behind a proxy.
GUNICORN_MANY = "--keep-alive 75 --worker-connections 20000"
GUNICORN_WHY = (
    "(2 x cores) + 1 workers (docs.gunicorn.org, Design, How many workers?). With gunicorn[fast], it uses its C parser "
    "(--http-parser auto, the default). The control socket is off, since it only adds a thread and a file."
)
UWSGI = (
    "{bin}/uwsgi --master --processes {workers} --threads {threads} --need-app --die-on-term --disable-logging"
    f" --listen 1024 {'--virtualenv {prefix}' if sys.prefix != sys.base_prefix else ''}"
    " --module {module} --callable {name} "
)
GRANIAN = "{bin}/granian --interface wsgi --workers {workers} "
MOD_WSGI = (
    "{bin}/mod_wsgi-express start-server --application-type module {module} --callable-object {name}"
    " --host {host} --port {port} --processes {workers} --threads {threads} --python-path . "
    "--limit-request-body 104857600 --server-root {state}/apache --log-to-terminal"
)
MOD_WSGI_MANY = "--max-clients 12000 --keep-alive-timeout 75 --server-backlog 4096 --daemon-backlog 4096"
QUICKSTART = (
    "one process per core with 2 threads (uwsgi-docs.readthedocs.io, Quickstart for Python/WSGI applications, Adding "
    "concurrency)"
)
ONE_PROCESS = "It has no worker processes, so it runs as one process on any number of cores."


RECOMMENDED = (
    Peer(
        TAILRACE,
        "tailrace",
        "{bin}/tailrace {app} --bind {host}:{port}",
        "All defaults: one process, which starts threads on demand. With several cores, one worker per core.",
        unix="{bin}/tailrace {app} --bind unix:{socket}",
        scaled="--workers {workers}",
    ),
    Peer(
        TAILRACE_GEVENT,
        "tailrace",
        "{bin}/tailrace {app} --gevent --bind {host}:{port}",
        "A greenlet for each request instead of a thread. Otherwise all defaults: up to 10,000 concurrent requests.",
        unix="{bin}/tailrace {app} --gevent --bind unix:{socket}",
        scaled="--workers {workers}",
        asked=True,
        needs=("gevent",),
    ),
    Peer(
        VIEW,
        "tailrace",
        "{bin}/tailrace {app} --bind {host}:{port}",
        "The application reads each file and returns it as one string.",
        asked=True,
    ),
    Peer(
        "gunicorn gthread",
        "gunicorn",
        GUNICORN + "--worker-class gthread --threads {threads} --bind {host}:{port} {app}",
        "4 threads per core; its documentation recommends 2 to 4 (setting `threads`). " + GUNICORN_WHY,
        unix=GUNICORN + "--worker-class gthread --threads {threads} --bind unix:{socket} {app}",
        many=GUNICORN_MANY,
        workers=GUNICORN_WORKERS,
        threads=(4, 0),
        beside="gunicorn_h1c",
    ),
    Peer(
        "gunicorn gevent",
        "gunicorn",
        GUNICORN + "--worker-class gevent --bind {host}:{port} {app}",
        "Greenlets instead of threads; up to 1,000 connections by default. " + GUNICORN_WHY,
        unix=GUNICORN + "--worker-class gevent --bind unix:{socket} {app}",
        many=GUNICORN_MANY,
        workers=GUNICORN_WORKERS,
        needs=("gevent",),
        beside="gunicorn_h1c",
    ),
    Peer(
        "gunicorn sync",
        "gunicorn",
        GUNICORN + "--bind {host}:{port} {app}",
        "Its default worker: one request at a time, no keep-alive. Its documentation recommends a buffering proxy in "
        "front. " + GUNICORN_WHY,
        unix=GUNICORN + "--bind unix:{socket} {app}",
        workers=GUNICORN_WORKERS,
        beside="gunicorn_h1c",
    ),
    Peer(
        "granian",
        "granian",
        GRANIAN + "--host {host} --port {port} {app}",
        "One worker per core. Its README (Workers and threads) advises against tuning the thread pool: 512 blocking "
        "threads with one worker.",
        unix=GRANIAN + "--uds {socket} {app}",
        many="--backlog 4096 --backpressure 20000",
    ),
    Peer(
        "uwsgi http",
        "uwsgi",
        UWSGI + "--http {host}:{port} --http-keepalive --http-auto-chunked",
        "Its documentation's setup without a web server (Things to know): the HTTP router in front of the workers, "
        f"{QUICKSTART}. Keep-alive needs --http-auto-chunked if a response has no length.",
        threads=(0, 2),
    ),
    Peer(
        "uwsgi http-socket",
        "uwsgi",
        UWSGI + "--http-socket {host}:{port}",
        f"Its workers speak HTTP without keep-alive, for use behind a proxy (Things to know); {QUICKSTART}.",
        unix=UWSGI + "--http-socket {socket}",
        threads=(0, 2),
    ),
    Peer(
        "uwsgi http11",
        "uwsgi",
        UWSGI + "--http11-socket {host}:{port}",
        f"Its workers speak HTTP/1.1: its fastest mode, hardly mentioned in its documentation; {QUICKSTART}.",
        unix=UWSGI + "--http11-socket {socket}",
        threads=(0, 2),
    ),
    Peer(
        "uwsgi behind nginx",
        "uwsgi",
        # In one process group, which is stopped as one.
        'sh -c \'nginx -p "$0" -c front.conf & exec "$@"\' {state} ' + UWSGI + "--socket {state}/front.sock",
        "The uwsgi protocol behind nginx, as in its quickstart (Putting behind a full webserver): nginx with one "
        f"worker per core, on the same cores; {QUICKSTART}.",
        threads=(0, 2),
        needs=(NGINX,),
    ),
    Peer(
        "waitress",
        "waitress",
        "{bin}/waitress-serve {many} --listen {host}:{port} {app}",
        f"All defaults: 4 threads, 100 connections (its documentation, Arguments). {ONE_PROCESS}",
        unix="{bin}/waitress-serve {many} --unix-socket {socket} {app}",
        many="--connection-limit 20000 --asyncore-use-poll",
    ),
    Peer(
        "cheroot",
        "cheroot",
        "{bin}/cheroot {app} --bind {host}:{port}",
        f"All defaults: 10 threads (cheroot.cli). {ONE_PROCESS}",
        unix="{bin}/cheroot {app} --bind {socket}",
        many="--timeout 75 --request-queue-size 4096",
    ),
    Peer(
        "gevent pywsgi",
        "gevent",
        "{python} {serve} gevent {app} {host}:{port}",
        f"The example in its guide: everything monkey-patched, serve_forever, no log. {ONE_PROCESS}",
        unix="{python} {serve} gevent {app} unix:{socket}",
        many="--backlog 4096",
    ),
    Peer(
        "bjoern",
        "bjoern",
        "{python} {serve} bjoern {app} {host}:{port}",
        "It has one function, run(), and one thread. With several cores, one process per core shares the port (README: "
        "reuse_port).",
        unix="{python} {serve} bjoern {app} unix:{socket}",
        scaled="--workers {workers}",
    ),
    Peer(
        "fastwsgi",
        "fastwsgi",
        "{python} {serve} fastwsgi {app} {host}:{port}",
        "`fastwsgi.run` as in its README, with one worker per core and one thread each. It never calls `close()`.",
        calls_close=False,
        scaled="--workers {workers}",
    ),
    Peer(
        "socketify",
        "socketify",
        "{python} -m socketify {app} --interface wsgi --host {host} --port {port} --workers {workers}",
        "The command in its documentation (docs.socketify.dev, CLI), with one worker per core and one thread each.",
        unix="{python} -m socketify {app} --interface wsgi --uds {socket} --workers {workers}",
    ),
    Peer(
        "pyruvate",
        "pyruvate",
        "{python} {serve} pyruvate {app} {host}:{port} --threads {threads}",
        "2 worker threads, as in the examples of its README; the number has no default. Connections are not reused, "
        f"which is the default (max_reuse_count). {ONE_PROCESS}",
        unix="{python} {serve} pyruvate {app} unix:{socket} --threads {threads}",
        threads=(0, 2),
    ),
    Peer(
        "paste",
        "Paste",
        "{python} {serve} paste {app} {host}:{port}",
        f"`paste.httpserver.serve` with its defaults: 10 threads, HTTP/1.0. {ONE_PROCESS}",
    ),
    Peer(
        WSGIREF,
        WSGIREF,
        "{python} {serve} wsgiref {app} {host}:{port}",
        "The reference server of the standard library: `make_server` as in its documentation, without its request log.",
    ),
    Peer(
        "mod_wsgi",
        "mod_wsgi",
        MOD_WSGI,
        "mod_wsgi-express in daemon mode, all defaults, with one process per core and 5 threads each. The client limit "
        "is 1.5 times the threads plus 10, at least 20 (--help; the 10 are in the code of 6.1). "
        "The body limit is raised, since its default of 10 MB rejects the upload.",
        many=MOD_WSGI_MANY,
        threads=(0, 5),
    ),
    Peer(
        "mod_wsgi embedded",
        "mod_wsgi",
        MOD_WSGI + " --embedded-mode",
        "mod_wsgi-express with the application in Apache's own processes: 5 threads by default, which also limit its "
        "clients (--help). The body limit is raised, since its default of 10 MB rejects the upload.",
        threads=(0, 5),
    ),
)


# The second rows: name, what is changed, further options. Later options win.
SECOND_ROWS = (
    (
        "gunicorn gthread",
        f"{THREADS} threads per worker, connection limit, keep-alive",
        f"--worker-connections {CONNECTIONS} --keep-alive {IDLE_SECONDS} --backlog {BACKLOG}",
    ),
    (
        "gunicorn gevent",
        "limit of concurrent requests, keep-alive",
        f"--worker-connections {GREENLETS} --keep-alive {IDLE_SECONDS} --backlog {BACKLOG}",
    ),
    (
        "granian",
        f"{THREADS} blocking threads, connection limit",
        f"--blocking-threads {THREADS} --backlog {BACKLOG} --backpressure {CONNECTIONS}",
    ),
    ("uwsgi http", f"{THREADS} threads", ""),
    ("uwsgi http-socket", f"{THREADS} threads", ""),
    ("uwsgi http11", f"{THREADS} threads", ""),
    ("uwsgi behind nginx", f"{THREADS} threads", ""),
    (
        "waitress",
        f"{THREADS} threads, connection limit (with poll, since select is limited to 1,024)",
        f"--threads {THREADS} --connection-limit {CONNECTIONS} --asyncore-use-poll --backlog {BACKLOG}",
    ),
    (
        "cheroot",
        f"{THREADS} threads, accept queue, keep-alive",
        f"--threads {THREADS} --request-queue-size {BACKLOG} --timeout {IDLE_SECONDS}",
    ),
    (
        "pyruvate",
        f"{THREADS} worker threads, connection reuse (255 times, its maximum)",
        "--reuse 255",
    ),
    ("paste", f"{THREADS} threads, accept queue", f"--threads {THREADS} --backlog {BACKLOG}"),
    (
        "mod_wsgi",
        f"{THREADS} threads, 1,024 clients (each occupies an Apache thread), keep-alive",
        f"--max-clients 1024 --keep-alive-timeout {IDLE_SECONDS} --server-backlog {BACKLOG} --daemon-backlog {BACKLOG}",
    ),
    (
        "mod_wsgi embedded",
        f"{THREADS} threads, keep-alive",
        f"--keep-alive-timeout {IDLE_SECONDS} --server-backlog {BACKLOG}",
    ),
)


def at_our_defaults(name: str, what: str, options: str) -> Peer:
    """The second row of a server."""
    peer = next(peer for peer in RECOMMENDED if peer.name == name)
    return replace(
        peer,
        name=f"{name}{AT_OUR_DEFAULTS}",
        command=with_options(peer.command, options),
        unix=None if peer.unix is None else with_options(peer.unix, options),
        why=f"As {name}, but with Tailrace's defaults: {what}.",
        of=name,
        threads=(0, THREADS),
    )


def with_options(template: str, options: str) -> str:
    """{many} marks the end of the options, if arguments follow."""
    if "{many}" in template:
        return template.replace("{many}", f"{options} {{many}}")
    return f"{template} {options}".rstrip()


# Each second row behind its first.
PEERS = tuple(
    row
    for peer in RECOMMENDED
    for row in (peer, *(at_our_defaults(*second) for second in SECOND_ROWS if second[0] == peer.name))
)

# Not a WSGI server: the floor for files.
FLOOR = Peer(
    NGINX,
    None,
    "nginx -p {state} -c nginx.conf",
    "One worker with sendfile and an open-file cache: the speed at which the operating system can deliver a file.",
)


def is_ours(name: str) -> bool:
    """Whether a row is one of Tailrace's, in any mode."""
    return name == TAILRACE or name.startswith((f"{TAILRACE} ", f"{TAILRACE},"))


def by_name(names: list[str]) -> tuple[Peer, ...]:
    """The rows with these names; a word of a name is enough ("gunicorn" is five rows). Raises ValueError."""

    def meant(peer: Peer, name: str) -> bool:
        return name == peer.name or name in peer.name.removesuffix(AT_OUR_DEFAULTS).split()

    for name in names:
        if not any(meant(peer, name) for peer in PEERS):
            raise ValueError(f"no such server: {name}; choose from {', '.join(peer.name for peer in RECOMMENDED)}")
    return tuple(peer for peer in PEERS if any(meant(peer, name) for name in names))


def commands(home: Path | None = None) -> Path:
    """The directory of an environment's commands; of this one, a virtual environment's own, not its interpreter's."""
    return Path(sys.executable).parent if home is None or home == Path(sys.prefix) else home / "bin"
