"""The `penstock` command. Exit status: 0 after a stop that was asked for, 1 when the server could not start or no
worker could serve any more, 2 for a usage or settings error, 130 when interrupted before it served."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Final, NoReturn

import click

from penstock import envfile, log, master, service, worker
from penstock._penstock import __version__
from penstock.errors import LoadError, PenstockError
from penstock.options import BY_NAME, GROUPS, OPTIONS, Option
from penstock.settings import CONFIG_VARIABLE, Settings, resolve

_EXAMPLES: Final = """\b
Examples:
  penstock mysite.wsgi                          a Django project
  penstock 'flaskr:create_app()'                a factory
  penstock ./hello.py --debug                   a file, while developing it
  penstock app:app -b :80 -b '[::]:80'          every address, IPv4 and IPv6
  penstock app:app -b unix:/run/app.sock --socket-mode 660
  penstock app:app --gevent --hub-warn 250ms    greenlets: for many requests that wait
"""


class Serving(click.Command):
    """A command that takes every option of the table, shown by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options under the headings of their groups."""
        parameters = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for group in GROUPS:
            options = [option for option in OPTIONS if option.group == group]
            with formatter.section(group):
                formatter.write_dl([_help_row(ctx, parameters[option.name], option) for option in options])
        rest = [parameter.get_help_record(ctx) for name, parameter in parameters.items() if name not in BY_NAME]
        with formatter.section("Other"):
            formatter.write_dl([row for row in rest if row])


class ServeByDefault(click.Group):
    """A group whose arguments, when they do not begin with one of its commands, belong to `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts `serve` in front where it was left out."""
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _parameter(option: Option) -> click.Parameter:
    """The click parameter of a row. Values stay text here: `settings` reads them, as it reads those of files and
    variables."""
    if option.positional:
        return click.Argument([option.name], required=False, metavar=f"[{option.kind.metavar}]")
    spellings = [option.flag, *option.flags, option.name]
    if isinstance(option.default, bool):
        spellings[0] = f"{option.flag}/--no-{option.flag[2:]}"
        return click.Option(spellings, default=None, help=_help(option))
    several = isinstance(option.default, tuple)
    return click.Option(spellings, default=None, multiple=several, metavar=option.kind.metavar, help=_help(option))


def _help_row(ctx: click.Context, parameter: click.Parameter, option: Option) -> tuple[str, str]:
    if option.positional:
        return option.kind.metavar, option.help
    return parameter.get_help_record(ctx) or (option.flag, option.help)


def _help(option: Option) -> str:
    shown = option.kind.write(option.default) if option.default is not None else None
    if shown in (None, "", False):
        return option.help
    if isinstance(shown, list):
        shown = " ".join(map(str, shown))
    return f"{option.help} [default: {shown}]"


_CONFIG: Final = click.Option(
    ["--config"],
    metavar="FILE",
    help="Read settings from this TOML file and not from ./penstock.toml or ./pyproject.toml. "
    f"[variable: {CONFIG_VARIABLE}]",
)
_CONTEXT: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(
    cls=ServeByDefault,
    context_settings=_CONTEXT,
    epilog=_EXAMPLES,
    options_metavar="",
    subcommand_metavar="[serve] MODULE:CALLABLE [OPTIONS]",
)
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
def cli() -> None:
    """Serves a WSGI application.

    `penstock MODULE:CALLABLE` is short for `penstock serve MODULE:CALLABLE`; `penstock serve --help` shows the options.
    """


def _serve(**given: Any) -> int:
    """Serves a WSGI application until SIGINT or SIGTERM.

    Every option can also be given as a variable (--max-body as PENSTOCK_MAX_BODY) and as a key of penstock.toml or of
    [tool.penstock] in pyproject.toml (max_body). The command line comes first, then the environment, then the file.
    """
    settings = _settings(given)
    if settings["app"].value is None:
        raise click.UsageError(
            "which application? Name it as in `penstock mysite.wsgi:application`, in PENSTOCK_APP, or as `app` in "
            "penstock.toml"
        )
    log.to_stderr(settings["log_level"].value)
    settings, surroundings = service.from_environment(settings)
    if not settings["debug"].value or settings["reload"].value:
        return master.serve(settings, surroundings=surroundings)
    if not worker.serve(settings):
        worker.leave(0)
    return 0


def _config(format: str, **given: Any) -> None:
    """Prints the effective settings and where each came from.

    Takes the options of `penstock serve`, so that a command line can be looked at before it is used.
    """
    settings = _settings(given)
    click.echo(_as_json(settings) if format == "json" else _as_toml(settings))


cli.add_command(
    Serving(
        "serve", callback=_serve, params=[*map(_parameter, OPTIONS), _CONFIG], help=_serve.__doc__, epilog=_EXAMPLES
    )
)
cli.add_command(
    Serving(
        "config",
        callback=_config,
        params=[
            *map(_parameter, OPTIONS),
            _CONFIG,
            click.Option(
                ["--format"], type=click.Choice(["toml", "json"]), default="toml", help="How to print. [default: toml]"
            ),
        ],
        help=_config.__doc__,
    )
)


def _settings(given: dict[str, Any]) -> Settings:
    config = given.pop("config")
    given = {name: value for name, value in given.items() if value not in (None, ())}
    settings = resolve(given, os.environ, config)
    if (path := settings["env_file"].value) is not None:
        # Its variables count, too, and may hold options.
        settings = resolve(given, {**envfile.read(path, os.environ), **os.environ}, config)
    return settings


def _as_json(settings: Settings) -> str:
    shown = {
        name: {"value": BY_NAME[name].kind.write(value) if value is not None else None, "source": source}
        for name, (value, source) in settings.items()
    }
    return json.dumps(shown, indent=2)


def _as_toml(settings: Settings) -> str:
    """A file that `--config` reads back; settings without a value stand in comments."""
    lines = []
    for group in GROUPS:
        lines.append(f"# {group}")
        for option in OPTIONS:
            if option.group == group:
                value, source = settings[option.name]
                written = (
                    f"# {option.name} is unset"
                    if value is None
                    else f"{option.name} = {_toml(option.kind.write(value))}"
                )
                lines.append(f"{written:<44} # {source}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _toml(value: object) -> str:
    """Booleans, numbers, text and lists: for these JSON's notation is TOML's."""
    return json.dumps(value, ensure_ascii=False)


def main() -> NoReturn:
    """The entry point of the command."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT for its background jobs, and Python then leaves it so: a server heeds it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PenstockError as error:
        if isinstance(error, LoadError) and error.user_traceback:
            click.echo(error.user_traceback, err=True, nl=False)
        click.echo(f"penstock: error: {error}", err=True)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, click.Abort):
        # Interrupted while loading, or in debug: what a shell reports for SIGINT.
        sys.exit(130)
    sys.exit(status)
