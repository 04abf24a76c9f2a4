"""The report in Markdown: a summary, and below it the figures of all experiments, folded. In the documentation, each
is a page.
"""

from __future__ import annotations

import re
from statistics import median

from tailrace.printable import printable
from tailrace_compare.peers import AT_OUR_DEFAULTS, TAILRACE, TAILRACE_GEVENT, is_ours
from tailrace_compare.report import chart
from tailrace_compare.report.findings import (
    FLOOR_LABELS,
    Finding,
    Standing,
    absent,
    configuration,
    finding,
    label,
    ratio_text,
    reason,
    recommended,
    tally,
    times,
)
from tailrace_compare.report.run import Experiment, Run
from tailrace_compare.results import Column, Metric

MAX_NOTES = 2
# Marks a figure of a server at Tailrace's defaults.
MARK = "†"
LARGER = "states how many times better Tailrace was: the median of the ratios of single rounds."


def markdown(run: Run, data: str | None = None) -> str:
    """The report. data: path of the JSON file, relative to the report."""
    return f"{summary(run)}\n## Figures\n\n{figures(run, data)}"


def summary(run: Run, image: str = "") -> str:
    """What was measured, where and when, how Tailrace compares with each server, and where it is behind. image: the
    path of the chart, if there is one."""
    parts = [
        "# Comparison",
        measured(run),
        table(["", ""], [[plain(each) for each in row] for row in run.machine.items()]),
    ]
    if image:
        parts.append(f"![Time per response by shape and server]({image})")
    if run.refusal is not None:
        parts.append(f"> **No ranking.** {plain(run.refusal)} The figures are not compared.")
    elif run.experiments:
        parts += [by_server(run), losses(run)]
    if run.not_measured:
        parts.append(plain(run.not_measured))
    return "\n\n".join([*parts, again(run)]) + "\n"


def measured(run: Run) -> str:
    """When and by which command, of how much, and the result."""
    version = run.document.get("versions", {}).get(TAILRACE)
    by = f"{plain(run.measured_by())}, by `{command_of(run)}`{f', with Tailrace {plain(version)}' if version else ''}."
    number, rivals = len(run.experiments), len(servers(run))
    text = (
        f"{by}\n\nTailrace is compared with {rivals} other server{'s' * (rivals != 1)} in {number} "
        f"experiment{'s' * (number != 1)}. In each experiment, all servers run the same application in turns, with one "
        "shape of response and one kind of load."
    )
    counts = [f"{standing.value} in {len(each)}" for standing, each in tally(run.experiments).items() if each]
    if run.refusal is not None or not counts:
        return text
    return f"{text} Compared with the best other server of each, Tailrace is {', '.join(counts)}."


def command_of(run: Run) -> str:
    return printable(str(run.asked.get("command", "tailrace compare"))).replace("`", "'")


def servers(run: Run) -> dict[str, frozenset[str]]:
    """The other servers that took part, each with the names of its rows."""
    found: dict[str, set[str]] = {}
    for name in run.names():
        cells = (column.cells[name] for column in run.columns.values() if name in column.cells)
        if not is_ours(name) and name not in FLOOR_LABELS and not all(map(absent, cells)):
            found.setdefault(name.partition(" ")[0], set()).add(name)
    # The whole name, such as "gevent pywsgi", unless the server has several.
    whole = {key: {recommended(name) for name in names} for key, names in found.items()}
    return {min(whole[key]) if len(whole[key]) == 1 else key: frozenset(names) for key, names in found.items()}


def by_server(run: Run) -> str:
    """One row for each other server, those that are most often ahead first."""
    tallies = {server: tally(run.experiments, names) for server, names in servers(run).items()}
    rows = [
        [plain(server), *(str(len(each)) for each in found.values()), largest_loss(server, found[Standing.BEHIND])]
        for server, found in sorted(tallies.items(), key=lambda pair: -len(pair[1][Standing.BEHIND]))
    ]
    return "\n\n".join(
        [
            "## Tailrace and each server",
            "The number of experiments in which Tailrace is ahead of a server, even with it, or behind it. In each "
            "experiment, the server's best configuration counts: with the settings that its documentation recommends "
            "or with Tailrace's defaults, and with any of its kinds of workers and protocols.",
            table(["server", "ahead", "even", "behind", "no valid figure", "largest loss of Tailrace"], rows),
            f"A ratio {LARGER} *Even*: the quartiles of the ratio lie on both sides of 1, so this run cannot tell "
            "which server is better. *No valid figure*: the server had errors or timeouts, or its response was wrong. "
            "Experiments in which a server does not take part are not counted.",
        ]
    )


