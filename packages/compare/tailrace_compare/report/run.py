"""One run as a document, which is the JSON file, and the run read back from it.

A document describes itself: reports need neither the table of scenarios nor that of servers. So they can be made from
an older run, and from scenarios that are in no table.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace_compare import machine, scenarios
from tailrace_compare.peers import FLOOR, PEERS, Peer, is_ours
from tailrace_compare.results import FLOORS, Column, Metric, Verdict
from tailrace_compare.scenarios.scenario import Scenario

# Where `served` is, from the root of the repository.
APPLICATIONS = "PYTHONPATH=tailrace_compare"
OTHER = "Other measurements"
FRAMEWORKS = re.compile(r"(^|_)(flask|django)(_|$)")
ONE_ROUND = "a single round has no quartiles: small differences are not significant"
AS_PEOPLE_RUN_IT = re.compile(r"worker for each core|worker per core|all cores|each core", re.IGNORECASE)
# A file from elsewhere may ask for any number.
MAX_DIGITS = 9


@dataclass(frozen=True)
class Experiment:
    """One scenario of a run. meaning: what its figures mean to an operator. load: the client's command. commands: the
    commands of the servers that took part, by name."""

    name: str
    title: str
    group: str
    columns: tuple[Column, ...]
    meaning: str = ""
    app: str = ""
    load: str = ""
    commands: dict[str, str] = field(default_factory=dict)

    def again(self) -> str:
        """The command that measures it again."""
        return f"tailrace compare --only {shlex.quote(self.name)}"


@dataclass(frozen=True)
class Run:
    """A document, read."""

    document: dict[str, Any]
    experiments: tuple[Experiment, ...]

    @classmethod
    def of(cls, document: dict[str, Any]) -> Run:
        columns = document.get("columns", {})
        found: list[Experiment] = []
        known: set[str] = set()
        for scenario in document.get("scenarios", []):
            metrics = [metric for metric in scenario["metrics"] if metric["key"] in columns]
            known.update(metric["key"] for metric in metrics)
            read = [column_of(metric["key"], columns[metric["key"]], metric) for metric in metrics]
            if read:
                found.append(experiment_of(scenario, tuple(read)))
        for key in columns.keys() - known:
            column = column_of(key, columns[key], {})
            found.append(Experiment(key, column.metric.title, OTHER, (column,)))
        return cls(document, tuple(found))

    @property
    def columns(self) -> dict[str, Column]:
        return {column.metric.key: column for experiment in self.experiments for column in experiment.columns}

    @property
    def when(self) -> str:
        return str(self.document.get("when", ""))

    @property
    def machine(self) -> dict[str, str]:
        return dict(self.document.get("machine", {}))

    @property
    def asked(self) -> dict[str, Any]:
        return dict(self.document.get("asked", {}))

    @property
    def goals(self) -> list[dict[str, Any]]:
        return list(self.document.get("goals", []))

    @property
    def refusal(self) -> str | None:
        """Why the figures are not ranked; None if they are."""
        noise = self.document.get("noise") or {}
        return str(noise["reason"]) if noise.get("refused") else None

    @property
    def not_measured(self) -> str:
        """The experiments for which the run had no time, as a sentence; empty if there are none."""
        titles = [str(title) for title in self.document.get("not_measured", [])]
        return f"Not measured for lack of time: {'; '.join(titles)}." if titles else ""

    def is_complete(self) -> bool:
        """False while the run continues, and if it was interrupted."""
        return bool(self.document.get("run", {}).get("complete", True))

    def lead(self) -> tuple[Experiment, ...]:
        """Flask and Django; with a worker per core, if that was measured."""
        frameworks = [each for each in self.experiments if FRAMEWORKS.search(each.name)]
        usual = [each for each in frameworks if AS_PEOPLE_RUN_IT.search(f"{each.title} {each.group}")]
        return tuple(usual or frameworks)

    def lead_is_usual(self) -> bool:
        """Whether the leading experiments have a worker per core, and not one pinned core."""
        return any(AS_PEOPLE_RUN_IT.search(f"{each.title} {each.group}") for each in self.lead())

    def groups(self) -> dict[str, list[Experiment]]:
        """The other experiments, by group."""
        lead = self.lead()
        found: dict[str, list[Experiment]] = {}
        for experiment in self.experiments:
            if experiment not in lead:
                found.setdefault(experiment.group, []).append(experiment)
        return found

    def names(self) -> list[str]:
        """The servers that took part: Tailrace, the others in the order of their table, the floors."""
        there = {name: None for column in self.columns.values() for name in column.cells}
        table = [name for name in self.document.get("commands", {}) if name in there and name not in FLOORS]
        rest = [name for name in there if name not in table and name not in FLOORS]
        return [*table, *rest, *(name for name in FLOORS if name in there)]

    def measured(self) -> list[str]:
        """The servers other than Tailrace that gave at least one figure."""
        columns = self.columns.values()
        return [
            name
            for name in self.names()
            if not is_ours(name) and name not in FLOORS and any(c.figure(name) is not None for c in columns)
        ]

    def order(self, column: Column) -> list[str]:
        """The servers of one metric: best first, or in the order of their table if the run has no ranking."""
        if self.refusal is None:
            return column.ranked()
        return [name for name in self.names() if name in column.cells]

    def rounds(self) -> int:
        """The largest number of rounds of one figure."""
        cells = [cell for column in self.columns.values() for cell in column.cells.values()]
        return max((len(cell.values) for cell in cells), default=0)

    def measured_by(self) -> str:
        """When, for how long, and by which command."""
        asked = self.asked
        parts = [f"Measured {self.when.replace('T', ' ').replace('+00:00', ' UTC')}"]
        if self.document.get("minutes"):
            parts.append(f"in {self.document['minutes']:g} minutes")
        if asked.get("rounds"):
            parts.append(f"with up to {asked['rounds']} interleaved rounds of {asked.get('seconds', 1):g} s")
        if self.rounds() == 1 and self.refusal is None:
            parts.append(f"({ONE_ROUND})")
        return " ".join(parts) + ("" if self.is_complete() else "; the run is not complete")


def column_of(key: str, column: dict[str, Any], told: dict[str, Any]) -> Column:
    """A column, from its figures and the document's description of its metric."""
    title = told.get("title") or column.get("title", key)
    more = bool(told.get("more_is_better", column.get("more_is_better", False)))
    unit = told.get("unit") or column.get("unit", "")
    digits = min(MAX_DIGITS, int(told.get("digits", digits_for(column))))
    return Column.from_json(Metric(key, title, told.get("short") or title, unit, more, digits), column)


