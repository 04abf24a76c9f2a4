"""Every server of the comparison: how its own documentation runs it with one process and 8 threads, and why so.

A row may name what a command needs and no more: a peer is never given less than its documentation advises. Access logs
are off everywhere, which is every server's default unless a flag says so here. `many` are the options that raise a
peer's limits where a scenario holds thousands of connections.

In a command {bin} is the environment's directory of commands, {app} the application as module:name, {module} and
{name} its parts, {host} and {port} the address, {socket} a UNIX socket, {state} a directory for the server's own files,
{many} the place of the options of that name where it is not the end.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tailrace.compare import nginx

TAILRACE = "tailrace"
TAILRACE_GEVENT = "tailrace gevent"
# Tailrace, where an application reads the files that the others serve themselves.
VIEW = "tailrace, read by a view"
OURS = (TAILRACE, TAILRACE_GEVENT)
NGINX = "nginx"


@dataclass(frozen=True)
class Peer:
    """One way to run one server.

    name: in tables. package: the distribution whose version is reported; None for a Debian package.
    command: its command line. unix: the same on a UNIX socket; None where it cannot.
    why: the reason for each flag. asked: takes part only where a scenario names it. calls_close: it calls
    `close()` of iterables; one that does not gets the application with `served.closing` around it, where there is one.
    """

    name: str
    package: str | None
    command: str
    why: str
    unix: str | None = None
    many: str = ""
    asked: bool = False
    calls_close: bool = True

    def version(self) -> str | None:
        """The installed version, None when it is not installed."""
        if self.package is None:
            return nginx.version()
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def arguments(self, over_unix: bool = False, many: bool = False, **values: str) -> list[str]:
        """The command line with its values filled in. Asks for `unix` only where there is one."""
        template = self.unix if over_unix and self.unix is not None else self.command
        line = as_ordinary_user() + template if self.package == "mod_wsgi" else template
        module, _, name = values["app"].partition(":")
        if not self.calls_close and module in CLOSED:
            name = "closed"
            values["app"] = f"{module}:{name}"
        if "{many}" not in line:
            line += " {many}"
        return shlex.split(line.format(module=module, name=name, many=self.many if many else "", **values))

    def shown(self, app: str = "served.shapes:pong") -> str:
        """The command as a reader would type it from the repository root."""
        line = self.arguments(
            app=app, bin=".venv/bin", host="127.0.0.1", port="8000", socket="/tmp/app.sock", state="/tmp/x"
        )
        return shlex.join(line)


# Applications that have a twin by the name of `closed`, which calls `close()` itself.
CLOSED = ("served.django_hello", "served.flask_hello")


def as_ordinary_user() -> str:
    """Apache refuses to serve as root. As nobody it could not read an interpreter below /root: the one right to read
    any file is kept, and costs nothing while serving."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return ""
    keep = "--inh-caps +dac_read_search --ambient-caps +dac_read_search"
    return f"setpriv --reuid nobody --regid nogroup --clear-groups {keep} "


GUNICORN = "{bin}/gunicorn --workers 1 --no-control-socket "
# Keep-alive of two seconds and 1,000 connections are gunicorn's defaults behind a proxy.
GUNICORN_MANY = "--keep-alive 75 --worker-connections 20000"
UWSGI = (
    "{bin}/uwsgi --master --processes 1 --threads 8 --need-app --die-on-term --disable-logging --listen 1024"
    " --virtualenv {bin}/.. --module {app} "
)
GRANIAN = "{bin}/granian --interface wsgi --workers 1 --blocking-threads 8 "