def largest_loss(server: str, behind: list[tuple[Experiment, Finding]]) -> str:
    """The experiment with the worst ratio, and the configuration if it is not the one that is called as the server."""
    for experiment, told in behind:
        if told.ratio is not None and told.rival is not None:
            by = f" ({plain(told.rival)})" if told.rival != server else ""
            return f"{times(told.ratio.middle)}: {plain(experiment.title)}{by}"
    return "; ".join(f"{plain(experiment.title)}: {plain(told.text)}" for experiment, told in behind[:1])


def losses(run: Run) -> str:
    """The experiments in which another server was better."""
    lines = [
        f"- {plain(experiment.title)}: {plain(told.text.removeprefix('Tailrace: ').removesuffix(', the best'))}"
        for experiment, told in tally(run.experiments)[Standing.BEHIND]
    ]
    told = (
        ["Tailrace compared with the best other server, worst first:", "", *lines] if lines else ["In no experiment."]
    )
    return "\n".join(["## Where Tailrace is behind", "", *told])


def again(run: Run) -> str:
    """How to repeat the run, or a part of it."""
    example = run.experiments[0].again() if run.experiments else "tailrace compare --only pong_c64"
    return "\n".join(
        [
            "## Measure it again",
            "",
            "```console",
            "$ tailrace compare --install    # the other servers, into a separate environment",
            f"$ {command_of(run)}",
            f"$ {printable(example).replace(chr(96), chr(39))}    # one experiment",
            "```",
        ]
    )


def figures(run: Run, data: str | None = None) -> str:
    """All figures by section, goals, notes, and the servers' commands."""
    ranked = run.refusal is None
    parts = [how_to_read(ranked, data)]
    for title, experiments in {lead_title(run): list(run.lead()), **run.groups()}.items():
        if experiments:
            parts += [f"## {plain(title)}", folded(run, experiments)]
    if ranked and run.goals:
        parts += ["## Goals", goals(run)]
    return "\n\n".join([*parts, "## Notes", notes(run.columns) or "None.", "## Servers", commands(run, data)]) + "\n"


def how_to_read(ranked: bool, data: str | None) -> str:
    comparison = (
        f" The ratio below it {LARGER} ▼: Tailrace was worse. *even*: the quartiles of the ratio lie on both sides of "
        f"1. If Tailrace was not measured with threads, {TAILRACE_GEVENT} is compared instead. Each server runs as its "
        f"documentation recommends. {MARK}: it was better{AT_OUR_DEFAULTS}, so this experiment shows these figures."
    )
    return (
        f"Each figure is the median of its rounds.{comparison if ranked else ''} **!** marks errors, timeouts or wrong "
        "responses, which the [notes](#notes) explain. A dash: no complete response."
        f"{f' The figures of every round and configuration are in [{data}]({data}).' if data else ''}"
    )


def lead_title(run: Run) -> str:
    usual = "Flask and Django in production: a worker per core"
    return usual if run.lead_is_usual() else "Flask and Django, on one core"


def folded(run: Run, section: list[Experiment]) -> str:
    """The findings of a section; what they mean and the figures are visible after a click."""
    said = "<br>".join(f"<b>{chart.text(each.title)}</b>{found(run, each)}" for each in section)
    # Python-Markdown leaves the text of an element as it is, unless the element has this attribute; GitHub ignores it.
    meaning = " ".join(dict.fromkeys(plain(each.meaning) for each in section)).strip()
    parts = [f"<details markdown>\n<summary>{said}</summary>", meaning, figures_of(run, section)]
    return "\n\n".join([part for part in parts if part] + ["</details>"])


def found(run: Run, experiment: Experiment) -> str:
    return f": {chart.text(finding(experiment.columns[0]).text)}" if run.refusal is None else ""


