"""The `tailrace` command.

Exit status: 0 after a requested stop, 2 for a usage or settings error, 3 if the application or the workers cannot
start, 130 when interrupted before it served, 1 for any other error. `tailrace doctor`: 1 with findings."""

from __future__ import annotations

# ruff: noqa: E402
import gc
from typing import IO, Any, Final, NoReturn

# While the modules of the command grow, the garbage collector would visit them fifty times and free nothing.
_COLLECTS: Final = gc.isenabled()
gc.disable()

import atexit
import contextlib
import logging
import os
import signal
import sys

import click

from tailrace._tailrace import __version__
from tailrace.cli import arguments, envfile, log_settings
from tailrace.cli.options import OPTIONS
from tailrace.cli.settings import from_the_platform
from tailrace.errors import LoadError, TailraceError
from tailrace.logs import log
from tailrace.master import main as master
from tailrace.master import service, upgrade
from tailrace.system import descriptors, directory, early
from tailrace.system.exit import leave
from tailrace.worker import single

_EXAMPLES: Final = """\b
Examples:
  tailrace mysite.wsgi                          a Django project
  tailrace 'flaskr:create_app()'                a factory
  tailrace ./hello.py --debug                   a file, during development
  tailrace app:app -b :80 -b '[::]:80'          all addresses, IPv4 and IPv6
  tailrace app:app -b 'unix:/run/app.sock?mode=660'
  tailrace app:app --gevent                     greenlets, for many waiting requests
  tailrace app:app --static /assets=./dist      static files, without the application
  tailrace threads --status 127.0.0.1:9000      what a server with --status is doing
  tailrace doctor --live --status 127.0.0.1:9000   the endpoints that cost most to deliver
  tailrace publish news 'It rains.' --to :5561     send an event to held connections (--publish-bind)

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

\b
Manual: https://tailrace.dev/docs
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

    https://tailrace.dev/docs/options.html describes each option in detail.
    """
    predecessor = upgrade.predecessor(os.environ)
    if predecessor and predecessor.variables is not None:
        envfile.inherit(predecessor.variables)
    settings, warnings = arguments.settings_of(given)
    if settings["app"].value is None:
        raise click.UsageError(
            "no application: name one, as in `tailrace mysite.wsgi:application`, in TAILRACE_APP, or as `app` in "
            "tailrace.toml"
        )
    directory.leave_removed(settings["chdir"].value)
    with predecessor.own_stderr() if predecessor else contextlib.nullcontext():
        log_settings.begin(settings)
    for warning in warnings:
        log.logger.warning("%s", warning)
    atexit.unregister(logging.shutdown)
    atexit.register(log.shutdown)
    atexit.register(early.ignore_stops)
    settings, found = service.from_environment(settings, predecessor)
    if said := from_the_platform(settings):
        log.logger.info("%s", said)
    # Process 1 has a master also with --debug: the master reaps orphans, and the application its own children.
    if not settings["debug"].value or settings["reload"].value or os.getpid() == 1:
        return master.serve(settings, service=found)
    # A server with --debug never handles these two. It handles SIGUSR1 once it serves.
    early.unprotect((signal.SIGHUP, signal.SIGUSR2))
    if not single.serve(settings):
        leave(0)
    return 0


def _config(format: str, **given: Any) -> None:
    """Print the effective settings and their sources.

    Accepts the options of `tailrace serve`, so you can check a command line before using it.
    """
    from tailrace.cli import show

    settings, warnings = arguments.settings_of(given)
    for warning in warnings:
        click.echo(f"tailrace: warning: {warning}", err=True)
    log_settings.check(settings)
    click.echo(show.as_json(settings) if format == "json" else show.as_toml(settings))


_PUBLISH_EXAMPLES: Final = """\b
Examples:
  tailrace app:app --publish-bind 127.0.0.1:5561          the server
  export TAILRACE_PUBLISH_URL=127.0.0.1:5561
  tailrace publish orders '{"id": 7}' --event changed
  tailrace publish deployments "version $VERSION is live"
  git log -1 --format=%s | tailrace publish deployments -

\b
Exit status:
  0  the server accepted the event
  1  no server could be reached, or it rejected the event
  2  usage error
"""


