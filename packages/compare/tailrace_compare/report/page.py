"""The report as one self-contained HTML page.

Its policy (Content Security Policy Level 3) allows neither scripts nor requests. The output of servers reaches the page
as text; if it were markup, it could not do anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tailrace_compare.peers import is_ours
from tailrace_compare.report import chart
from tailrace_compare.report.chart import Heads, Row, text
from tailrace_compare.report.findings import (
    FLOOR_LABELS,
    SIGN,
    Finding,
    Standing,
    absent,
    better_with_errors,
    finding,
    is_even,
    label,
    looks_even,
    ratio_text,
    ratio_to,
    reason,
    tally,
    times,
)
from tailrace_compare.report.markdown import lead_title, others
from tailrace_compare.report.parts import part_of
from tailrace_compare.report.run import Experiment, Run
from tailrace_compare.report.scale import Scale
from tailrace_compare.report.terminal import WORDS
from tailrace_compare.results import Cell, Column, Spread

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
MAX_REASON = 300
STANDINGS = {
    Standing.AHEAD: "ahead",
    Standing.EVEN: "even",
    Standing.BEHIND: "behind",
    Standing.UNKNOWN: "without a comparison",
}


def page(run: Run, data: str | None = None) -> str:
    """The whole document. data: path of the JSON file, relative to the page."""
    sections = [*lead(run), *glance(run)]
    sections += [section(run, title, each) for title, each in run.groups().items()]
    sections += [method(run, data), servers(run), *goals(run)]
    body = "\n".join([head(run), contents(run), legend(run), "<main>", *sections, "</main>"])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{text(title_of(run))}</title>\n<style>\n{STYLE.read_text('utf-8')}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#contents">Skip to the contents</a>\n{body}\n</body>\n</html>\n'
    )


def title_of(run: Run) -> str:
    number = len(run.measured())
    if not number:
        return "WSGI servers compared"
    return f"Tailrace compared with {number} WSGI server{'s' if number != 1 else ''}"


def head(run: Run) -> str:
    """The title, the result, and whether it is reliable."""
    facts = ", ".join(filter(None, (run.machine.get("processor", ""), run.machine.get("python", ""))))
    lines = [f"<header><h1>{text(title_of(run))}</h1>"]
    if run.refusal is not None:
        lines.append(
            f'<div class="noise" role="note"><strong>Too noisy to compare.</strong> {text(run.refusal)} '
            "The figures below are not ranked. Do not draw conclusions from their differences.</div>"
        )
    elif run.experiments:
        lines.append(f'<p class="summary">{summary(run)}</p>')
    else:
        lines.append('<p class="summary">Nothing has been measured yet.</p>')
    lines += [f'<p class="dim">{text(run.not_measured)}</p>'] if run.not_measured else []
    lines.append(f'<p class="dim">{text(run.measured_by())}. {text(facts)}.</p></header>')
    return "\n".join(lines)


def summary(run: Run) -> str:
    """How often Tailrace is ahead, even and behind."""
    found = tally(run.experiments)
    counts = ", ".join(f"<b>{STANDINGS[standing]} in {len(each)}</b>" for standing, each in found.items() if each)
    number = len(run.experiments)
    return (
        f"Compared with the best other server in each of {number} "
        f"experiment{'s' if number != 1 else ''}, Tailrace is {counts}."
    )


def contents(run: Run) -> str:
    """Links to the sections; those to the experiments are in the second one."""
    entries = [("lead", lead_title(run))] if run.lead() else []
    entries += [("glance", "All results at a glance")] if has_glance(run) else []
    entries += [(slug("group", title), title) for title in run.groups()]
    entries += [("method", "Method and machine"), ("servers", "Servers and their commands")]
    entries += [("goals", "Goals of the project")] if shows_goals(run) else []
    links = "".join(f'<li><a href="#{target}">{text(title)}</a></li>' for target, title in entries)
    return f'<nav id="contents" aria-label="Contents"><ul>{links}</ul></nav>'


def slug(kind: str, name: str) -> str:
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}"


def anchor(experiment: Experiment) -> str:
    return slug("experiment", experiment.name)


def lead(run: Run) -> list[str]:
    """The most important experiments, first."""
    if not run.lead():
        return []
    said = "" if run.lead_is_usual() else '<p class="dim">This run has no experiment with a worker per core.</p>'
    articles = "".join(article(run, experiment) for experiment in run.lead())
    several = run.refusal is None and len(run.lead()) > 1
    drawn = glance_chart([(each, finding(each.columns[0])) for each in run.lead()]) if several else ""
    return [f'<section class="group" id="lead"><h2>{text(lead_title(run))}</h2>{said}{drawn}{articles}</section>']


def has_glance(run: Run) -> bool:
    return run.refusal is None and any(told.ratio is not None for _, told in standings(run))


def standings(run: Run) -> list[tuple[Experiment, Finding]]:
    """Every experiment: those in which Tailrace is behind, even, ahead; in each group, the worst first."""
    order = (Standing.BEHIND, Standing.EVEN, Standing.AHEAD, Standing.UNKNOWN)
    found = tally(run.experiments)
    return [pair for standing in order for pair in found[standing]]


def glance(run: Run) -> list[str]:
    """Every experiment, losses first."""
    if not has_glance(run):
        return []
    found = standings(run)
    rest = "".join(
        f'<li><a href="#{anchor(each)}">{text(each.title)}</a>: {text(told.text)}</li>'
        for each, told in found
        if not has_ratio(told)
    )
    return [
        '<section id="glance"><h2>All results at a glance, losses first</h2>'
        "<p>The first figure of each experiment, compared with the best other server that had no errors.</p>"
        f"{glance_chart(found)}{f'<ul>{rest}</ul>' if rest else ''}</section>"
    ]


def has_ratio(told: Finding) -> bool:
    return told.ratio is not None and told.ratio.low > 0


def glance_chart(found: Sequence[tuple[Experiment, Finding]]) -> str:
    """One row for each experiment: the ratio to the best other server. Empty if there is none."""
    rows = [glance_row(each, told, told.ratio) for each, told in found if told.ratio is not None and has_ratio(told)]
    if not rows:
        return ""
    scale = Scale.of([figure for row in rows if row.range for figure in (row.range.low, row.range.high, 1.0)], log=True)
    axis = "times better than the best other server, log scale; left of 1, Tailrace is worse"
    drawn = chart.plot(rows, scale, axis, Heads("experiment", "Tailrace is"), baseline=1.0)
    return f'<div class="chart wide">{drawn}</div>'


def glance_row(experiment: Experiment, told: Finding, ratio: Spread) -> Row:
    rival = label(told.rival or "")
    behind = told.standing is Standing.BEHIND
    column = experiment.columns[0]
    beside = f"even with {rival}" if told.standing is Standing.EVEN else f"{times(ratio.middle)} {rival}"
    return Row(
        experiment.title,
        f"{'▼ ' if behind else ''}{beside}",
        ratio.middle,
        ratio,
        "glance",
        worse=behind,
        faulty=bool(column.cells[column.ours()].errors),
        link=f"#{anchor(experiment)}",
    )


def legend(run: Run) -> str:
    even = " <b>Even</b>: the quartiles of the ratio lie on both sides of 1." if run.refusal is None else ""
    return (
        '<p class="legend">A diamond and ▶ mark Tailrace, a dot marks another server, and a bar marks a floor that no '
        "server can beat. The line through a mark spans the quartiles of the rounds. A hollow mark with <b>!</b> had "
        f"errors; ✕ has no figure.{even}</p>"
    )


def section(run: Run, title: str, experiments: list[Experiment]) -> str:
    articles = "".join(article(run, experiment) for experiment in experiments)
    return f'<section class="group" id="{slug("group", title)}"><h2>{text(title)}</h2>{articles}</section>'


def article(run: Run, experiment: Experiment) -> str:
    """One experiment: its finding, its meaning, a chart of each metric, and how to repeat it."""
    ranked = run.refusal is None
    title = text(experiment.title)
    heading = f"<h3>{title}</h3>"
    if ranked:
        heading = f'<h3><span class="kicker">{title}</span> {text(finding(experiment.columns[0]).text)}</h3>'
    meaning = f'<p class="meaning">{text(experiment.meaning)}</p>' if experiment.meaning else ""
    several = len(experiment.columns) > 1
    titles = [short_title(experiment, column) if several else "" for column in experiment.columns]
    figures = "".join(
        figure(run, column, title, told=number > 0)
        for number, (title, column) in enumerate(zip(titles, experiment.columns, strict=True))
    )
    return (
        f'<article id="{anchor(experiment)}" class="{"several" if several else "single"}">{heading}{meaning}'
        f'<div class="figures">{figures}</div>{reproduce(experiment)}</article>'
    )


def short_title(experiment: Experiment, column: Column) -> str:
    """The part of a metric's title that differs from the others of its experiment."""
    title, unit = column.metric.title, column.metric.unit
    if column is experiment.columns[0] and unit == "requests/s":
        return "Requests per second"
    own = title.removeprefix(experiment.title).lstrip(":, ").rpartition(": ")[2] or unit
    return own if re.match(r"p\d", own) else own[:1].upper() + own[1:]


