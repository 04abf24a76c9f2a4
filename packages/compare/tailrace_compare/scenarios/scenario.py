"""A scenario: an application, a kind of load, and metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace_compare import checks
from tailrace_compare.checks import Expected, Wrong
from tailrace_compare.launch import SERVED, Place, Server
from tailrace_compare.peers import Peer
from tailrace_compare.results import Metric, Sample
from tailrace_compare.served import files


@dataclass(frozen=True)
class Ask:
    """The duration of the load in a round, in seconds; `quick` reduces whatever else is counted."""

    seconds: float
    quick: bool


@dataclass(frozen=True)
class Scenario:
    """One row of the table of scenarios; subclasses define the measurement.

    name: on the command line. group: the table that shows its figures. app: as module:name.
    meaning: what the figures mean to an operator, in a sentence or two.
    rounds: maximum number, if more would not help. fresh: each round needs a newly started server.
    nginx: the path under which nginx delivers the same bytes; None if nginx does not take part.
    generator: of served.shapes, whose iteration is the floor.
    among: the servers that take part, if a round is long; empty for all that are not `asked`. also: additional
    servers. flags: additional options, by server. asked: measured only if its name or its group is requested.
    all_cores: the server has a worker per core, and neither it nor its client is pinned. place: the location of the
    application.
    """

    name: str
    title: str
    group: str
    app: str
    metrics: tuple[Metric, ...]
    meaning: str = ""
    path: str = "/"
    over_unix: bool = False
    many: bool = False
    fresh: bool = False
    rounds: int | None = None
    nginx: str | None = None
    generator: str | None = None
    among: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    asked: bool = False
    all_cores: bool = False
    place: Place = SERVED

    def admits(self, peer: Peer) -> bool:
        """Whether a server takes part. A second row takes part if its first row does."""
        usual = peer.first in self.among if self.among else not peer.asked
        return usual or peer.first in self.also

    def at_once(self) -> int:
        """The number of concurrent clients."""
        return 1

    def extra(self, peer: Peer) -> str:
        """The additional options of one server."""
        return dict(self.flags).get(peer.first, "")

    def measure(self, server: Server, ask: Ask) -> Sample:
        """One round, and a check of the responses after it. Raises NotServing, OSError or subprocess.SubprocessError if
        the server fails."""
        sample = self.load(server, ask)
        try:
            self.check(server)
        except Wrong as wrong:
            raise Wrong(f"after the load, {wrong.args[0]}") from wrong
        except OSError as error:
            note = ", ".join(part for part in (sample.note, f"after the load, {error}") if part)
            return replace(sample, errors=sample.errors + 1, note=note)
        return sample

    def load(self, server: Server, ask: Ask) -> Sample:
        """The figures of one round. Raises the same as `measure`."""
        raise NotImplementedError

    def check(self, server: Server) -> None:
        """Raises Wrong if a response of this experiment is incorrect, OSError without a response."""
        for expected in self.answers(server):
            checks.check(server.connect, expected)

    def answers(self, server: Server) -> tuple[Expected, ...]:
        """The requests of this experiment, and the correct answers."""
        if server.peer.package is None:
            return (self.of_nginx(),)
        return (checks.of_application(self.app, self.path),)

    def of_nginx(self) -> Expected:
        """The floor's request and answer."""
        path = self.nginx or "/pong"
        return Expected(path, body=(files.DIRECTORY / path.lstrip("/")).read_bytes())

    def floor_values(self, milliseconds: float) -> dict[str, float]:
        """Where the generator's floor belongs among the metrics."""
        return {metric.key: milliseconds for metric in self.metrics}

    def reproduce(self) -> str:
        """The load's command, for the report."""
        raise NotImplementedError
