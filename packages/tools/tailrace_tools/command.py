"""`tailrace doctor`, `threads`, `top`, `trace`, `migrate` and `static list`: their options. Each imports the rest when
it is used."""

from __future__ import annotations

import contextlib
import json as as_json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import click

from tailrace.cli import folders
from tailrace.cli.arguments import CONFIG, OPEN, Command, Examining, Serving, parameter, settings_of
from tailrace.cli.option import STATIC
from tailrace.cli.options import OPTIONS
from tailrace.cli.values import seconds
from tailrace.errors import ConfigError, TailraceError
from tailrace.printable import printable
from tailrace.stacks import process
from tailrace.system import directory
from tailrace_tools.live import ask, trace

_STATUS: Final = click.Option(["--status"], metavar="ADDRESS", help="Address of the server's --status.")


def _asked(status: str | None, config: str | None) -> ask.Asked:
    """The server whose address was given, or is set. Raises ConfigError."""
    if status is None:
        status = settings_of({"config": config})[0]["status"].value
    if status is None:
        raise click.UsageError(ask.WHICH, click.get_current_context())
    return ask.Asked(status)


def _doctor(
    url: str,
    method: str | None,
    header: tuple[str, ...],
    body: str | None,
    times: int,
    timeout: float,
    live: bool,
    memory: float | None,
    json: bool,
    **given: Any,
) -> int:
    """Explain how a response is delivered and what would make it faster.

    Run the application in this process, on an actual Tailrace server, and call it several times (--times, plus two).
    Each finding states its measured cost and the code change that fixes it; see docs/doctor.md. Accepts the options
    of `tailrace serve`, and settings from the same places; --gevent, --debug, --reload and --workers have no effect.

    With --live, asks a running server, at its --status address, which ten endpoints cost the most, and why. With
    --memory as well, shows which lines of the application allocate memory and keep it.

    Exit status: 0 without findings, 1 with findings, 2 for a usage error or if there is no response, 3 if the
    application cannot be loaded.
    """
    if memory is not None:
        if not live or json:
            raise click.UsageError("--memory needs --live, and prints text", click.get_current_context())
        return _memory_of_running(given["status"], given["config"], memory)
    if live:
        return _doctor_of_running(given["status"], given["config"], json)
    from tailrace_tools.doctor import run

    settings, warnings = settings_of(given)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    if settings["app"].value is None:
        raise click.UsageError(
            "no application: name one, as in `tailrace doctor mysite.wsgi:application --url /report`",
            click.get_current_context(),
        )
    shown, status = run.run(
        settings, url=url, method=method, headers=header, body=body, times=times, timeout=timeout, as_json=json
    )
    click.echo(shown, color=False if "NO_COLOR" in os.environ else None)
    return status


def _doctor_of_running(status: str | None, config: str | None, json: bool) -> int:
    """`tailrace doctor --live`; the exit status."""
    from tailrace_tools.doctor import live, run

    asked = _asked(status, config)
    try:
        found = asked.status()
        if "endpoints" not in found:
            version = printable(str(found.get("version")))
            raise ConfigError(
                f"the server at {asked.address} is Tailrace {version}, which does not report endpoints; upgrade it"
            )
        with asked.understood():
            shown = live.as_json(found) if json else live.as_text(found, str(asked.address))
            has_findings = live.has_findings(found)
    except TailraceError as error:
        # 1 would say that something was found.
        error.exit_status = run.WRONG_USE
        raise
    click.echo(shown, color=False if "NO_COLOR" in os.environ else None)
    return run.FOUND if has_findings else run.WELL


def _memory_of_running(status: str | None, config: str | None, seconds: float) -> int:
    """`tailrace doctor --live --memory`; the exit status."""
    from tailrace_tools.doctor import memory, run

    asked = _asked(status, config)
    try:
        found = asked.status()
        with asked.understood():
            shown = memory.examine(found, seconds)
    except TailraceError as error:
        error.exit_status = run.WRONG_USE
        raise
    click.echo("\n".join(map(printable, shown.splitlines())))
    return run.WELL


DOCTOR: Final = Examining(
    "doctor",
    callback=_doctor,
    params=[
        *map(parameter, OPTIONS),
        CONFIG,
        click.Option(["--url"], metavar="PATH", default="/", help="Path and query to request. [default: /]"),
        click.Option(["--method"], metavar="NAME", help="Request method. [default: GET, with --body POST]"),
        click.Option(
            ["--header"], metavar="FIELD", multiple=True, help="Request field, as in 'Cookie: a=b'. Repeatable."
        ),
        click.Option(["--body"], metavar="FILE", help="Request body; - reads standard input."),
        click.Option(
            ["--times"],
            type=click.IntRange(1, 100),
            metavar="N",
            default=3,
            help="Number of measurements; the fastest counts. [default: 3]",
        ),
        click.Option(
            ["--timeout"],
            type=click.FloatRange(0.1, 3600),
            metavar="SECONDS",
            default=30.0,
            help="Time limit for one response. [default: 30]",
        ),
        click.Option(
            ["--live"],
            is_flag=True,
            help=("Ask the running server at --status instead of loading the application."),
        ),
        click.Option(
            ["--memory"],
            type=click.FloatRange(1, 3600),
            metavar="SECONDS",
            help="With --live: attach memray to a worker for this long, and show which lines keep memory.",
        ),
        click.Option(["--json"], is_flag=True, help="Print a JSON object."),
    ],
    help=_doctor.__doc__,
    context_settings=OPEN,
)