def plain(text: str) -> str:
    """External text, escaped so that nothing in it is markup."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", printable(text)).replace("&", "&amp;").replace("<", "&lt;")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose cells are Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def figures_of(run: Run, section: list[Experiment]) -> str:
    """One row per metric, one column per server. Servers that did not take part in any of them are omitted."""
    cells = [column.cells for each in section for column in each.columns]
    there = [name for name in run.names() if any(name in each and not absent(each[name]) for each in cells)]
    if not there:
        return "Not measured: no server took part."
    if run.refusal is None:
        there = list(dict.fromkeys(map(recommended, there)))
    rows = []
    for each in section:
        chosen = [name if run.refusal is not None else configuration(each.columns[0], name) for name in there]
        rows += [
            [heading(each, column.metric, len(section) > 1), *(entry(run, column, name) for name in chosen)]
            for column in each.columns
        ]
    return table(["", *map(named, there)], rows)


def heading(experiment: Experiment, metric: Metric, several: bool) -> str:
    """What a metric's title adds to the experiment's, and its unit. several: the table has several experiments."""
    first = metric is experiment.columns[0].metric
    what = metric.title.removeprefix(experiment.title).lstrip(":, ")
    obvious = several and first and (len(experiment.columns) == 1 or metric.unit == "requests/s")
    text = plain(metric.unit if obvious or not what else f"{what}, {metric.unit}")
    return f"**{plain(experiment.title)}**<br>{text}" if several and first else text


def named(name: str) -> str:
    if name in FLOOR_LABELS:
        return f"*{label(name)}*"
    return f"**{plain(name)}**" if is_ours(name) else plain(name)


def entry(run: Run, column: Column, name: str) -> str:
    """The figure of one row, with its marks, and the ratio."""
    cell, ranked = column.cells.get(name), run.refusal is None
    if cell is None:
        return ""
    figure = column.figure(name)
    shown = column.metric.show(figure) if figure is not None else "-"
    marks = f"{' **!**' if cell.errors else ''}{f' {MARK}' if ranked and name != recommended(name) else ''}"
    ratio = ratio_text(column, name)[0] if ranked and name != column.ours() else ""
    return f"{shown}{marks}{f'<br>{ratio}' if ratio else ''}"


def goals(run: Run) -> str:
    """How many goals are met, and those that are not, by metric."""
    columns = run.columns
    missed: dict[str, list[str]] = {}
    for goal in run.goals:
        if not goal["met"]:
            key = goal["metric"]
            title, _, metric = (columns[key].metric.title if key in columns else key).partition(": ")
            told = f"{metric}, {goal['goal']}" if metric else goal["goal"]
            missed.setdefault(title, []).append(plain(f"{told}: {goal['measured']}"))
    met = sum(bool(goal["met"]) for goal in run.goals)
    text = f"Tailrace meets {met} of its {len(run.goals)} goals."
    rows = [[plain(title), "<br>".join(told)] for title, told in missed.items()]
    return (
        f"{text} These are the others, each with the measured figure:\n\n{table(['', 'goal'], rows)}" if rows else text
    )


def notes(columns: dict[str, Column]) -> str:
    """The faults in each server's rounds; a scenario with several metrics lists them once."""
    lines: dict[str, dict[str, str]] = {}
    for column in columns.values():
        for name, cell in column.cells.items():
            if (cell.notes and (cell.errors or not cell.values)) or (cell.rounds and not cell.values):
                said = "; ".join(cell.notes[:MAX_NOTES]) or reason(cell)
                lines.setdefault(name, {}).setdefault(said, column.metric.short)
    said_by = {name: ". ".join(f"{short}: {said}" for said, short in told.items()) for name, told in lines.items()}
    by_server: dict[str, list[str]] = {}
    for name, said in said_by.items():
        which = "" if name == recommended(name) else f"{AT_OUR_DEFAULTS.strip().replace('at', 'At', 1)}: "
        by_server.setdefault(recommended(name), []).append(f"{which}{said}")
    listed = "\n".join(f"- **{plain(name)}**: {plain('. '.join(said))}." for name, said in by_server.items())
    shares = others(columns)
    if not shares:
        return listed
    half, most = (
        median(share for each in shares.values() for share in each),
        max(shares, key=lambda name: max(shares[name])),
    )
    busy = (
        f"In the median round, other processes used {100 * half:.0f} % of the server's core, and at most "
        f"{100 * max(shares[most]):.0f} % (in a round of {plain(most)})."
    )
    return f"{listed}\n\n{busy}".strip()


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


def commands(run: Run, data: str | None) -> str:
    """The version, the command, and the reason for the command of each server."""
    versions, lines, reasons = (run.document.get(key, {}) for key in ("versions", "commands", "reasons"))
    listed = [name for name in run.names() if name in lines]
    rows = []
    for server in dict.fromkeys(map(recommended, listed)):
        # Both configurations of a server, one below the other.
        both = [name for name in listed if recommended(name) == server]
        rows.append(
            [
                plain(server),
                plain(versions.get(both[0]) or "not installed"),
                "<br>".join(code(lines[name]) for name in both),
                "<br>".join(plain(reasons.get(name, "")) for name in both),
            ]
        )
    told = (
        "These commands run the application of one experiment, in the root of a checkout of the measured version."
        f"{f' [{data}]({data}) contains the application, commands and load of each experiment.' if data else ''}"
    )
    return f"{told}\n\n{table(['server', 'version', 'command', 'reason'], rows)}"