def figure(run: Run, column: Column, title: str = "", told: bool = False) -> str:
    """One metric: its chart, its faults, and the figures as a table. told: show its finding beside the title."""
    metric = column.metric
    ranked = run.refusal is None
    names = [name for name in run.order(column) if not absent(column.cells[name])]
    rows = [row(column, name, ranked) for name in names]
    known = [value for each in rows if each.range is not None for value in (each.range.low, each.range.high)]
    known += [each.figure for each in rows if each.figure is not None]
    scale = Scale.of(known)
    found = f'. <span class="found">{text(finding(column).text)}</span>' if ranked and told else ""
    said = part_of(metric) if title else ""
    sense = "further right is better" if metric.more_is_better else "further left is better"
    axis = f"{metric.unit}{', log scale' if scale.log else ''}; {sense}"
    if scale.log and any(value <= 0 for value in known):
        axis += "; an arrow at the left edge means zero or less"
    shown = "".join(
        [
            f"<h4>{text(title)}{found}</h4>" if title else "",
            f'<p class="part">{text(said)}</p>' if said else "",
            chart.plot(
                rows, scale, axis, Heads("server", metric.unit, "Tailrace is" if any(row.ratio for row in rows) else "")
            )
            if known
            else failures(rows),
            remarks(column, ranked),
        ]
    )
    described = (
        f"{metric.title}, {metric.unit}. {finding(column).text if ranked else ''} The figures follow as a table."
    )
    picture = f'<div class="picture" role="img" aria-label="{text(described)}">{shown}</div>'
    return (
        f'<figure class="chart" data-metric="{text(metric.key)}" data-low="{scale.low!r}" data-high="{scale.high!r}" '
        f'data-log="{int(scale.log)}">{picture}{table(column, names, ranked)}</figure>'
    )


