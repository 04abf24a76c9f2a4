"""Events that servers share: how long one published on a server takes to the clients of another.

    python -m bench.shared_events redis://127.0.0.1:6379 [--subscribers 100] [--rate 200] [--seconds 10]

Two Tailrace servers with one worker each use the service at this URL as `--publish-bus`. Events are published on the
first one. The client (`bench/subscribers`, built with Cargo) checks on both that the IDs of each stream are
consecutive. Printed is its line of JSON for the first server, and then for the second one. `--rate 0`: as fast as one
publisher can.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench.event_streams import PEERS, Publisher, await_stream, free_ports
from bench.surviving_streams import QUIET, Publishing, subscribers

# How long the servers may take to know each other (seconds).
JOINING = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--subscribers", type=int, default=100)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    peer, both = PEERS["tailrace"], [free_ports(), free_ports()]
    environment = {**os.environ, "TAILRACE_PUBLISH_BUS": options.url}
    with contextlib.ExitStack() as stack:
        for ports in both:
            run = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = subprocess.Popen(peer.commands(Path(), run, ports)[0], env=environment)
            stack.callback(server.wait, 30)
            stack.callback(server.terminate)
            await_stream(peer, ports)
        time.sleep(JOINING)
        clients = [subscribers(ports, options.subscribers, options.seconds) for ports in both]
        publishing = Publishing(Publisher(peer, both[0]), options.rate or math.inf)
        publishing.start()
        time.sleep(options.seconds)
        publishing.over.set()
        publishing.join()
        time.sleep(QUIET)
        for client in clients:
            client.send_signal(signal.SIGTERM)
            assert client.stdout is not None
            print(client.stdout.read().strip())
        print(f"{publishing.count} events, {publishing.count / options.seconds:.0f} a second")


if __name__ == "__main__":
    main()