def _publish(channel: str, data: str, event: str | None, id: str | None, to: str | None) -> None:
    """Send an event to all connections that are held on a channel, and print its ID.

    DATA is sent unchanged, even if it is JSON. `-` reads it from standard input and removes the final line break. The
    server needs --publish-bind. Publishing to a channel without connections is not an error, so check the channel name
    if no client gets the event.
    """
    # What it needs takes milliseconds to import.
    from tailrace.publishing import publish

    if to is None:
        raise click.UsageError(
            "no address; start the server with --publish-bind 127.0.0.1:5561, and use the same address here in --to or "
            "TAILRACE_PUBLISH_URL"
        )
    where = "standard input" if data == "-" else "DATA"
    try:
        raw = sys.stdin.buffer.read() if data == "-" else os.fsencode(data)
        text = raw.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"{where} is not UTF-8; encode binary data, for example with base64") from None
    if data == "-":
        text = text.removesuffix("\n").removesuffix("\r")
    try:
        published = publish(channel, text, event=event, id=id, to=to)
    except TailraceError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(published)


# Commands share them: making them takes several milliseconds.
_PARAMETERS: Final = tuple(map(arguments.parameter, OPTIONS))

cli.add_command(
    arguments.Serving(
        "serve",
        callback=_serve,
        params=[*_PARAMETERS, arguments.CONFIG],
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
            *_PARAMETERS,
            arguments.CONFIG,
            click.Option(
                ["--format"], type=click.Choice(["toml", "json"]), default="toml", help="Output format. [default: toml]"
            ),
        ],
        help=_config.__doc__,
        context_settings=arguments.OPEN,
    )
)
cli.add_command(
    arguments.Command(
        "publish",
        callback=_publish,
        params=[
            click.Argument(["channel"], metavar="CHANNEL"),
            click.Argument(["data"], metavar="DATA"),
            click.Option(["--event"], metavar="NAME", help="Event type. [default: none; browsers use `message`]"),
            click.Option(["--id"], metavar="ID", help="Event ID. [default: a new ID]"),
            click.Option(
                ["--to"],
                metavar="ADDRESS",
                envvar=["TAILRACE_PUBLISH_URL", "TAILRACE_PUBLISH_BIND"],
                help="Address of --publish-bind, or a URL. [default: $TAILRACE_PUBLISH_URL or $TAILRACE_PUBLISH_BIND]",
            ),
        ],
        help=_publish.__doc__,
        short_help="Send an event to all connections held on a channel.",
        epilog=_PUBLISH_EXAMPLES,
        context_settings=arguments.OPEN,
    )
)


for name, extra, short_help in (
    ("compare", "compare", "Compare Tailrace with the other installed WSGI servers."),
    ("doctor", "tools", "Explain why a response is slow and what to change."),
    ("migrate", "tools", "Convert another server's configuration to a tailrace.toml."),
    ("static", "tools", "List the URLs of static files, and the files that are not served."),
    ("threads", "tools", "Print what each thread of a running server is doing."),
    ("top", "top", "Live view of the requests and threads of a running server."),
    ("trace", "tools", "Trace running servers through their probes with bpftrace."),
):
    cli.add_command(arguments.OfPackage(name, extra, short_help))


if _COLLECTS:
    gc.enable()


def main() -> NoReturn:
    """The entry point of the command."""
    # What the imports have made stays.
    gc.freeze()
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
        _fail(error.exit_status, f"{error}{_meant(error)}", before=trace)
    except (KeyboardInterrupt, click.Abort):
        # Interrupted while loading, or in debug: what a shell reports for SIGINT.
        sys.exit(early.STATUS)
    except (OSError, UnicodeEncodeError) as error:
        if not _is_of_output(error):
            raise
        _discard(sys.__stdout__)
        _fail(TailraceError.exit_status, f"cannot write to standard output: {_reason(error)}")
    sys.exit(status)


def _meant(error: TailraceError) -> str:
    """Suffix for the error message about a missing application whose name resembles a command."""
    given = sys.argv[1:]
    is_missing = given and isinstance(error, LoadError) and str(error).startswith(f"no module named {given[0]!r}")
    return cli.meant(given) if is_missing and isinstance(cli, arguments.ServeByDefault) else ""


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