def row(column: Column, name: str, ranked: bool) -> Row:
    """One server in one chart."""
    cell = column.cells[name]
    kind = "floor" if name in FLOOR_LABELS else "ours" if is_ours(name) else ""
    value = column.figure(name)
    if value is None:
        return Row(label(name), kind=kind, why=shortened(cell))
    ratio, worse = ratio_text(column, name) if ranked else ("", False)
    shown = column.metric.show(value)
    return Row(label(name), shown, value, quartiles(cell), kind, ratio, worse, faulty=bool(cell.errors))


def quartiles(cell: Cell) -> Spread | None:
    return Spread.of(cell.values.values()) if cell.values else None


def shortened(cell: Cell) -> str:
    told = reason(cell)
    return told if len(told) <= MAX_REASON else f"{told[:MAX_REASON]}…"


def failures(rows: list[Row]) -> str:
    """Replaces a chart that has nothing to draw: which servers failed, and why."""
    if not rows:
        return '<p class="dim">No server took part.</p>'
    body = "".join(chart.row_of(each, Scale.of([]), "") for each in rows)
    return f'<div class="plot">{body}</div>'


def remarks(column: Column, ranked: bool) -> str:
    """The remarks below a chart: errors, servers excluded because of errors, and servers that did not take part."""
    lines = []
    for name, cell in column.cells.items():
        if cell.errors and cell.values:
            told = f": {shortened(cell)}" if cell.notes else ""
            lines.append(
                f"<li><b>!</b> {text(label(name))}: {cell.errors:,} error{'s' if cell.errors != 1 else ''}"
                f"{text(told)}</li>"
            )
    if ranked:
        rival = finding(column).rival
        left = better_with_errors(column, rival)
        if rival and left:
            lines.append(f"<li>Excluded from the comparison because of errors: {text(', '.join(left))}.</li>")
    missing: dict[str, list[str]] = {}
    for name, cell in column.cells.items():
        if absent(cell):
            missing.setdefault(reason(cell), []).append(label(name))
    for why, names in missing.items():
        lines.append(f"<li>Did not take part ({text(why)}): {text(', '.join(names))}.</li>")
    return f'<ul class="remarks">{"".join(lines)}</ul>' if lines else ""


