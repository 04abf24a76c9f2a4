"""The ports that tests get from the harness, beside other tests and whatever else runs on the machine."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
COUNT = 100
# Prints as many ports, and keeps them until its input ends.
ASKS = """
import sys
from harness.addresses import free_address
print(*[free_address().port for _ in range(int(sys.argv[1]))], flush=True)
sys.stdin.read()
"""


def bound():
    """A socket to which the kernel gives a port as it does to a server that asks for port 0."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind(("127.0.0.1", 0))
    return opened


def test_no_port_is_given_twice_by_two_processes_of_tests_and_the_kernel():
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with contextlib.ExitStack() as stack:
        asking = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", ASKS, str(COUNT)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        by_kernel = [server.getsockname()[1]]

        def have_the_kernel_choose():
            for _ in range(COUNT):
                client = stack.enter_context(socket.create_connection(server.getsockname()))
                by_kernel.append(client.getsockname()[1])
                by_kernel.append(stack.enter_context(bound()).getsockname()[1])

        # While the two ask, and once they have their ports.
        have_the_kernel_choose()
        given = [int(port) for each in asking for port in each.stdout.readline().split()]
        have_the_kernel_choose()
    assert len(given) == 2 * COUNT
    assert len(given) == len(set(given))
    assert not set(given) & set(by_kernel)
