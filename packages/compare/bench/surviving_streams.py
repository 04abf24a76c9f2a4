"""Event streams over reloads, crashes and upgrades: how many of them end, and how many events are lost or doubled.

    python -m bench.surviving_streams [--subscribers 2000] [--rate 20] [--seconds 40]

Tailrace serves `bench.event_apps:grip` with two workers. While events are published to all subscribers, the workers are
replaced 20 times (SIGHUP), 5 workers are killed, and a new master takes over twice (SIGUSR2). The client
(`bench/subscribers`, built with Cargo) checks that the IDs of each stream are consecutive. Printed is its line of JSON.

A publication fails if the worker that handles it is killed; it is then published again with the same ID. So a worker
that was killed after it had passed the event on would show as a doubled event.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bench.event_streams import CLIENT, HOST, PEERS, START, Ports, Publisher, await_stream, free_ports

RELOADS, CRASHES, UPGRADES = 20, 5, 2
# Connections a second, and seconds that the last events may take.
CONNECT_RATE, QUIET = 1500, 4.0
_READY: Final = re.compile(r"worker \d+ \(pid (\d+)\) ready")


class Publishing(threading.Thread):
    """Publishes consecutive events at a rate until it is stopped."""

    def __init__(self, publisher: Publisher, rate: float) -> None:
        super().__init__()
        self.publisher, self.rate = publisher, rate
        self.count = self.failed = 0
        self.over = threading.Event()

    def run(self) -> None:
        start = time.monotonic()
        while not self.over.wait(max(0.0, start + self.count / self.rate - time.monotonic())):
            try:
                self.publisher.publish(self.count + 1)
            except (OSError, http.client.HTTPException):
                self.failed += 1
                self.publisher.connection.close()
            else:
                self.count += 1


def subscribers(ports: Ports, count: int, seconds: float) -> subprocess.Popen[str]:
    """The client, once all of its streams are open. seconds: how long events will be published."""
    arguments = ["--count", count, "--connect-rate", CONNECT_RATE, "--first", 1]
    arguments += ["--seconds", 4 * count / CONNECT_RATE + seconds + 60]
    client = subprocess.Popen(
        [str(CLIENT), f"http://{HOST}:{ports.http}/events", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert client.stderr is not None
    for line in client.stderr:
        if f'"open": {count},' in line:
            break
    # The pipe must not fill up.
    threading.Thread(target=client.stderr.read, daemon=True).start()
    return client


def disturb(master: Path, log: Path, seconds: float) -> None:
    """Reloads, kills and upgrades, evenly over the time."""
    pause = seconds / (RELOADS + CRASHES + UPGRADES)
    killed: set[int] = set()
    for _ in range(RELOADS):
        os.kill(int(master.read_text()), signal.SIGHUP)
        time.sleep(pause)
    for _ in range(CRASHES):
        killed.add(kill_newest(log, killed))
        time.sleep(pause)
    for _ in range(UPGRADES):
        os.kill(int(master.read_text()), signal.SIGUSR2)
        time.sleep(pause)


def kill_newest(log: Path, killed: Collection[int]) -> int:
    """Kills the worker that became ready last, and returns its process ID. If it has ended already, waits for its
    successor. killed: process IDs of workers that may not have been reaped yet."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        newest = int(_READY.findall(log.read_text())[-1])
        if newest not in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(newest, signal.SIGKILL)
                return newest
        time.sleep(0.01)
    raise TimeoutError(f"no worker is ready:\n{log.read_text()[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--subscribers", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    ports = free_ports()
    peer = PEERS["tailrace"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        master, log = run / "master.pid", run / "output.log"
        command = peer.commands(Path(), run, ports)[0]
        command[command.index("--workers") + 1] = "2"
        with log.open("wb") as output:
            server = subprocess.Popen([*command, "--pidfile", str(master)], stdout=output, stderr=output)
        await_stream(peer, ports)
        client = subscribers(ports, options.subscribers, options.seconds)
        publishing = Publishing(Publisher(peer, ports), options.rate)
        publishing.start()
        disturb(master, log, options.seconds)
        publishing.over.set()
        publishing.join()
        time.sleep(QUIET)
        client.send_signal(signal.SIGTERM)
        assert client.stdout is not None
        print(client.stdout.read().strip())
        print(f"{publishing.count} events, {publishing.failed} publications repeated", file=sys.stderr)
        os.kill(int(master.read_text()), signal.SIGTERM)
        server.wait(30)


if __name__ == "__main__":
    main()