def table(column: Column, names: list[str], ranked: bool) -> str:
    """The figures of a chart, and those for which it has no room."""
    if not names:
        return ""
    show = column.metric.show
    heads = ["server", f"median, {column.metric.unit}", "quartiles", "lowest - highest", "rounds"]
    heads += [*(["Tailrace is"] if ranked else []), "errors"]
    lines = []
    for name in names:
        cell = column.cells[name]
        value, range_ = column.figure(name), quartiles(cell)
        figures = sorted(cell.values.values())
        told = [
            show(value) if value is not None else "-",
            f"{show(range_.low)} - {show(range_.high)}" if range_ else "",
            f"{show(figures[0])} - {show(figures[-1])}" if figures else "",
            f"{len(figures)} of {cell.rounds}" if len(figures) != cell.rounds else str(cell.rounds),
        ]
        if ranked:
            told.append(ratio_in_full(column, name))
        told.append(f"{cell.errors:,}" if cell.errors else "")
        cells = "".join(f"<td>{text(each)}</td>" for each in told)
        lines.append(f'<tr><th scope="row">{text(label(name))}</th>{cells}</tr>')
    notes = "".join(
        f"<li>{text(label(name))}: {text('; '.join(column.cells[name].notes) or reason(column.cells[name]))}</li>"
        for name in names
        if column.cells[name].notes or not column.cells[name].values
    )
    told_by = f'<p>Notes on the rounds:</p><ul class="remarks">{notes}</ul>' if notes else ""
    top = "".join(f'<th scope="col">{text(each)}</th>' for each in heads)
    return (
        f'<details class="data"><summary>Figures<span class="hidden"> of {text(column.metric.title)}</span></summary>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Figures of {text(column.metric.title)}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{told_by}</details>"
    )


def ratio_in_full(column: Column, name: str) -> str:
    found = ratio_to(column, name)
    if looks_even(column, name) and (found is None or not is_even(found)):
        return "even"
    if found is None:
        return ""
    bounds = f"({found.low:,.2f} - {found.high:,.2f})"
    return f"even {bounds}" if is_even(found) else f"{found.middle:,.2f} {SIGN} {bounds}"


