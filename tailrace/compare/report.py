"""One run as a document, and the document as text: a table for the terminal, a report in Markdown."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tailrace.compare import machine, peers, scenarios
from tailrace.compare.goals import spread
from tailrace.compare.peers import FLOOR, NGINX, OURS, PEERS, TAILRACE_GEVENT
from tailrace.compare.results import FLOORS, ITERATION, Cell, Column, Metric, Verdict
from tailrace.compare.scenarios.scenario import Scenario

LABELS = {NGINX: "*floor: nginx, sendfile*", ITERATION: "*floor: iterating, no server*"}


def document(
    columns: dict[str, Column],
    asked: dict[str, Any],
    facts: dict[str, str],
    minutes: float,
    chosen: Iterable[Scenario] | None = None,
) -> dict[str, Any]:
    """What goes into the JSON file."""
    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "minutes": round(minutes, 1),
        "asked": asked,
        "machine": facts,
        "versions": {peer.name: peer.version() for peer in (*PEERS, FLOOR)},
        "commands": {peer.name: command(peer) for peer in (*PEERS, FLOOR)},
        "goals": [
            {"metric": key, "goal": verdict.goal, "measured": verdict.measured, "met": verdict.met}
            for key, verdict in verdicts(columns)
        ],
        "columns": {key: column.as_json() for key, column in columns.items()},
    }


def columns_of(document: dict[str, Any]) -> dict[str, Column]:
    """The columns of a JSON file, by the metrics that this version knows."""
    return {
        metric.key: Column.from_json(metric, document["columns"][metric.key])
        for scenario in scenarios.SCENARIOS
        for metric in scenario.metrics
        if metric.key in document["columns"]
    }


def write(document: dict[str, Any], path: Path) -> Path:
    """Writes the JSON file and the report beside it; returns the report's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    report = path.with_suffix(".md")
    report.write_text(markdown(document))
    return report


def command(peer: peers.Peer) -> str:
    return f"PYTHONPATH=. taskset -c {machine.SERVER_CORE} {peer.shown()}"


def verdicts(columns: dict[str, Column]) -> Iterable[tuple[str, Verdict]]:
    for key, column in columns.items():
        for goal in column.metric.goals:
            yield key, goal.judge(column)


def word(met: bool | None) -> str:
    return {True: "met", False: "MISSED", None: "-"}[met]


def range_of(cell: Cell, metric: Metric) -> str:
    figures = cell.values.values()
    return f"{metric.show(min(figures))} - {metric.show(max(figures))}" if len(figures) > 1 else ""


def factor(column: Column, name: str) -> str:
    """How many times better Tailrace is, with the quartiles; without a figure where the rounds do not agree who is."""
    found = spread(column, name, column.ours()) if name != column.ours() else None
    if found is None:
        return ""
    if found.is_even():
        return f"even ({found.low:.2f}-{found.high:.2f})"
    if found.middle >= 100:
        return f"{found.middle:,.0f} x"
    return f"{found.middle:,.2f} x" + (f" ({found.low:.2f}-{found.high:.2f})" if found.low != found.high else "")


def terminal(column: Column, ranked: bool = True) -> str:
    """One metric as a table, best first; without ranking in the order of measurement, and without ratios."""
    metric = column.metric
    rounds = max((len(cell.values) for cell in column.cells.values()), default=0)
    sense = "more is better" if metric.more_is_better else "less is better"
    head = f"{metric.title}: {metric.unit}, {sense}, median of {rounds} round{'s' if rounds != 1 else ''}"
    rows = [("server", "median", "lowest - highest", f"{column.ours()} is" if ranked else "", "", "")]
    for name in column.ranked() if ranked else column.cells:
        cell = column.cells[name]
        figure = column.figure(name)
        shown = metric.show(figure) if figure is not None else "-"
        label = LABELS.get(name, name).strip("*")
        bang = f"! {cell.errors}" if cell.errors else ""
        rows.append(
            (
                label,
                shown,
                range_of(cell, metric),
                factor(column, name) if ranked else "",
                bang,
                "; ".join(cell.notes)[:90],
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(row[1:4], widths[1:4], strict=True)),
        ]
        lines.append("  " + "  ".join([*cells, row[4].ljust(widths[4]), row[5]]).rstrip())
    return "\n".join([head, *lines])