def _threads(status: str | None, pid: int | None, json: bool, config: str | None) -> None:
    """Print what each thread of a running server is doing: its state, request, time and Python stack.

    Asks the server at its --status address, which may also come from TAILRACE_STATUS or the settings file. With
    --pid, reads a process: a worker, a master, or any Python program. This requires the same user or root, and shows no
    requests. Stacks need `pip install 'tailrace[status]'`.
    """
    if pid is not None and status is not None:
        raise click.UsageError("give --status or --pid, not both")
    understood: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if pid is not None:
        workers = ask.process(pid)
    else:
        asked = _asked(status, config)
        workers, understood = asked.stacks(), asked.understood()
    with understood:
        shown = as_json.dumps({"workers": workers}, indent=1) if json else process.text(workers)
    click.echo(shown, nl=json)


THREADS: Final = Command(
    "threads",
    callback=_threads,
    context_settings=OPEN,
    params=[
        _STATUS,
        click.Option(["--pid"], type=click.IntRange(1), metavar="PID", help="Read this process instead."),
        click.Option(["--json"], is_flag=True, help="Print the JSON of /stacks."),
        CONFIG,
    ],
    help=_threads.__doc__,
    epilog="""\b
Examples:
  tailrace app:app --status 127.0.0.1:9000      the server
  tailrace threads --status 127.0.0.1:9000      its threads
  tailrace threads --pid 4711                   without --status
  tailrace threads --json | jq '.workers[].threads[] | select(.holds_interpreter)'
""",
)


def _top(status: str | None, interval: float, config: str | None) -> None:
    """Show the requests and threads of a running server live, in the terminal.

    Asks the server at its --status address, which may also come from TAILRACE_STATUS or the settings file. Press
    Enter to show the stack of a thread, ? to explain each figure, and 1 to 6 to sort by a column. Needs `pip install
    'tailrace[top]'`; stacks need `tailrace[status]`.
    """
    asked = _asked(status, config)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("not a terminal; use `tailrace threads` to print the threads once")
    try:
        from tailrace_tools.live import top
    except ImportError as error:
        raise ConfigError(
            f"`tailrace top` needs the package textual; `pip install 'tailrace[top]'` ({error})"
        ) from None
    top.run(asked, interval)


TOP: Final = Command(
    "top",
    callback=_top,
    context_settings=OPEN,
    params=[
        _STATUS,
        click.Option(
            ["--interval"],
            type=click.FloatRange(0.5, 3600),
            default=1.0,
            metavar="SECONDS",
            help="Time between updates. [default: 1]",
        ),
        CONFIG,
    ],
    help=_top.__doc__,
    epilog="""\b
Examples:
  tailrace app:app --status 127.0.0.1:9000      the server
  tailrace top --status 127.0.0.1:9000          its threads, live
""",
)


def _trace(script: str, pid: int | None, over: str | None, print: bool) -> None:
    """Trace running servers through their USDT probes with bpftrace, until Ctrl-C.

    SCRIPT is latency, calls, blocks or gil. Needs bpftrace and root. Probes cost almost nothing unless they are traced.
    See docs/doctor.md.
    """
    if over is not None and script not in trace.OVER:
        raise click.UsageError(f"--over applies only to {' and '.join(trace.OVER)}", click.get_current_context())
    try:
        seconds = _OVER.read(over or "100ms")
    except ValueError as error:
        raise click.UsageError(f"--over {error}", click.get_current_context()) from None
    if print:
        click.echo(shlex.join(trace.command(script, pid, seconds)))
    else:
        trace.run(script, pid, seconds)


_OVER: Final = seconds(zero=False)
TRACE: Final = Command(
    "trace",
    callback=_trace,
    context_settings=OPEN,
    params=[
        click.Argument(["script"], type=click.Choice(list(trace.SCRIPTS)), metavar="SCRIPT"),
        click.Option(
            ["--pid"],
            type=click.IntRange(1),
            metavar="PID",
            help="Trace this process, or the workers of this master. [default: all servers of this installation]",
        ),
        click.Option(
            ["--over"], metavar="SECONDS", help="With blocks and gil: minimum duration to print. [default: 100ms]"
        ),
        click.Option(["--print"], is_flag=True, help="Print the bpftrace command instead of running it."),
    ],
    help=_trace.__doc__,
    epilog="\b\nScripts:\n"
    + "".join(f"  {name:9} {what}\n" for name, what in trace.SCRIPTS.items())
    + """
\b
Examples:
  sudo $(which tailrace) trace latency
  sudo $(which tailrace) trace gil --pid 4711 --over 20ms
""",
)