def reproduce(experiment: Experiment) -> str:
    """The commands of the whole experiment, of the load, and of each server."""
    lines = [("Whole experiment", experiment.again())]
    if experiment.load and not experiment.load.startswith(experiment.again()):
        lines.append(("Load only", experiment.load))
    lines += [(label(name), command) for name, command in experiment.commands.items()]
    shown = "".join(f"<dt>{text(name)}</dt><dd><code>{text(command)}</code></dd>" for name, command in lines)
    return f'<details class="again"><summary>Reproduce</summary><dl>{shown}</dl></details>'


def method(run: Run, data: str | None) -> str:
    facts = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in run.machine.items())
    asked = text(str(run.asked.get("command", "tailrace compare")))
    link = f' <a href="{text(data)}">The JSON file</a> has the figures of every round.' if data else ""
    busy = "".join(
        f"<li>{text(name)}: {100 * median(shares):.0f} % in the median round, {100 * max(shares):.0f} % at most</li>"
        for name, shares in others(run.columns).items()
    )
    used = (
        f"<details><summary>Share of the servers' core that other processes used</summary><ul>{busy}</ul></details>"
        if busy
        else ""
    )
    ratios = (
        " A ratio is the median of the ratios of single rounds: a machine that slows down then slows down both "
        "servers. Above 1, Tailrace is better."
        if run.refusal is None
        else ""
    )
    return (
        f'<section id="method"><h2>Method and machine</h2><p class="command"><code>{asked}</code></p>'
        "<p>The servers of an experiment take turns. Each is measured once per round while the others are stopped, and "
        "each round starts with a different server. A figure is the median of its rounds. The line through a mark "
        f"spans the quartiles, or the extremes if there are fewer than four rounds.{ratios} A server whose response is "
        f"wrong "
        f'gets no figure.{link}</p><dl class="facts">{facts}</dl>{used}</section>'
    )


def servers(run: Run) -> str:
    """Each server that took part: its version, its command, and the reason for it."""
    told = run.document
    versions, commands, reasons = (told.get(key) or {} for key in ("versions", "commands", "reasons"))
    columns = run.columns.values()
    took_part = [
        name for name in run.names() if any(name in each.cells and not absent(each.cells[name]) for each in columns)
    ]
    blocks = []
    for name in took_part:
        if name not in commands:
            continue
        version = versions.get(name) or "unknown version"
        why = reasons.get(name, "")
        blocks.append(
            f'<div class="server"><h3>{text(name)} <span class="dim">{text(version)}</span></h3>'
            f"<p><code>{text(commands[name])}</code></p>{f'<p>{text(why)}</p>' if why else ''}</div>"
        )
    missing = [name for name in commands if name not in took_part and not versions.get(name)]
    rest = f'<p class="dim">Not installed: {text(", ".join(missing))}.</p>' if missing else ""
    return (
        '<section id="servers"><h2>Servers and their commands</h2><p>Each server runs as its documentation recommends '
        "for this machine. The application in these commands is an example; each experiment lists its own under "
        f"“Reproduce”.</p>{''.join(blocks)}{rest}</section>"
    )


def shows_goals(run: Run) -> bool:
    return bool(run.goals) and run.refusal is None


def goals(run: Run) -> list[str]:
    if not shows_goals(run):
        return []
    columns = run.columns
    lines = []
    for goal in run.goals:
        column = columns.get(goal["metric"])
        title = column.metric.title if column is not None else goal["metric"]
        word = WORDS[goal["met"]]
        lines.append(
            f'<tr><th scope="row">{text(title)}</th><td>{text(goal["goal"])}</td><td>{text(goal["measured"])}</td>'
            f'<td class="{"worse" if goal["met"] is False else ""}">{word}</td></tr>'
        )
    heads = "".join(f'<th scope="col">{each}</th>' for each in ("figure", "goal", "measured", "verdict"))
    return [
        '<section id="goals"><h2>Goals of the project</h2><p>The targets of Tailrace, and whether it met them.</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Goals of the project"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    ]