PEERS = (
    Peer(
        TAILRACE,
        "tailrace",
        "{bin}/tailrace {app} --bind {host}:{port}",
        "All defaults: one process, threads as the application needs them.",
        unix="{bin}/tailrace {app} --bind unix:{socket}",
    ),
    Peer(
        TAILRACE_GEVENT,
        "tailrace",
        "{bin}/tailrace {app} --gevent --bind {host}:{port}",
        "A greenlet for each request in place of a thread; all else by default, 10,000 requests at once included.",
        unix="{bin}/tailrace {app} --gevent --bind unix:{socket}",
        asked=True,
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
        GUNICORN + "--worker-class gthread --threads 8 --bind {host}:{port} {app}",
        "Its documentation: gthread for applications that wait, one process here. The control socket only adds a "
        "thread and a file.",
        unix=GUNICORN + "--worker-class gthread --threads 8 --bind unix:{socket} {app}",
        many=GUNICORN_MANY,
    ),
    Peer(
        "gunicorn gevent",
        "gunicorn",
        GUNICORN + "--worker-class gevent --bind {host}:{port} {app}",
        "Greenlets in place of threads; 1,000 connections by default.",
        unix=GUNICORN + "--worker-class gevent --bind unix:{socket} {app}",
        many=GUNICORN_MANY,
    ),
    Peer(
        "gunicorn sync",
        "gunicorn",
        GUNICORN + "--bind {host}:{port} {app}",
        "Its default worker: one request at a time, no keep-alive. Its documentation wants a proxy in front.",
        unix=GUNICORN + "--bind unix:{socket} {app}",
    ),
    Peer(
        "granian",
        "granian",
        GRANIAN + "--host {host} --port {port} {app}",
        "Its documentation: for WSGI set the blocking threads, leave runtime threads at their default.",
        unix=GRANIAN + "--uds {socket} {app}",
        many="--backlog 4096 --backpressure 20000",
    ),
    Peer(
        "uwsgi http",
        "uwsgi",
        UWSGI + "--http {host}:{port} --http-keepalive",
        "Its quickstart's way to face clients without a web server: the HTTP router in front of the workers.",
    ),
    Peer(
        "uwsgi http11",
        "uwsgi",
        UWSGI + "--http11-socket {host}:{port}",
        "Its workers speak HTTP/1.1 themselves: the fast way, which its documentation hardly mentions.",
        unix=UWSGI + "--http11-socket {socket}",
    ),
    Peer(
        "waitress",
        "waitress",
        "{bin}/waitress-serve --threads 8 {many} --listen {host}:{port} {app}",
        "All defaults but the threads.",
        unix="{bin}/waitress-serve --threads 8 --unix-socket {socket} {app}",
        many="--connection-limit 20000 --asyncore-use-poll",
    ),
    Peer(
        "cheroot",
        "cheroot",
        "{bin}/cheroot {app} --bind {host}:{port} --threads 8",
        "All defaults but the threads (10).",
        unix="{bin}/cheroot {app} --bind {socket} --threads 8",
        many="--timeout 75 --request-queue-size 4096",
    ),
    Peer(
        "gevent pywsgi",
        "gevent",
        "{bin}/python -m served.serve gevent {app} {host}:{port}",
        "Its guide's example: everything patched, serve_forever, no log.",
        unix="{bin}/python -m served.serve gevent {app} unix:{socket}",
        many="--backlog 4096",
    ),
    Peer(
        "bjoern",
        "bjoern",
        "{bin}/python -m served.serve bjoern {app} {host}:{port}",
        "It has one function, run(), and one thread.",
        unix="{bin}/python -m served.serve bjoern {app} unix:{socket}",
    ),
    Peer(
        "fastwsgi",
        "fastwsgi",
        "{bin}/fastwsgi {app} --host {host} --port {port}",
        "Its documentation's command. One thread. It never calls `close()`.",
        calls_close=False,
    ),
    Peer(
        "socketify",
        "socketify",
        "{bin}/python -m socketify {app} --interface wsgi --host {host} --port {port} --workers 1",
        "Its documentation's command. One thread.",
        unix="{bin}/python -m socketify {app} --interface wsgi --uds {socket} --workers 1",
    ),
    Peer(
        "mod_wsgi",
        "mod_wsgi",
        "{bin}/mod_wsgi-express start-server --application-type module {module} --callable-object {name}"
        " --host {host} --port {port} --processes 1 --threads 8 --python-path . --limit-request-body 104857600"
        " --server-root {state}/apache --log-to-terminal",
        "Daemon mode, its default. The body limit of 10 MB would refuse the upload.",
        many="--max-clients 12000 --keep-alive-timeout 75 --server-backlog 4096 --daemon-backlog 4096",
    ),
)

# Not a WSGI server: the floor for files.
FLOOR = Peer(
    NGINX,
    None,
    "nginx -p {state} -c nginx.conf",
    "One worker with sendfile and an open-file cache: what the operating system can do with a file.",
)


def by_name(names: list[str]) -> tuple[Peer, ...]:
    """The rows with these names; a word of a name is enough ("gunicorn" is three rows). Raises ValueError."""
    found = [peer for peer in PEERS if any(name == peer.name or name in peer.name.split() for name in names)]
    for name in names:
        if not any(name == peer.name or name in peer.name.split() for peer in PEERS):
            raise ValueError(f"no such server: {name} (there are {', '.join(peer.name for peer in PEERS)})")
    return tuple(found)


def commands() -> Path:
    """The directory of this environment's commands; a virtual environment's own, not its interpreter's."""
    return Path(sys.executable).parent
