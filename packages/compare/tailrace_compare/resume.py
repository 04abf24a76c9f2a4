"""Continues an interrupted run: reads finished experiments from results.json, if nothing else has changed."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tailrace
from tailrace_compare import machine, noise
from tailrace_compare.noise import Look
from tailrace_compare.peers import Peer
from tailrace_compare.results import Column
from tailrace_compare.scenarios.scenario import Scenario

# What the machine's facts have beside those that change by themselves.
CHANGING = ("load before",)


@dataclass
class Earlier:
    """The state of an earlier run: finished experiments, their columns, the checks of the machine, and minutes."""

    finished: list[str] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    minutes: float = 0.0


def identity(options: dict[str, Any], peers: Iterable[Peer]) -> dict[str, dict[str, str]]:
    """Everything that must be the same in both parts of a run, as text, by group."""
    rows = list(peers)
    return {
        "option": {f"--{name}": shown(value) for name, value in options.items()},
        "machine": {name: value for name, value in machine.facts().items() if name not in CHANGING},
        "version": {peer.name: str(peer.version()) for peer in rows} | {"tailrace's files": fingerprint()},
        "command": {peer.name: peer.shown() for peer in rows},
    }


def shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def fingerprint() -> str:
    """Of this installation of Tailrace, whose version stays the same while it is developed."""
    digest = hashlib.sha256(platform.python_version().encode())
    package = Path(tailrace.__file__).parent
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".so"):
            digest.update(f"{path.relative_to(package)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def difference(earlier: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> str | None:
    """The first difference, in words; None if there is none."""
    for group, values in now.items():
        before = earlier.get(group, {})
        for name in [*values, *(name for name in before if name not in values)]:
            was, is_now = before.get(name), values.get(name)
            if was != is_now:
                return f"{group} {name}: {brief(was)} before, {brief(is_now)} now"
    return None


def brief(value: str | None) -> str:
    if value is None:
        return "none"
    return f"{value[:57]}..." if len(value) > 60 else value or "nothing"


def earlier(path: Path, chosen: Iterable[Scenario], now: dict[str, dict[str, str]]) -> tuple[Earlier, str]:
    """The state of an interrupted run with the same options in results.json, and a line about it; the line is empty if
    there is no earlier run."""
    if not path.exists():
        return Earlier(), ""
    try:
        document = json.loads(path.read_text("utf-8"))
        run = document["run"]
        if run["complete"]:
            return Earlier(), f"{path} contains a complete run, which this run replaces"
        if differs := difference(run["identity"], now):
            return Earlier(), f"not continuing {path}: {differs}"
        found = Earlier(list(run["finished"]), {}, noise.from_json(document["noise"]), float(document["minutes"]))
        for metric_key, column in read(document, chosen, found.finished):
            found.columns[metric_key] = column
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Earlier(), f"not continuing {path}: cannot read it ({type(error).__name__}: {error})"
    finished = f"{len(found.finished)} experiment{'s' if len(found.finished) != 1 else ''} finished"
    return found, f"continuing {path}: {finished} (--fresh starts over)"


def read(document: dict[str, Any], chosen: Iterable[Scenario], finished: Iterable[str]) -> Iterator[tuple[str, Column]]:
    """The columns of what is finished."""
    names = set(finished)
    for scenario in chosen:
        for metric in scenario.metrics:
            if scenario.name in names and metric.key in document["columns"]:
                yield metric.key, Column.from_json(metric, document["columns"][metric.key])
