"""2.5 MB in blocks of several sizes over one transport: the time in the application, and at the client.

The transports are TCP, a UNIX socket, and nginx in front of a UNIX socket. nginx speaks the uwsgi protocol with servers
that support it, and HTTP with the others. It shares the client's core.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tailrace_compare import checks, curl, machine, nginx
from tailrace_compare.checks import Expected, Wrong
from tailrace_compare.launch import HOST, Server, free_port
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.fetch import MAX_FAILURES, Fetch
from tailrace_compare.scenarios.scenario import Ask

FETCHES = 5
NGINX_SECONDS = 5.0
# Beside the usual address; the path is in the folder in which a server runs.
UWSGI_SOCKET = "uwsgi.sock"
CONFIGURATION = """
worker_processes 1;
daemon off;
pid {state}/carried.pid;
error_log {state}/carried.log warn;
{user}
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {state}/carried-body;
    proxy_temp_path {state}/carried-proxy;
    fastcgi_temp_path {state}/carried-fastcgi;
    uwsgi_temp_path {state}/carried-uwsgi;
    scgi_temp_path {state}/carried-scgi;
    server {{
        listen {host}:{port};
        location / {{ {pass_} }}
    }}
}}
"""
# What nginx's file uwsgi_params has, as far as these applications read it.
UWSGI_PASS = """
uwsgi_pass unix:{socket};
uwsgi_param QUERY_STRING $query_string;
uwsgi_param REQUEST_METHOD $request_method;
uwsgi_param CONTENT_TYPE $content_type;
uwsgi_param CONTENT_LENGTH $content_length;
uwsgi_param REQUEST_URI $request_uri;
uwsgi_param PATH_INFO $document_uri;
uwsgi_param SERVER_PROTOCOL $server_protocol;
uwsgi_param REQUEST_SCHEME $scheme;
uwsgi_param REMOTE_ADDR $remote_addr;
uwsgi_param SERVER_PORT $server_port;
uwsgi_param SERVER_NAME $server_name;
"""
HTTP_PASS = """
proxy_pass http://unix:{socket};
proxy_http_version 1.1;
proxy_set_header Connection "";
proxy_set_header Host $http_host;
"""


@dataclass(frozen=True)
class Carried(Fetch):
    """sizes: block sizes. front: through nginx. A server with additional `flags` also listens on UWSGI_SOCKET.

    metrics: for each size, milliseconds at the client and in the application.
    """

    sizes: tuple[int, ...] = (128, 1024, 8192, 65536)
    front: bool = False

    def load(self, server: Server, ask: Ask) -> Sample:
        with self.reached(server) as (url, path):
            keys = iter(metric.key for metric in self.metrics)
            values: dict[str, float] = {}
            failures: list[str] = []
            for size in self.sizes:
                client, application = next(keys), next(keys)
                self.times(server)
                taken, failed = self.fetches(f"{url}/{size}", path, ask.seconds)
                failures += failed
                told = self.times(server)
                values |= {client: median(taken)} if taken else {}
                values |= {application: median(told)} if taken and told else {}
        return Sample(values, len(failures), "; ".join(dict.fromkeys(failures)))

    def fetches(self, url: str, path: str | None, seconds: float) -> tuple[list[float], list[str]]:
        """Milliseconds, and what failed."""
        taken: list[float] = []
        failures: list[str] = []
        end = time.perf_counter() + seconds
        size = len(self.expected(self.sizes[0]).body or b"")
        while len(taken) < FETCHES and len(failures) < MAX_FAILURES:
            one = curl.fetch(url, size, path)
            if one.failure:
                failures.append(one.failure)
            else:
                taken.append(one.ms)
            if time.perf_counter() > end:
                break
        return taken, failures

    @contextlib.contextmanager
    def reached(self, server: Server) -> Iterator[tuple[str, str | None]]:
        """The URL for the client, and the UNIX socket, if one is used. Raises Wrong, OSError."""
        if not self.front:
            yield server.url, server.socket
            return
        speaks_uwsgi = bool(self.extra(server.peer))
        upstream = str(server.state / "path" / UWSGI_SOCKET) if speaks_uwsgi else str(server.socket)
        port = free_port()
        configuration = CONFIGURATION.format(
            state=server.state,
            user="user root;" if os.getuid() == 0 else "",
            host=HOST,
            port=port,
            pass_=(UWSGI_PASS if speaks_uwsgi else HTTP_PASS).format(socket=upstream),
        )
        (server.state / "carried.conf").write_text(configuration)
        line = ["taskset", "-c", str(machine.LOAD_CORE), nginx.find() or "nginx"]
        line += ["-p", str(server.state), "-c", "carried.conf", "-e", "carried.log"]
        with subprocess.Popen(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                await_port(port)
                try:
                    checks.check(lambda: socket.create_connection((HOST, port), 5.0), self.expected(self.sizes[0]))
                except Wrong as wrong:
                    raise Wrong(f"behind nginx, {wrong.args[0]}") from wrong
                yield f"http://{HOST}:{port}", None
            finally:
                process.terminate()

    def expected(self, size: int) -> Expected:
        return checks.of_application(self.app, f"/{size}")

    def answers(self, server: Server) -> tuple[Expected, ...]:
        return tuple(self.expected(size) for size in self.sizes)

    def floor_values(self, milliseconds: float) -> dict[str, float]:
        """Of the smallest blocks."""
        return {self.metrics[1].key: milliseconds}

    def reproduce(self) -> str:
        unix = "/tmp/app.sock" if self.over_unix and not self.front else None
        return shlex.join(curl.command(f"http://127.0.0.1:8000/{self.sizes[0]}", unix))


def await_port(port: int) -> None:
    """Raises OSError when nothing listens there in time."""
    end = time.perf_counter() + NGINX_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), 1.0).close()
            return
        except OSError:
            if time.perf_counter() > end:
                raise
            time.sleep(0.01)
