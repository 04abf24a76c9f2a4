"""Server-Sent Events with very many subscribers: memory, latency, CPU time and lost events of several servers.

    python -m bench.event_streams [uvicorn gunicorn-gevent pushpin tailrace] [--subscribers 2000] [--rates 5,20,100]
        [--seconds 15] [--peers FOLDER]

Each server runs an application of `bench.event_apps`, pinned to core 0. On core 1, one process subscribes
(`bench/subscribers`, built with Cargo) and another one publishes. For each rate the server is started, all subscribers
connect, events are published for `--seconds`, and the client waits until nothing more arrives. Printed are:

- KiB each: the growth of the summed proportional set size (PSS) of the server's processes while all subscribers
  connect, divided by their number. The kernel's memory for sockets is not in it. If a server allocates memory for its
  maximum number of connections when it starts, only the next column shows it.
- MiB total: the summed PSS with all subscribers connected.
- p50, p99: from before the POST that publishes until the client has read the event. The client is one process, so
  the times contain its own work; "client" is its CPU share. Near 100 % it is what limits the rates.
- CPU: of the server's processes, per second of publishing. 1.00 is a whole core.
- Published: events that the server accepted in time, of the events of this rate. The publisher waits for each answer.
- Arrived: events that all subscribers received, of the events that were due, and the rate between the first and
  the last arrival.
- Lost: skipped IDs. Doubled: repeated IDs. Closed: streams that ended while events were published. Retried: connections
  that failed or ended before.

Needs gunicorn, gevent, uvicorn, uvloop and httptools (in `--peers`, the folder of their executables), and the Debian
package pushpin. The hard limit of open files (`ulimit -Hn`) has to exceed the number of subscribers by about 50.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from bench.memory import pss, session

HOST: Final = "127.0.0.1"
SERVER_CORE, CLIENT_CORE = 0, 1
ROOT: Final = Path(__file__).parents[3]
CLIENT: Final = ROOT / "target/subscribers/release/subscribers"
# Seconds: of a start, of a connection of all, and without an event after the last one was published.
START, CONNECT, QUIET, DRAIN = 20.0, 120.0, 3.0, 20.0
FILES: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@dataclass(frozen=True)
class Ports:
    """Where clients connect, where events are published, and where an application behind the server listens."""

    http: int
    publish: int
    backend: int


@dataclass(frozen=True)
class Peer:
    """How a server is started and published to. `commands` gets the folder of executables, that of a run, and ports."""

    commands: Callable[[Path, Path, Ports], list[list[str]]]
    grip: bool
    settings: str


def gunicorn_gevent(executables: Path, run: Path, ports: Ports) -> list[list[str]]:
    options = ["-k", "gevent", "-w", "1", "--worker-connections", "25000", "--backlog", "4096", "--timeout", "300"]
    return [[str(executables / "gunicorn"), "bench.event_apps:queues", *options, "-b", f"{HOST}:{ports.http}"]]


def uvicorn(executables: Path, run: Path, ports: Ports) -> list[list[str]]:
    options = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--lifespan", "off", "--backlog", "4096"]
    return [[str(executables / "uvicorn"), "bench.event_apps:asgi", *options, "--port", str(ports.http)]]


# Pushpin's default. Its Condure 1.9.1 panics when an event goes to nearly as many connections.
PUSHPIN_CONNECTIONS: Final = 50_000
PUSHPIN: Final = """
[global]
include={{libdir}}/internal.conf
rundir={run}
ipc_prefix=
[runner]
services=condure,pushpin-proxy,pushpin-handler
http_port={host}:{ports.http}
logdir={run}
log_level=1
client_buffer_size=8192
client_maxconn={maximum}
[proxy]
routesfile={run}/routes
zurl_out_specs=ipc://{run}/zurl-in
zurl_out_stream_specs=ipc://{run}/zurl-in-stream
zurl_in_specs=ipc://{run}/zurl-out
[handler]
push_in_spec=ipc://{run}/push
push_in_sub_specs=ipc://{run}/push-sub
push_in_http_addr={host}
push_in_http_port={ports.publish}
command_spec=ipc://{run}/command
stats_spec=ipc://{run}/stats
message_rate=0
message_hwm=0
connection_subscription_max=20
"""
ZURL: Final = """
[General]
in_spec=ipc://{run}/zurl-in
in_stream_spec=ipc://{run}/zurl-in-stream
out_spec=ipc://{run}/zurl-out
in_req_spec=ipc://{run}/zurl-req
defpolicy=allow
max_open_requests=2000
"""


def pushpin(executables: Path, run: Path, ports: Ports) -> list[list[str]]:
    """Pushpin requests the application through Zurl."""
    (run / "pushpin.conf").write_text(PUSHPIN.format(run=run, host=HOST, ports=ports, maximum=PUSHPIN_CONNECTIONS))
    (run / "routes").write_text(f"* {HOST}:{ports.backend}\n")
    (run / "zurl.conf").write_text(ZURL.format(run=run))
    threads = ["-k", "gthread", "-w", "1", "--threads", "8", "-b", f"{HOST}:{ports.backend}"]
    return [
        [str(executables / "gunicorn"), "bench.event_apps:grip", *threads],
        ["zurl", f"--config={run / 'zurl.conf'}"],
        ["pushpin", f"--config={run / 'pushpin.conf'}", "--merge-output"],
    ]


def tailrace(executables: Path, run: Path, ports: Ports) -> list[list[str]]:
    options = ["--workers", "1", "--bind", f"{HOST}:{ports.http}", "--publish-bind", f"{HOST}:{ports.publish}"]
    return [[sys.executable, "-m", "tailrace", "bench.event_apps:grip", *options]]


PEERS: Final = {
    "gunicorn-gevent": Peer(gunicorn_gevent, False, "1 gevent worker, 25,000 connections, a gevent queue each"),
    "uvicorn": Peer(uvicorn, False, "1 worker, uvloop, httptools, no access log, an asyncio queue each"),
    "pushpin": Peer(pushpin, True, "message_rate and message_hwm unlimited; Zurl; gunicorn gthread behind it"),
    "tailrace": Peer(tailrace, True, "1 worker"),
}


class Publisher:
    """Publishes events with consecutive IDs. Times are CLOCK_REALTIME in nanoseconds."""

    def __init__(self, peer: Peer, ports: Ports) -> None:
        self.grip = peer.grip
        self.path = "/publish/" if peer.grip else "/publish"
        self.connection = http.client.HTTPConnection(HOST, ports.publish if peer.grip else ports.http, timeout=30)

    def publish(self, number: int) -> None:
        data = {"t": time.time_ns(), "n": number, "text": "The quick brown fox jumps over the lazy dog"}
        event = f"id: {number}\ndata: {json.dumps(data)}\n\n"
        if self.grip:
            item = {"channel": "t", "id": str(number), "formats": {"http-stream": {"content": event}}}
            body = json.dumps({"items": [item | ({"prev-id": str(number - 1)} if number else {})]})
        else:
            body = event
        self.connection.request("POST", self.path, body, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        response.read()
        if response.status >= 300:
            raise ConnectionError(f"publishing was answered {response.status} {response.reason}")


def publish(peer: Peer, ports: Ports, rate: float, seconds: float, said: Connection) -> None:
    """A process. Reports how many events it published; fewer than due if the server does not take them in time."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    publisher = Publisher(peer, ports)
    said.send(0)
    start, count = time.monotonic(), 0
    try:
        while count < rate * seconds and time.monotonic() < start + seconds:
            time.sleep(max(0.0, start + count / rate - time.monotonic()))
            publisher.publish(count + 1)
            count += 1
    except (OSError, http.client.HTTPException) as error:
        print(f"publishing event {count + 1} failed: {error}", file=sys.stderr)
    else:
        said.send(count)


