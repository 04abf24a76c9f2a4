"""The `tailrace` command.

Exit status: 0 after a requested stop, 2 for a usage or settings error, 3 if the application or the workers cannot
start, 130 when interrupted before it served, 1 for any other error. `tailrace doctor`: 1 with findings."""

from __future__ import annotations

import atexit
import contextlib
import json as as_json
import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import click

from tailrace._tailrace import __version__
from tailrace.cli import arguments, folders, log_settings, show, static_list, values
from tailrace.cli.options import OPTIONS
from tailrace.cli.settings import effective, from_the_platform
from tailrace.errors import ConfigError, LoadError, TailraceError
from tailrace.live import trace
from tailrace.logs import log
from tailrace.master import main as master
from tailrace.master import service
from tailrace.printable import printable
from tailrace.system import descriptors, directory, early
from tailrace.system.exit import leave
from tailrace.worker import single

if TYPE_CHECKING:
    from tailrace.live.ask import Asked

_EXAMPLES: Final = """\b
Examples:
  tailrace mysite.wsgi                          a Django project
  tailrace 'flaskr:create_app()'                a factory
  tailrace ./hello.py --debug                   a file, during development
  tailrace app:app -b :80 -b '[::]:80'          all addresses, IPv4 and IPv6
  tailrace app:app -b unix:/run/app.sock --socket-mode 660
  tailrace app:app --gevent --hub-warn 250ms    greenlets, for many waiting requests
  tailrace app:app --static /assets=./dist      static files, without the application
  tailrace threads --status 127.0.0.1:9000      what a server with --status is doing
  tailrace doctor --live --status 127.0.0.1:9000   the endpoints that cost most to deliver

Every option is also an environment variable (--max-body: TAILRACE_MAX_BODY) and a key of tailrace.toml or of
[tool.tailrace] in pyproject.toml (max_body). The command line takes precedence over the environment, and the
environment over the file.

\b
Exit status:
  0    stopped on request
  1    any other error, such as an address in use
  2    error in the command line, an environment variable or the settings file
  3    the application, a hook or the workers cannot start
  130  interrupted before a worker served
"""


@click.group(
    cls=arguments.ServeByDefault,
    context_settings=arguments.CONTEXT,
    epilog=_EXAMPLES,
    options_metavar="",
    subcommand_metavar="MODULE:CALLABLE [OPTIONS] | COMMAND [OPTIONS]",
)
@click.version_option(__version__, prog_name="tailrace", message="%(prog)s %(version)s")
def cli() -> None:
    """Serve a WSGI application over HTTP.

    `tailrace MODULE:CALLABLE` is short for `tailrace serve MODULE:CALLABLE`.
    """
    if click.get_current_context().invoked_subcommand != "serve":
        early.unprotect()


def _serve(**given: Any) -> int:
    """Serve a WSGI application until SIGINT or SIGTERM.

    docs/options.md describes each option in detail.
    """
    settings, warnings = arguments.settings_of(given)
    if settings["app"].value is None:
        raise click.UsageError(
            "no application: name one, as in `tailrace mysite.wsgi:application`, in TAILRACE_APP, or as `app` in "
            "tailrace.toml"
        )
    directory.leave_removed(settings["chdir"].value)
    log_settings.begin(settings)
    for warning in warnings:
        log.logger.warning("%s", warning)
    atexit.unregister(logging.shutdown)
    atexit.register(log.shutdown)
    atexit.register(early.ignore_stops)
    settings, surroundings = service.from_environment(settings)
    if said := from_the_platform(settings):
        log.logger.info("%s", said)
    # Process 1 has a master also with --debug: the master reaps orphans, and the application its own children.
    if not settings["debug"].value or settings["reload"].value or os.getpid() == 1:
        return master.serve(settings, surroundings=surroundings)
    # A server with --debug never handles these two. It handles SIGUSR1 once it serves.
    early.unprotect((signal.SIGHUP, signal.SIGUSR2))
    if not single.serve(settings):
        leave(0)
    return 0


