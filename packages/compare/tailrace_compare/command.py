"""`tailrace compare`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from tailrace.cli.arguments import OPEN, Command
from tailrace_compare import main


def _compare(
    app: str | None,
    urls: tuple[str, ...],
    only: str | None,
    servers: str | None,
    quick: bool,
    rounds: int | None,
    seconds: float,
    minutes: float | None,
    output: Path,
    fresh: bool,
    list: bool,
    install: bool,
    render: bool,
    chart: Path | None,
) -> int:
    """Compare Tailrace with the other installed WSGI servers.

    Each server runs as its own documentation recommends, and once more with settings that match Tailrace's defaults.
    Servers take turns, every response is checked, and results.json, report.md and report.html are written after each
    experiment. To continue an interrupted run, repeat the command.

    With MODULE:CALLABLE, measures your own application, which is imported from the current directory.
    """
    if list:
        click.echo(main.listing())
        return 0
    if install:
        return main.install()
    if render:
        click.echo(main.render(output))
        return 0
    if chart is not None:
        main.draw(output, chart)
        return 0
    return main.run(
        main.Asked(
            app=app,
            urls=urls,
            only=_names(only),
            servers=_names(servers),
            quick=quick,
            rounds=rounds,
            seconds=seconds,
            minutes=minutes,
            output=output,
            fresh=fresh,
        )
    )


def _names(given: str | None) -> tuple[str, ...]:
    """Those of a list with commas."""
    return tuple(name for each in (given or "").split(",") if (name := each.strip()))


COMPARE: Final = Command(
    "compare",
    callback=_compare,
    context_settings=OPEN,
    params=[
        click.Argument(["app"], required=False, metavar="[MODULE:CALLABLE]"),
        click.Option(
            ["--url", "urls"],
            metavar="PATH",
            multiple=True,
            help="Path and query to request from your application. Repeatable. [default: /]",
        ),
        click.Option(["--only"], metavar="NAMES", help="Run only these experiments, separated by commas; see --list."),
        click.Option(
            ["--servers"],
            metavar="NAMES",
            help=(
                "Measure only these servers, separated by commas; one word of a name suffices. [default: all installed]"
            ),
        ),
        click.Option(
            ["--quick"],
            is_flag=True,
            help=("Run one round of the main experiments and servers, in under two minutes."),
        ),
        click.Option(
            ["--rounds"],
            type=click.IntRange(1, 1000),
            metavar="N",
            help="Number of interleaved rounds per experiment. [default: 5; with --quick: 1]",
        ),
        click.Option(
            ["--seconds"],
            type=click.FloatRange(0.05, 600),
            default=1.0,
            metavar="SECONDS",
            help="Duration of the load on one server in one round; wrk rounds it to whole seconds. [default: 1]",
        ),
        click.Option(
            ["--minutes"],
            type=click.FloatRange(0.05, 10_000),
            metavar="MINUTES",
            help="Time limit: start no round that would exceed it. [default: 60; with --quick: 1.6]",
        ),
        click.Option(
            ["--output"],
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("comparison"),
            metavar="DIR",
            help="Directory for results.json and the reports. [default: comparison]",
        ),
        click.Option(["--fresh"], is_flag=True, help="Start over instead of continuing an interrupted run."),
        click.Option(["--list"], is_flag=True, help="List the experiments and servers, and exit."),
        click.Option(["--install"], is_flag=True, help="Install the servers into a separate environment, and exit."),
        click.Option(["--render"], is_flag=True, help="Write the reports from DIR/results.json again, and exit."),
        # For the README of Tailrace.
        click.Option(["--chart"], type=click.Path(dir_okay=False, path_type=Path), hidden=True),
    ],
    help=_compare.__doc__,
    epilog="""\b
Examples:
  pip install 'tailrace[compare]'
  tailrace compare --install                           install the other servers
  tailrace compare --quick                             a quick overview
  tailrace compare                                     everything: one hour
  tailrace compare --only pong_c64,flask_c16 --rounds 12
  tailrace compare --servers tailrace,granian,gthread
  tailrace compare mysite.wsgi:application --url /report --url /api/items
""",
)