def free_ports() -> Ports:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(3)]
        return Ports(*(each.getsockname()[1] for each in sockets))


def await_stream(peer: Peer, ports: Ports) -> None:
    """Returns once an event with ID 0 went from the publisher to a subscriber."""
    end = time.monotonic() + START
    while True:
        subscriber = http.client.HTTPConnection(HOST, ports.http, timeout=5)
        try:
            subscriber.request("GET", "/events", headers={"Accept": "text/event-stream"})
            response = subscriber.getresponse()
            if response.status != 200:
                raise ConnectionError(f"subscribing was answered {response.status}")
            response.readline()
            Publisher(peer, ports).publish(0)
            while not (line := response.readline()).startswith(b"data:"):
                if not line:
                    raise ConnectionError("the stream ended")
            return
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > end:
                raise TimeoutError("the server did not deliver an event") from error
            time.sleep(0.2)
        finally:
            subscriber.close()


@contextlib.contextmanager
def started(peer: Peer, ports: Ports, executables: Path) -> Iterator[Callable[[], list[int]]]:
    """Runs the server. Gives a function that lists its processes."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        run = Path(name)
        log = stack.enter_context((run / "output.log").open("wb"))
        leaders: list[subprocess.Popen[bytes]] = []
        try:
            for command in peer.commands(executables, run, ports):
                pinned = ["taskset", "-c", str(SERVER_CORE), *command]
                leaders.append(subprocess.Popen(pinned, stdout=log, stderr=log, start_new_session=True))
            try:
                await_stream(peer, ports)
            except TimeoutError:
                sys.stderr.write((run / "output.log").read_text(errors="replace")[-3000:])
                raise
            yield lambda: [pid for leader in leaders for pid in session(leader.pid)]
        finally:
            for leader in reversed(leaders):
                leader.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    leader.wait(5)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(leader.pid, signal.SIGKILL)
                leader.wait()


def cpu_seconds(processes: list[int]) -> float:
    ticks = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Client:
    """The subscribers. Their progress is a line each second, of which the last one counts."""

    def __init__(self, count: int, connect_rate: int, ports: Ports, progress: Path) -> None:
        command = ["taskset", "-c", str(CLIENT_CORE), str(CLIENT), f"http://{HOST}:{ports.http}/events"]
        options = ["--count", str(count), "--connect-rate", str(connect_rate), "--first", "1"]
        self.progress = progress
        with progress.open("wb") as errors:
            self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors)

    def now(self) -> dict[str, Any]:
        if self.process.poll() is not None:
            raise ChildProcessError(self.progress.read_text()[-500:])
        lines = self.progress.read_text().splitlines(keepends=True)
        complete = [line for line in lines[-2:] if line.endswith("\n")]
        now: dict[str, Any] = json.loads(complete[-1]) if complete else {"open": 0}
        return now

    def await_open(self, count: int) -> dict[str, Any]:
        end = time.monotonic() + CONNECT
        while (now := self.now())["open"] < count:
            if time.monotonic() > end:
                raise TimeoutError(f"not all subscribers connected: {now}")
            time.sleep(0.5)
        return now

    def drain(self, expected: int) -> None:
        """Returns once all events arrived or no more do."""
        last, last_at = -1, time.monotonic()
        end = last_at + DRAIN
        while last < expected and time.monotonic() < min(last_at + QUIET, end):
            time.sleep(0.2)
            if (delivered := self.now()["delivered"]) > last:
                last, last_at = delivered, time.monotonic()

    def result(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=60)
        result: dict[str, Any] = json.loads(output)
        return result


def measured(peer: Peer, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    count, seconds = options.subscribers, options.seconds
    ports = free_ports()
    progress = Path(tempfile.gettempdir()) / f"subscribers-{os.getpid()}.log"
    with started(peer, ports, options.peers) as processes, contextlib.ExitStack() as stack:
        before = sum(map(pss, processes()))
        client = Client(count, options.connect_rate, ports, progress)
        stack.callback(progress.unlink)
        stack.callback(client.process.kill)
        connected = client.await_open(count)
        # Let the last heads be written, and the allocators rest.
        time.sleep(1)
        after = sum(map(pss, processes()))
        here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
        arguments = (peer, ports, rate, seconds, there)
        publisher = multiprocessing.get_context("spawn").Process(target=publish, args=arguments)
        publisher.start()
        there.close()
        try:
            here.recv()
            cpu, start = cpu_seconds(processes()), time.monotonic()
            published = here.recv()
        except EOFError:
            raise ChildProcessError("an event could not be published") from None
        cpu, took = cpu_seconds(processes()) - cpu, time.monotonic() - start
        publisher.join()
        to_publish = round(rate * seconds)
        client.drain(published * count)
        result = client.result()
        arriving = max(result["arriving"], 1 / rate)
        return result | {
            "rate": rate,
            "published": published,
            "to_publish": to_publish,
            "due": to_publish * count,
            "retried": connected["reconnects"],
            "closed": result["closed"] - connected["closed"],
            "kib_each": (after - before) * 1024 / count,
            "mib_total": after,
            "cpu": cpu / took,
            "arrived_per_second": result["delivered"] / arriving,
            "client": (result["cpu_seconds"] - connected["cpu_seconds"]) / arriving,
        }


HEADER: Final = (
    "| server | subscribers | events/s | KiB each | MiB total | p50 ms | p99 ms | CPU | published | arrived "
    "| arrived/s | lost | doubled | closed | retried | client |"
)


def row(name: str, run: dict[str, Any]) -> str:
    return (
        f"| {name} | {run['subscribers']:,} | {run['rate']:g} | {run['kib_each']:.1f} | {run['mib_total']:.0f} "
        f"| {run['p50_us'] / 1000:,.1f} | {run['p99_us'] / 1000:,.1f} | {run['cpu']:.2f} "
        f"| {run['published']:,} of {run['to_publish']:,} | {run['delivered']:,} of {run['due']:,} "
        f"({run['delivered'] / run['due']:.1%}) | {run['arrived_per_second']:,.0f} | {run['lost']:,} "
        f"| {run['doubled']:,} | {run['closed']:,} | {run['retried']:,} | {run['client']:.0%} |"
    )


def main() -> None:
    """Prints a table, with a row for each server and rate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers", nargs="*", default=list(PEERS), metavar="SERVER", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--subscribers", type=int, default=2_000, metavar="COUNT", help="(2,000)")
    parser.add_argument("--rates", default="20", metavar="RATES", help="events per second, separated by commas (20)")
    parser.add_argument("--seconds", type=float, default=15.0, metavar="SECONDS", help="of publishing (15)")
    parser.add_argument("--connect-rate", type=int, default=500, metavar="RATE", help="connections per second (500)")
    parser.add_argument("--peers", type=Path, default=Path(sys.executable).parent, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each run's figures to this file")
    options = parser.parse_args()
    if unknown := set(options.servers) - set(PEERS):
        parser.error(f"unknown servers: {', '.join(sorted(unknown))}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    build = ["cargo", "build", "--locked", "--quiet", "--release", "--target-dir", str(CLIENT.parents[1])]
    subprocess.run(build, cwd=Path(__file__).parent / "subscribers", check=True)
    print(HEADER, "|---" * HEADER.count(" |") + "|", sep="\n", flush=True)
    for name in options.servers:
        for rate in map(float, options.rates.split(",")):
            try:
                run = measured(PEERS[name], rate, options)
            except (OSError, http.client.HTTPException) as error:
                print(f"| {name} | {options.subscribers:,} | {rate:g} | failed: {error} |", flush=True)
                continue
            print(row(name, run), flush=True)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps({"server": name} | run) + "\n")
    print("", *(f"{name}: {PEERS[name].settings}." for name in options.servers), sep="\n")


if __name__ == "__main__":
    main()