def _migrate(source: str) -> None:
    """Convert another server's configuration to a tailrace.toml, and print it.

    SOURCE is a gunicorn.conf.py, a uWSGI file (.ini, .yaml, .json or .xml), a Procfile, a systemd unit, a Dockerfile,
    or a command line of gunicorn, uWSGI, granian, waitress or mod_wsgi-express as one argument. Nothing is executed.
    Comments in the output list options without an equivalent, with the reason. Warnings also go to standard error.

    If SOURCE is a directory, each line of the project that starts or installs another server is printed with its
    replacement, and with what you have to change by hand. No file is changed.

    Exit status: 0, or 2 if SOURCE cannot be read.
    """
    from tailrace_tools.migrate import main as migrate
    from tailrace_tools.migrate import project

    if os.path.isdir(source):
        click.echo(project.report(Path(source)))
        return
    text, warnings = migrate.run(source)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    click.echo(text)


class _Migrate(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Shows how to quote a command line, whose options would be taken for those of `migrate`."""
        from tailrace_tools.migrate import command_line

        if len(args) > 1 and any(command_line.looks_like_one(each) for each in args if " " not in each):
            quoted = shlex.quote(shlex.join(args))
            raise click.UsageError(f"the command line must be one argument; put it in quotes: {quoted}", ctx)
        return super().parse_args(ctx, args)


MIGRATE: Final = _Migrate(
    "migrate",
    callback=_migrate,
    context_settings=OPEN,
    params=[click.Argument(["source"], metavar="SOURCE")],
    help=_migrate.__doc__,
    epilog="""\b
Examples:
  tailrace migrate .                            show what to change in a project
  tailrace migrate gunicorn.conf.py > tailrace.toml
  tailrace migrate /etc/uwsgi/mysite.ini
  tailrace migrate 'gunicorn -w 4 -b :8000 mysite.wsgi'
  tailrace config                               check the result
""",
)


def _static_list(path: str | None, json: bool, **given: Any) -> None:
    """List the URLs of static files, each with its file, length and response fields.

    Accepts the options of `tailrace serve`; MODULE:CALLABLE has no effect, and nothing is served. Also lists files
    that are not served, with the reasons. PATH selects URLs, such as /assets, '/img/*.png' or '*.js'.
    """
    from tailrace_tools import static_list

    settings, warnings = settings_of(given)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    chosen = settings.effective
    if not chosen.static and chosen.overlay is None:
        raise click.UsageError(
            "no folder to serve: name one, as in --static /assets=./dist or --overlay ./public",
            click.get_current_context(),
        )
    if path is not None and "/" in path and not path.startswith("/"):
        raise click.UsageError(
            f"PATH is a URL path and begins with a slash: /{path.removeprefix('./')}", click.get_current_context()
        )
    directory.leave_removed(chosen.chdir)
    here = directory.named(chosen.chdir)
    found = static_list.rows(folders.located(chosen, here), path)
    if not found and path is not None and not json:
        application = "" if path.startswith("/") else " (no application is needed)"
        raise ConfigError(f"{path}: no file in the folders matches; omit PATH to list all files{application}")
    click.echo(static_list.as_json(found) if json else static_list.as_text(found, here))


class _Static(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a command, says which there are."""
        if not args:
            raise click.UsageError(f"no command given; choose from {', '.join(self.commands)}", ctx)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Raises UsageError for an unknown one."""
        if cmd_name not in self.commands:
            near = ", ".join(self.commands)
            raise click.UsageError(f"no such command: {ctx.command_path} {cmd_name}; did you mean {near}?", ctx)
        return self.commands[cmd_name]


# An application as `serve` takes it; without a colon it may be a file's name.
_APPLICATION: Final = re.compile(r"(?:[\w.]+|[^*]*\.(?:py|wsgi)):[A-Za-z_][\w.]*(?:\(.*\))?")


class _Listing(Serving):
    groups = (STATIC,)

    def check_arguments(self, ctx: click.Context) -> None:
        """Ignores the application, so that the command line of a server can be used again. Rejects more than one other
        argument. Raises UsageError."""
        given = [each for each in (ctx.params["path"], *ctx.args) if each and not _APPLICATION.fullmatch(each)]
        if len(given) > 1:
            several = ", ".join(map(repr, given))
            raise click.UsageError(f"only one PATH can be given, but there are several arguments: {several}", ctx)
        ctx.params["path"] = given[0] if given else None


STATIC_FILES: Final = _Static(
    "static",
    commands=[
        _Listing(
            "list",
            callback=_static_list,
            params=[
                click.Argument(["path"], required=False, metavar="[PATH]"),
                *(parameter(option) for option in OPTIONS if not option.positional),
                CONFIG,
                click.Option(["--json"], is_flag=True, help="Print a JSON list."),
            ],
            help=_static_list.__doc__,
            short_help="List the URLs of static files, and the files that are not served.",
            context_settings=OPEN,
        )
    ],
    help="List the files that are served without calling the application.",
    no_args_is_help=False,
)
