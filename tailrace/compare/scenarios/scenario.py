"""What a scenario is: an application, a way to load it, and the metrics that come out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.compare import checks
from tailrace.compare.checks import Expected, Wrong
from tailrace.compare.launch import SERVED, Place, Server
from tailrace.compare.peers import Peer
from tailrace.compare.results import Metric, Sample
from tailrace.compare.served import files


@dataclass(frozen=True)
class Ask:
    """How long a round may load a server, in seconds; `quick` asks for less of whatever is counted otherwise."""

    seconds: float
    quick: bool


@dataclass(frozen=True)
class Scenario:
    """One row of the table of scenarios; its kinds say how they measure.

    name: on the command line. group: the table in which its figures are shown. app: as module:name.
    meaning: what the figures say to an operator, in a sentence or two.
    rounds: its own number, where more would tell nothing. fresh: each round wants a server just started.
    nginx: the path under which nginx delivers the same bytes, None where it has no part.
    generator: of served.shapes, whose iteration is the floor.
    among: the servers that take part, where a round takes long; empty for all that are not `asked`. also: those beside
    them. flags: further options, by the server. asked: measured only where its name or its group is asked for.
    all_cores: the server has a worker for each core, and neither it nor its client is pinned. place: where the
    application is.
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
        """Whether a server takes part. A second row is where its first one is."""
        usual = peer.first in self.among if self.among else not peer.asked
        return usual or peer.first in self.also

    def at_once(self) -> int:
        """How many clients are served at once."""
        return 1

    def extra(self, peer: Peer) -> str:
        """The further options of one server."""
        return dict(self.flags).get(peer.first, "")

    def measure(self, server: Server, ask: Ask) -> Sample:
        """One round, and whether the answers are still correct after it. Raises NotServing, OSError or
        subprocess.SubprocessError when the server does not go along."""
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
        """The figures of one round. Raises as `measure`."""
        raise NotImplementedError

    def check(self, server: Server) -> None:
        """Raises Wrong where an answer of this experiment is not correct, OSError where there is none."""
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
