"""The README's table: Flask and Django as people run them, with a worker per core, beside the servers that most
people come from."""

from __future__ import annotations

from typing import Any

from tailrace_compare.peers import TAILRACE
from tailrace_compare.report.findings import configuration
from tailrace_compare.report.run import Run
from tailrace_compare.results import Column

NONE = "-"
ROWS = {
    "everyday_flask_json": "Flask, JSON",
    "everyday_flask_page": "Flask, rendered template",
    "everyday_django_page": "Django, rendered template",
}
SERVERS = {TAILRACE: "Tailrace", "gunicorn gthread": "gunicorn", "granian": "granian", "uwsgi http11": "uWSGI"}


def headline(document: dict[str, Any]) -> str:
    """The table in Markdown, with its conditions below it. Raises KeyError when the run lacks a row."""
    run = Run.of(document)
    lines = [f"| requests per second, and p99 | {' | '.join(SERVERS.values())} |", "|---" * (1 + len(SERVERS)) + "|"]
    for name, title in ROWS.items():
        rate, latency = run.columns[name], run.columns[f"{name}_p99"]
        cells = [cell(rate, latency, server) for server in SERVERS]
        lines.append(f"| {title} | {cells[0]} | {' | '.join(cells[1:])} |")
    day, processor = run.when[:10], run.machine["processor"]
    conditions = f"Two workers on two cores, 32 connections: {processor}, {day}."
    if any(f"<br>{NONE}" in line for line in lines):
        conditions += " A dash instead of the p99 means that the server left some connections unanswered."
    return "\n".join([*lines, "", conditions])


def cell(rate: Column, latency: Column, server: str) -> str:
    """The figures of a server's better configuration."""
    best = configuration(rate, server)
    requests, p99 = rate.figure(best), latency.figure(best)
    return f"{NONE if requests is None else f'{requests:,.0f}'}<br>{NONE if p99 is None else f'{p99:.0f} ms'}"
