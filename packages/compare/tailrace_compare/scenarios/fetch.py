"""Milliseconds for one complete response, by curl; and the time in the application, if it measures that."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from statistics import median

from tailrace_compare import checks, curl
from tailrace_compare.checks import Expected
from tailrace_compare.launch import Server
from tailrace_compare.results import Sample
from tailrace_compare.scenarios.scenario import Ask, Scenario
from tailrace_compare.served import files

MAX_FETCHES = 15
# A failing fetch is tried no more often in one round.
MAX_FAILURES = 2


@dataclass(frozen=True)
class Fetch(Scenario):
    """timed: the second metric is the time from the call of the application to close(), as reported by `/times`.
    upload: the file of served.files to send; the application answers its length.
    """

    timed: bool = False
    upload: str | None = None

    def load(self, server: Server, ask: Ask) -> Sample:
        (answer,) = self.answers(server)
        size = len(answer.body or b"")
        if self.timed and server.peer.package is not None:
            # What the checks have left there.
            self.times(server)
        sent = files.DIRECTORY / self.upload if self.upload else None
        end = time.perf_counter() + ask.seconds
        taken: list[float] = []
        failures: list[str] = []
        while len(taken) < MAX_FETCHES and len(failures) < MAX_FAILURES:
            one = curl.fetch(server.url + answer.path, size, server.socket, sent)
            if one.failure:
                failures.append(one.failure)
            else:
                taken.append(one.ms)
            if time.perf_counter() > end:
                break
        values = {self.metrics[0].key: median(taken)} if taken else {}
        note = failures[0] if failures else ""
        if self.timed and server.peer.package is not None and taken:
            told = self.times(server)
            if told:
                values[self.metrics[1].key] = median(told)
            else:
                note = note or "close() was not called"
        return Sample(values, len(failures), note)

    def times(self, server: Server) -> list[float]:
        """The measurements of the application since the last request for them."""
        try:
            told = json.loads(curl.body(server.url + "/times", server.socket))
        except ValueError:
            return []
        return [float(each) for each in told]

    def answers(self, server: Server) -> tuple[Expected, ...]:
        if not self.upload:
            return super().answers(server)
        sent = (files.DIRECTORY / self.upload).read_bytes()
        fields = ("Content-Type: application/x-bytes",)
        return (checks.of_application(self.app, self.path, method="POST", fields=fields, sent=sent),)

    def floor_values(self, milliseconds: float) -> dict[str, float]:
        return {self.metrics[-1].key: milliseconds}

    def reproduce(self) -> str:
        sent = files.DIRECTORY / self.upload if self.upload else None
        line = curl.command(f"http://127.0.0.1:8000{self.path}", "/tmp/app.sock" if self.over_unix else None, sent)
        return shlex.join(line).replace(str(files.DIRECTORY), "~/.cache/tailrace")
