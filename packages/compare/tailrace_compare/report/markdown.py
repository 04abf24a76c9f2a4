"""The report in Markdown, for the documentation: the findings, with the figures of each experiment folded below."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from tailrace.printable import printable
from tailrace_compare.peers import TAILRACE_GEVENT, is_ours
from tailrace_compare.report import chart
from tailrace_compare.report.findings import FLOOR_LABELS, Standing, absent, finding, label, reason, tally
from tailrace_compare.report.run import Experiment, Run
from tailrace_compare.report.terminal import WORDS, factor
from tailrace_compare.results import Column, Metric

MAX_NOTES = 2


def markdown(run: Run, data: str | None = None) -> str:
    """The report. data: path of the JSON file, relative to the report."""
    ranked = run.refusal is None
    parts = ["# Comparison", " ".join([f"{plain(run.measured_by())}, by `{command_of(run)}`.", linked(data)]).strip()]
    refused = f"> **No ranking.** {plain(run.refusal or '')} The figures are not compared."
    parts.append(how_to_read(run) if ranked else refused)
    parts.append(table(["", ""], [[plain(key), plain(value)] for key, value in run.machine.items()]))
    if ranked and run.experiments:
        parts.append(losses(run))
    parts += [plain(run.not_measured)] if run.not_measured else []
    if run.lead():
        parts += [f"## {lead_title(run)}", *group(run, run.lead(), opened=True)]
    for title, experiments in run.groups().items():
        parts += [f"## {plain(title)}", *group(run, experiments)]
    if ranked and run.goals:
        columns = run.columns
        judged = [
            [
                plain(columns[goal["metric"]].metric.title if goal["metric"] in columns else goal["metric"]),
                plain(goal["goal"]),
                plain(goal["measured"]),
                WORDS[goal["met"]],
            ]
            for goal in run.goals
        ]
        parts += ["## Goals", table(["", "goal", "measured", ""], judged)]
    parts += ["## Notes", notes(run.columns) or "None.", "## To reproduce", reproduce(run)]
    return "\n\n".join(parts) + "\n"


def lead_title(run: Run) -> str:
    usual = "Flask and Django in production: a worker per core"
    return usual if run.lead_is_usual() else "Flask and Django, on one core"


def command_of(run: Run) -> str:
    return printable(str(run.asked.get("command", "tailrace compare"))).replace("`", "'")


def linked(data: str | None) -> str:
    return f"The figures of every round are in [{data}]({data})." if data else ""


def how_to_read(run: Run) -> str:
    return (
        "Each figure is the median of its rounds. The line below it states how many times better Tailrace was: the "
        "median of the ratios of single rounds, with quartiles. Below 1, Tailrace was worse. *even*: the quartiles "
        "lie on both sides of 1. **!** marks errors, timeouts or wrong responses; the notes explain them. A dash: no "
        f"complete response. If Tailrace was not measured with threads, {TAILRACE_GEVENT} is compared instead."
    )


def losses(run: Run) -> str:
    """The experiments in which another server was better, worst first."""
    found = tally(run.experiments)
    counts = ", ".join(f"{standing.value} in {len(each)}" for standing, each in found.items() if each)
    text = f"Compared with the best other server without errors, in {len(run.experiments)} experiments: {counts}."
    lines = [f"- {plain(experiment.title)}: {plain(told.text)}" for experiment, told in found[Standing.BEHIND]]
    text += " These are the experiments in which it is behind, worst first:" if lines else ""
    return "\n".join([text, "", *lines]).strip()


def group(run: Run, experiments: Iterable[Experiment], opened: bool = False) -> list[str]:
    """The experiments, each folded under its title and finding, or opened."""
    return [folded(run, experiment, opened) for experiment in experiments]


def folded(run: Run, experiment: Experiment, opened: bool) -> str:
    """The finding; its meaning and the figures are visible after a click."""
    said = ""
    if run.refusal is None:
        said = f"<br>{chart.text(finding(experiment.columns[0]).text)}"
    summary = f"<summary><b>{chart.text(experiment.title)}</b>{said}</summary>"
    # Python-Markdown leaves the text of an element as it is, unless the element has this attribute; GitHub ignores it.
    parts = [
        f"<details markdown{' open' if opened else ''}>\n{summary}",
        plain(experiment.meaning),
        figures(run, experiment),
    ]
    return "\n\n".join([part for part in parts if part] + ["</details>"])


def plain(text: str) -> str:
    """External text, escaped so that nothing in it is markup."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", printable(text)).replace("&", "&amp;").replace("<", "&lt;")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose cells are Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def figures(run: Run, experiment: Experiment) -> str:
    """One row per server, one column per metric. Servers that did not take part in any of them are omitted."""
    columns = experiment.columns
    titles = [plain(heading(column.metric, experiment.title)) for column in columns]
    names = dict.fromkeys(name for column in columns for name in run.order(column))
    there = [name for name in names if any(name in each.cells and not absent(each.cells[name]) for each in columns)]
    if not there:
        return "Not measured: no server took part."
    ranked = run.refusal is None
    return table(["", *titles], [[named(name), *(entry(each, name, ranked) for each in columns)] for name in there])