def _config(format: str, **given: Any) -> None:
    """Print the effective settings and their sources.

    Accepts the options of `tailrace serve`, so you can check a command line before using it.
    """
    settings, warnings = arguments.settings_of(given)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    log_settings.check(settings)
    click.echo(show.as_json(settings) if format == "json" else show.as_toml(settings))


def _static_list(path: str | None, json: bool, **given: Any) -> None:
    """List the URLs of static files, each with its file, length and response fields.

    Accepts the options of `tailrace serve`; MODULE:CALLABLE has no effect, and nothing is served. Also lists files
    that are not served, with the reasons. PATH selects URLs, such as /assets, '/img/*.png' or '*.js'.
    """
    settings, warnings = arguments.settings_of(given)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    chosen = effective(settings)
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
    # With an HTTP client and more, which a server does not need.
    from tailrace.doctor import run

    settings, warnings = arguments.settings_of(given)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    chosen = effective(settings)
    if chosen.app is None:
        raise click.UsageError(
            "no application: name one, as in `tailrace doctor mysite.wsgi:application --url /report`",
            click.get_current_context(),
        )
    directory.leave_removed(chosen.chdir)
    shown, status = run.run(
        chosen, url=url, method=method, headers=header, body=body, times=times, timeout=timeout, as_json=json
    )
    click.echo(shown, color=False if "NO_COLOR" in os.environ else None)
    return status


def _doctor_of_running(status: str | None, config: str | None, json: bool) -> int:
    """`tailrace doctor --live`; the exit status."""
    from tailrace.doctor import live, run

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
    from tailrace.doctor import memory, run

    asked = _asked(status, config)
    try:
        found = asked.status()
        click.echo(f"attaching memray to a worker for {seconds:g} s, which slows it down ...", err=True)
        with asked.understood():
            shown = memory.examine(found, seconds)
    except TailraceError as error:
        error.exit_status = run.WRONG_USE
        raise
    click.echo("\n".join(map(printable, shown.splitlines())))
    return run.WELL


