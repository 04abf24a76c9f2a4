"""Use of the server's core during a measurement: by the server, and by other processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tailrace_compare import machine
from tailrace_compare.launch import Server


@dataclass
class Use:
    """Seconds by the clock, of the server's processes, and of anybody else on the server's core (the hypervisor's other
    guests included). Complete when the `with` has ended."""

    seconds: float = 0.0
    server: float = 0.0
    others: float = 0.0

    def told(self) -> str:
        """As text for the notes."""
        if not self.seconds:
            return ""
        server, others = 100 * self.server / self.seconds, 100 * self.others / self.seconds
        return f"server {server:.0f}% of its core, other processes {others:.0f}%"


@contextlib.contextmanager
def watched(server: Server) -> Iterator[Use]:
    use = Use()
    used = server.processor_seconds()
    idle, begun = machine.idle_seconds(machine.SERVER_CORE), time.perf_counter()
    try:
        yield use
    finally:
        use.seconds = time.perf_counter() - begun
        idle = machine.idle_seconds(machine.SERVER_CORE) - idle
        use.server = server.processor_seconds() - used
        use.others = max(0.0, use.seconds - idle - use.server)
