"""What a scenario is: an application, a way to load it, and the metrics that come out."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.compare.launch import Server
from tailrace.compare.peers import Peer
from tailrace.compare.results import Metric, Sample


@dataclass(frozen=True)
class Ask:
    """How long a round may load a server, in seconds; `quick` asks for less of whatever is counted otherwise."""

    seconds: float
    quick: bool


@dataclass(frozen=True)
class Scenario:
    """One row of the table of scenarios; its kinds say how they measure.

    name: on the command line. group: the table in which its figures are shown. app: as module:name.
    rounds: its own number, where more would tell nothing. fresh: each round wants a server just started.
    nginx: the path under which nginx delivers the same bytes, None where it has no part.
    generator: of served.shapes, whose iteration is the floor.
    among: the servers that take part, where a round takes long; empty for all that are not `asked`. also: those beside
    them. flags: further options, by the server. asked: measured only where its name or its group is asked for.
    """

    name: str
    title: str
    group: str
    app: str
    metrics: tuple[Metric, ...]
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

    def admits(self, peer: Peer) -> bool:
        """Whether a server takes part."""
        usual = peer.name in self.among if self.among else not peer.asked
        return usual or peer.name in self.also

    def extra(self, peer: Peer) -> str:
        """The further options of one server."""
        return dict(self.flags).get(peer.name, "")

    def measure(self, server: Server, ask: Ask) -> Sample:
        """One round. Raises NotServing, OSError or subprocess.SubprocessError when the server does not go along."""
        raise NotImplementedError

    def expected(self) -> bytes | None:
        """The body of a correct response, checked once for each server; None where `measure` sees to it."""
        return None

    def floor_values(self, milliseconds: float) -> dict[str, float]:
        """Where the generator's floor belongs among the metrics."""
        return {metric.key: milliseconds for metric in self.metrics}

    def reproduce(self) -> str:
        """The load's command, for the report."""
        raise NotImplementedError