def goals_terminal(columns: dict[str, Column]) -> str:
    rows = [
        (word(verdict.met), columns[key].metric.title, verdict.goal, verdict.measured)
        for key, verdict in verdicts(columns)
    ]
    if not rows:
        return ""
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    return "\n".join(
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(document: dict[str, Any]) -> str:
    """The report."""
    columns = columns_of(document)
    asked = document["asked"]
    done = [scenario for scenario in scenarios.SCENARIOS if any(metric.key in columns for metric in scenario.metrics)]
    names = [name for name in order(columns) if any(name in column.cells for column in columns.values())]
    parts = [
        "# Benchmark",
        f"Measured {document['when']} in {document['minutes']} minutes by `{asked['command']}`: "
        f"up to {asked['rounds']} interleaved rounds of {asked['seconds']:g} s; every figure is the median of its "
        "rounds. The server has one core, the load another, all over the loopback interface. Under each figure is how "
        "many times better Tailrace was: the median of the ratios of single rounds and their quartiles; below 1 it was "
        "worse, and where the quartiles lie on both sides of 1, neither is better. Where Tailrace did not take part "
        f"with threads, {TAILRACE_GEVENT}. **!** means errors, time-outs or wrong answers; the notes "
        "say which. No figure means that there was no whole answer.",
        table(["", ""], [[key, value] for key, value in document["machine"].items()]),
    ]
    judged = [[columns[key].metric.title, it.goal, it.measured, word(it.met)] for key, it in verdicts(columns)]
    if judged:
        parts += ["## Goals", table(["", "goal", "measured", ""], judged)]
    for group in dict.fromkeys(scenario.group for scenario in done):
        shown = [metric.key for scenario in done if scenario.group == group for metric in scenario.metrics]
        parts += [f"## {group}", matrix([columns[key] for key in shown if key in columns], names)]
    parts += ["## Notes", notes(columns) or "None."]
    parts += ["## To reproduce", reproduce(document, done, names)]
    return "\n\n".join(parts) + "\n"


def order(columns: dict[str, Column]) -> list[str]:
    """Tailrace, the peers in the order of their table, the floors."""
    return [*(peer.name for peer in PEERS), *FLOORS]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def matrix(group: list[Column], names: list[str]) -> str:
    """Servers downwards, metrics across; the other way round where there are many metrics."""
    titles = [f"{column.metric.title}, {column.metric.unit}" for column in group]
    taking_part = [name for name in names if any(name in column.cells for column in group)]
    labels = [f"**{name}**" if name in OURS else LABELS.get(name, name) for name in taking_part]
    entries = [[entry(column, name) for column in group] for name in taking_part]
    if len(titles) > 2 * len(labels):
        turned = zip(*entries, strict=True)
        return table(["", *labels], [[title, *row] for title, row in zip(titles, turned, strict=True)])
    return table(["", *titles], [[label, *row] for label, row in zip(labels, entries, strict=True)])


def entry(column: Column, name: str) -> str:
    cell = column.cells.get(name)
    if cell is None:
        return ""
    figure = column.figure(name)
    shown = column.metric.show(figure) if figure is not None else "-"
    if cell.errors:
        shown += " **!**"
    ratio = factor(column, name)
    return f"{shown}<br>{ratio}" if ratio else shown


def notes(columns: dict[str, Column]) -> str:
    """What each server's rounds had to say; a scenario with several metrics says it once."""
    lines: dict[str, dict[str, str]] = {}
    for column in columns.values():
        for name, cell in column.cells.items():
            if cell.notes:
                said = "; ".join(cell.notes[:2]).replace("\n", " ")
                lines.setdefault(name, {}).setdefault(said, column.metric.short)
    for name, shares in others(columns).items():
        half, most = 100 * median(shares), 100 * max(shares)
        told = f"others used {half:.0f} % of its core in half of the rounds, {most:.0f} % at most"
        lines.setdefault(name, {})[told] = "core"
    said_by = {name: ". ".join(f"{short}: {said}" for said, short in told.items()) for name, told in lines.items()}
    return "\n".join(f"- **{name}**: {said}." for name, said in said_by.items())


def others(columns: dict[str, Column]) -> dict[str, list[float]]:
    """By the server, how much of its core others used, in all rounds that tell; once for a scenario."""
    found: dict[str, list[float]] = {}
    seen = set()
    for column in columns.values():
        for name, cell in column.cells.items():
            rounds = (name, *cell.others)
            if cell.others and rounds not in seen:
                seen.add(rounds)
                found.setdefault(name, []).extend(cell.others)
    return found


def reproduce(document: dict[str, Any], done: list[Scenario], names: list[str]) -> str:
    """The commands of the servers, with their reasons, and of the loads."""
    rows = [
        [
            peer.name,
            document["versions"].get(peer.name) or "not installed",
            f"`{document['commands'][peer.name]}`",
            peer.why,
        ]
        for peer in (*PEERS, FLOOR)
        if peer.name in names
    ]
    loads = [[scenario.title, f"`{scenario.app}`", f"`{scenario.reproduce()}`"] for scenario in done]
    return "\n\n".join(
        [
            "From the root of the repository, after `make bench` has installed the servers; the application's name is "
            "that of the scenario.",
            table(["server", "version", "command", "why so"], rows),
            table(["scenario", "application", "load"], loads),
        ]
    )
