"""An application with several kinds of views under load, and a visitor of its short page beside."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from tailrace_compare.answer import receive
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample, percentile
from tailrace_compare.scenarios.rate import Rate
from tailrace_compare.scenarios.scenario import Ask

# Between two requests of the visitor.
PROBE_NS = 20_000_000


@dataclass
class Visitor:
    """Requests the short page at fixed times on one connection while the `with` lasts.

    times: from when a request was due until its answer, in nanoseconds: one that has to wait for the answer before is
    late for the visitor, too.
    """

    server: Server
    times: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __enter__(self) -> None:
        self.ended = threading.Event()
        self.due = time.perf_counter_ns()
        self.thread = threading.Thread(target=self.visit)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def visit(self) -> None:
        while not self.ended.is_set():
            try:
                self.visit_on_one_connection()
            except OSError as error:
                self.errors.append(str(error) or type(error).__name__)
                self.ended.wait(PROBE_NS / 1e9)
                self.due = time.perf_counter_ns()

    def visit_on_one_connection(self) -> None:
        """Returns when the server closes the connection after an answer, too. Raises OSError."""
        with self.server.connect() as connection:
            closes = False
            while not closes and not self.ended.wait(max(self.due - time.perf_counter_ns(), 0) / 1e9):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                answer = receive(connection)
                if answer.status != 200:
                    raise OSError(f"the visitor got status {answer.status}")
                self.times.append(time.perf_counter_ns() - self.due)
                self.due += PROBE_NS
                closes = answer.closes


@dataclass(frozen=True)
class Mix(Rate):
    """metrics: the rate, and the 99th percentile of the visitor's answers in milliseconds."""

    def load(self, server: Server, ask: Ask) -> Sample:
        visitor = Visitor(server)
        with visitor:
            sample = super().load(server, ask)
        rate = self.metrics[0].key
        values = {rate: sample.values[rate]} if rate in sample.values else {}
        if visitor.times:
            values[self.metrics[1].key] = percentile(visitor.times, 0.99) / 1e6
        notes = (sample.note, *visitor.errors[:1])
        errors = sample.errors + len(visitor.errors)
        return replace(sample, values=values, errors=errors, note=", ".join(filter(None, notes)))