def digits_for(column: dict[str, Any]) -> int:
    """The number of decimals that gives the smallest figure three digits, if the document does not state one."""
    figures = [abs(cell["median"]) for cell in column["servers"].values() if cell.get("median")]
    smallest = min(figures, default=100.0)
    return 0 if smallest >= 100 else 1 if smallest >= 10 else 2 if smallest >= 1 else 3


def experiment_of(told: dict[str, Any], columns: tuple[Column, ...]) -> Experiment:
    """An experiment as the document describes it."""
    return Experiment(
        told["name"],
        told["title"],
        told["group"],
        columns,
        told.get("meaning", ""),
        told.get("app", ""),
        told.get("load", ""),
        told.get("commands", {}),
    )


def document(
    columns: dict[str, Column],
    asked: dict[str, Any],
    facts: dict[str, str],
    minutes: float,
    chosen: Iterable[Scenario] | None = None,
) -> dict[str, Any]:
    """The content of the JSON file. chosen: the scenarios of the metrics; by default, all of the table."""
    table = scenarios.SCENARIOS if chosen is None else chosen
    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "minutes": round(minutes, 1),
        "asked": asked,
        "machine": facts,
        "versions": {peer.name: peer.version() for peer in (*PEERS, FLOOR)},
        "commands": {peer.name: pinned(peer.shown()) for peer in (*PEERS, FLOOR)},
        "reasons": {peer.name: peer.why for peer in (*PEERS, FLOOR)},
        "scenarios": [told for scenario in table if (told := described(scenario, columns))["metrics"]],
        "goals": [
            {"metric": key, "goal": verdict.goal, "measured": verdict.measured, "met": verdict.met}
            for key, verdict in verdicts(columns)
        ],
        "columns": {key: column.as_json() for key, column in columns.items()},
    }


def verdicts(columns: dict[str, Column]) -> Iterable[tuple[str, Verdict]]:
    for key, column in columns.items():
        for goal in column.metric.goals:
            yield key, goal.judge(column)


def described(scenario: Scenario, columns: dict[str, Column]) -> dict[str, Any]:
    """A scenario with the metrics that were measured."""
    metrics = [metric for metric in scenario.metrics if metric.key in columns]
    names = {name for metric in metrics for name, cell in columns[metric.key].cells.items() if cell.rounds}
    return {
        "name": scenario.name,
        "title": scenario.title,
        "group": scenario.group,
        "meaning": scenario.meaning,
        "app": scenario.app,
        "load": scenario.reproduce() if metrics else "",
        "commands": {peer.name: command(peer, scenario) for peer in (*PEERS, FLOOR) if peer.name in names},
        "metrics": [
            {
                "key": metric.key,
                "title": metric.title,
                "short": metric.short,
                "unit": metric.unit,
                "more_is_better": metric.more_is_better,
                "digits": metric.digits,
            }
            for metric in metrics
        ],
    }


def command(peer: Peer, scenario: Scenario) -> str:
    """A server's command in one scenario, as a reader would type it from the root of the repository."""
    values = {"bin": ".venv/bin", "host": "127.0.0.1", "port": "8000", "socket": "/tmp/app.sock", "state": "/tmp/x"}
    cores = len(machine.CORES) if scenario.all_cores else 1
    line = peer.arguments(scenario.over_unix, scenario.many, cores, app=scenario.app, **values)
    shown = shlex.join([*line, *shlex.split(scenario.extra(peer))])
    # With a worker for each core, nothing is pinned.
    return f"{APPLICATIONS} {shown}" if scenario.all_cores else pinned(shown)


def pinned(line: str) -> str:
    return f"{APPLICATIONS} taskset -c {machine.SERVER_CORE} {line}"


def save(document: dict[str, Any], path: Path) -> None:
    """Writes the JSON file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8", errors="backslashreplace")
    new.replace(path)