static = arguments.Group(
    "static", help="List the files that are served without calling the application.", no_args_is_help=False
)
static.add_command(
    arguments.Listing(
        "list",
        callback=_static_list,
        params=[
            click.Argument(["path"], required=False, metavar="[PATH]"),
            *(arguments.parameter(option) for option in OPTIONS if not option.positional),
            arguments.CONFIG,
            click.Option(["--json"], is_flag=True, help="Print a JSON list."),
        ],
        help=_static_list.__doc__,
        short_help="List the URLs of static files, and the files that are not served.",
        context_settings=arguments.OPEN,
    )
)
cli.add_command(static)
cli.add_command(
    arguments.Examining(
        "doctor",
        callback=_doctor,
        params=[
            *map(arguments.parameter, OPTIONS),
            arguments.CONFIG,
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
        short_help="Explain why a response is slow and what to change.",
        context_settings=arguments.OPEN,
    )
)
cli.add_command(
    arguments.Serving(
        "serve",
        callback=_serve,
        params=[*map(arguments.parameter, OPTIONS), arguments.CONFIG],
        help=_serve.__doc__,
        epilog=_EXAMPLES,
        context_settings=arguments.OPEN,
    )
)
cli.add_command(
    arguments.Serving(
        "config",
        callback=_config,
        params=[
            *map(arguments.parameter, OPTIONS),
            arguments.CONFIG,
            click.Option(
                ["--format"], type=click.Choice(["toml", "json"]), default="toml", help="Output format. [default: toml]"
            ),
        ],
        help=_config.__doc__,
        context_settings=arguments.OPEN,
    )
)


def _threads(status: str | None, pid: int | None, json: bool, config: str | None) -> None:
    """Print what each thread of a running server is doing: its state, request, time and Python stack.

    Asks the server at its --status address, which may also come from TAILRACE_STATUS or the settings file. With
    --pid, reads a process: a worker, a master, or any Python program. This requires the same user or root, and shows no
    requests. Stacks need `pip install 'tailrace[status]'`.
    """
    # With an HTTP client, whose ssl must not be imported in a server before gevent has patched it.
    from tailrace.live import ask
    from tailrace.status import threads

    if pid is not None and status is not None:
        raise click.UsageError("give --status or --pid, not both")
    understood: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if pid is not None:
        workers = ask.process(pid)
    else:
        asked = _asked(status, config)
        workers, understood = asked.stacks(), asked.understood()
    with understood:
        shown = as_json.dumps({"workers": workers}, indent=1) if json else threads.text(workers)
    click.echo(shown, nl=json)


def _asked(status: str | None, config: str | None) -> Asked:
    """The server whose address was given, or is set. Raises ConfigError."""
    from tailrace.live import ask

    if status is None:
        status = arguments.settings_of({"config": config})[0]["status"].value
    if status is None:
        raise click.UsageError(ask.WHICH, click.get_current_context())
    return ask.Asked(status)


_STATUS: Final = click.Option(["--status"], metavar="ADDRESS", help="Address of the server's --status.")
cli.add_command(
    arguments.Command(
        "threads",
        callback=_threads,
        context_settings=arguments.OPEN,
        short_help="Print what each thread of a running server is doing.",
        params=[
            _STATUS,
            click.Option(["--pid"], type=click.IntRange(1), metavar="PID", help="Read this process instead."),
            click.Option(["--json"], is_flag=True, help="Print the JSON of /stacks."),
            arguments.CONFIG,
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
        from tailrace.live import top
    except ImportError as error:
        raise ConfigError(
            f"`tailrace top` needs the package textual; `pip install 'tailrace[top]'` ({error})"
        ) from None
    top.run(asked, interval)


cli.add_command(
    arguments.Command(
        "top",
        callback=_top,
        context_settings=arguments.OPEN,
        short_help="Live view of the requests and threads of a running server.",
        params=[
            _STATUS,
            click.Option(
                ["--interval"],
                type=click.FloatRange(0.5, 3600),
                default=1.0,
                metavar="SECONDS",
                help="Time between updates. [default: 1]",
            ),
            arguments.CONFIG,
        ],
        help=_top.__doc__,
        epilog="""\b
Examples:
  tailrace app:app --status 127.0.0.1:9000      the server
  tailrace top --status 127.0.0.1:9000          its threads, live
""",
    )
)


def _trace(script: str, pid: int | None, over: str | None, print: bool) -> None:
    """Trace running servers through their USDT probes with bpftrace, until Ctrl-C.

    SCRIPT is latency, calls, blocks or gil. Needs bpftrace and root. Probes cost almost nothing unless they are traced.
    See docs/probes.md.
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


_OVER: Final = values.seconds(zero=False)
cli.add_command(
    arguments.Command(
        "trace",
        callback=_trace,
        context_settings=arguments.OPEN,
        short_help="Trace running servers through their probes with bpftrace.",
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
)


def _migrate(source: str) -> None:
    """Convert another server's configuration to a tailrace.toml, and print it.

    SOURCE is a gunicorn.conf.py, a uWSGI file (.ini, .yaml, .json or .xml), a Procfile, or a command line of gunicorn,
    uWSGI, granian, waitress or mod_wsgi-express as one argument. Nothing is executed. Comments in the output
    list options without an equivalent, with the reason. Whatever needs your attention also goes to standard error.

    Exit status: 0, or 2 if SOURCE cannot be read.
    """
    # Serving does not need it.
    from tailrace.migrate import main as migrate

    text, warnings = migrate.run(source)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    click.echo(text)


cli.add_command(
    arguments.Command(
        "migrate",
        callback=_migrate,
        context_settings=arguments.OPEN,
        short_help="Convert another server's configuration to a tailrace.toml.",
        params=[click.Argument(["source"], metavar="SOURCE")],
        help=_migrate.__doc__,
        epilog="""\b
Examples:
  tailrace migrate gunicorn.conf.py > tailrace.toml
  tailrace migrate /etc/uwsgi/mysite.ini
  tailrace migrate 'gunicorn -w 4 -b :8000 mysite.wsgi'
  tailrace config                               check the result
""",
    )
)


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
    # Serving does not need it.
    from tailrace.compare import main as compare

    if list:
        click.echo(compare.listing())
        return 0
    if install:
        return compare.install()
    if render:
        click.echo(compare.render(output))
        return 0
    if chart is not None:
        compare.draw(output, chart)
        return 0
    return compare.run(
        compare.Asked(
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


cli.add_command(
    arguments.Command(
        "compare",
        callback=_compare,
        context_settings=arguments.OPEN,
        params=[
            click.Argument(["app"], required=False, metavar="[MODULE:CALLABLE]"),
            click.Option(
                ["--url", "urls"],
                metavar="PATH",
                multiple=True,
                help="Path and query to request from your application. Repeatable. [default: /]",
            ),
            click.Option(
                ["--only"], metavar="NAMES", help="Run only these experiments, separated by commas; see --list."
            ),
            click.Option(
                ["--servers"],
                metavar="NAMES",
                help=(
                    "Measure only these servers, separated by commas; one word of a name suffices. [default: all "
                    "installed]"
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
            click.Option(["--install"], is_flag=True, help="Install the servers into this environment, and exit."),
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
)


def main() -> NoReturn:
    """The entry point of the command."""
    # Before anything else is opened.
    descriptors.open_standard_streams()
    try:
        early.interrupts_raise()
        status = cli.main(prog_name="tailrace", standalone_mode=False)
    except click.UsageError as error:
        # `tailrace` alone, and nothing else says which application.
        usage = "" if sys.argv[1:] else _usage()
        _fail(error.exit_code, arguments.message(error), before=usage, hint=arguments.hint(error))
    except click.ClickException as error:
        _fail(error.exit_code, arguments.message(error))
    except TailraceError as error:
        trace = error.user_traceback if isinstance(error, LoadError) else ""
        log.repeat(error, trace)
        _fail(error.exit_status, str(error), before=trace)
    except (KeyboardInterrupt, click.Abort):
        # Interrupted while loading, or in debug: what a shell reports for SIGINT.
        sys.exit(early.STATUS)
    except (OSError, UnicodeEncodeError) as error:
        if not _is_of_output(error):
            raise
        _discard(sys.__stdout__)
        _fail(TailraceError.exit_status, f"cannot write to standard output: {_reason(error)}")
    sys.exit(status)


def _usage() -> str:
    """What `tailrace --help` prints, and an empty line."""
    return cli.get_help(click.Context(cli, info_name="tailrace", **arguments.CONTEXT)) + "\n\n"


def _fail(status: int, message: str, *, before: str = "", hint: str = "") -> NoReturn:
    """Ends the command with an error, the same way for all commands. before: text in front of it, with its newline."""
    try:
        click.echo(f"{before}tailrace: error: {message}\n{hint}", err=True, nl=hint != "")
    except OSError:
        _discard(sys.__stderr__)
    sys.exit(status)


def _is_of_output(error: BaseException) -> bool:
    """Whether `click.echo` raised the exception. All output of commands that do not serve passes through it."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_code is click.echo.__code__


def _reason(error: OSError | UnicodeEncodeError) -> str:
    """Why text could not be written, and the remedy."""
    if isinstance(error, OSError):
        return f"{error.strerror}; redirect the output to another file"
    lenient = f"PYTHONIOENCODING={error.encoding}:backslashreplace"
    return f"{error.encoding} has no {error.object[error.start]!r}; set {lenient}"


def _discard(stream: IO[str] | None) -> None:
    """What is left in the stream's buffer is lost. Python would fail to write it at the end, and change the status."""
    if stream is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