def heading(metric: Metric, title: str) -> str:
    """The part of a metric's title that the experiment's title does not have, and its unit."""
    what = metric.title.removeprefix(title).removeprefix(": ")
    return f"{what}, {metric.unit}" if what else metric.unit


def named(name: str) -> str:
    if name in FLOOR_LABELS:
        return f"*{label(name)}*"
    return f"**{plain(name)}**" if is_ours(name) else plain(name)


def entry(column: Column, name: str, ranked: bool = True) -> str:
    cell = column.cells.get(name)
    if cell is None:
        return ""
    figure = column.figure(name)
    shown = column.metric.show(figure) if figure is not None else "-"
    if cell.errors:
        shown += " **!**"
    ratio = factor(column, name) if ranked else ""
    return f"{shown}<br>{ratio}" if ratio else shown


def notes(columns: dict[str, Column]) -> str:
    """The faults in each server's rounds; a scenario with several metrics lists them once."""
    lines: dict[str, dict[str, str]] = {}
    for column in columns.values():
        for name, cell in column.cells.items():
            if (cell.notes and (cell.errors or not cell.values)) or (cell.rounds and not cell.values):
                said = "; ".join(cell.notes[:MAX_NOTES]) or reason(cell)
                lines.setdefault(name, {}).setdefault(said, column.metric.short)
    for name, shares in others(columns).items():
        half, most = 100 * median(shares), 100 * max(shares)
        told = f"other processes used {half:.0f} % of its core in the median round, {most:.0f} % at most"
        lines.setdefault(name, {})[told] = "core"
    said_by = {name: ". ".join(f"{short}: {said}" for said, short in told.items()) for name, told in lines.items()}
    return "\n".join(f"- **{plain(name)}**: {plain(said)}." for name, said in said_by.items())


def others(columns: dict[str, Column]) -> dict[str, list[float]]:
    """The share of each server's core that other processes used, for every round that has it; once per scenario."""
    found: dict[str, list[float]] = {}
    seen = set()
    for column in columns.values():
        for name, cell in column.cells.items():
            rounds = (name, *cell.others)
            if cell.others and rounds not in seen:
                seen.add(rounds)
                found.setdefault(name, []).extend(cell.others)
    return found


def code(text: str) -> str:
    """A table cell with code."""
    return f"`{printable(text).replace('`', chr(39))}`".replace("|", "\\|") if text else ""


def reproduce(run: Run) -> str:
    """The commands of the servers, with their reasons, and of the loads."""
    told = run.document
    versions, commands, reasons = (told.get(key, {}) for key in ("versions", "commands", "reasons"))
    rows = [
        [plain(name), plain(versions.get(name) or "not installed"), code(commands[name]), plain(reasons.get(name, ""))]
        for name in run.names()
        if name in commands
    ]
    loads = [[plain(each.title), code(each.again()), code(each.app), code(each.load)] for each in run.experiments]
    return "\n\n".join(
        [
            "Run the commands in the root of the repository, after `tailrace compare --install`. The application's "
            "name is that of the scenario.",
            table(["server", "version", "command", "reason"], rows),
            table(["scenario", "whole experiment", "application", "load"], loads),
        ]
    )
