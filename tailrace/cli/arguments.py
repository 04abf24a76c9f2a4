"""The command line: click parameters from the options table, and settings from what was given."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import click

from tailrace.cli import envfile
from tailrace.cli.option import APPLICATION, GROUPS, Option
from tailrace.cli.options import BY_NAME, COMMON, OPTIONS
from tailrace.cli.settings import CONFIG_VARIABLE, Settings, resolve
from tailrace.cli.unknown import most_similar, nearest, similar
from tailrace.errors import ConfigError

# Width of the column of flags in --help. The text of an option whose flag is longer begins in the next line.
_COLUMN: Final = 24
# What other servers and frameworks call `serve`.
_SERVE: Final = ("run", "runserver", "start")


class Command(click.Command):
    """A command whose errors name the remedy.

    It refuses further arguments itself, so its context settings are `OPEN`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Names the option that was most likely meant, and an option that another one has taken as its value."""
        options = {flag: each for each in self.get_params(ctx) for flag in (*each.opts, *each.secondary_opts)}
        _check_values(ctx, args, options)
        try:
            left = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = {flag: str(each.name) for flag, each in options.items() if flag.startswith("-")}
            raise click.UsageError(
                f"no such option: {error.option_name}{self.remedy(error.option_name, flags)}", ctx
            ) from None
        self.check_arguments(ctx)
        return left

    def remedy(self, name: str, flags: Mapping[str, str]) -> str:
        """The end of the message about an unknown option. flags: the known ones, with the names of the options."""
        near = similar(name, flags)
        return f"; did you mean {near}?" if near else ""

    def check_arguments(self, ctx: click.Context) -> None:
        """Rejects arguments that the command does not take. Raises UsageError."""
        if ctx.args:
            raise click.UsageError(f"unexpected argument: {shlex.join(ctx.args)}", ctx)


def _check_values(ctx: click.Context, args: list[str], options: Mapping[str, click.Parameter]) -> None:
    """Rejects an option that stands where another one has its value, as in `--access-log --bind :80`. Raises
    UsageError."""
    left = iter(args)
    for arg in left:
        if arg == "--":
            return
        option = options.get(arg) if arg.startswith("-") else None
        if not isinstance(option, click.Option) or option.is_flag:
            continue
        value = next(left, None)
        if value is None:
            raise click.UsageError(f"{arg} needs a value: {arg} {option.metavar or 'VALUE'}", ctx)
        if value.startswith("-") and value.partition("=")[0] in options:
            remedy = _VALUES.get(str(option.name), f"give it one: {arg} {option.metavar or 'VALUE'}")
            raise click.UsageError(f"{arg} takes a value, and {value} was read as that value; {remedy}", ctx)


# What is most likely meant by an option without its value.
_VALUES: Final = {
    "access_log": "`--access-log -` writes to standard output",
    "request_id": "`--request-id X-Request-ID` uses the usual field",
}


class Serving(Command):
    """A command that takes every option of the table, shown by group."""

    # Those whose options --help shows.
    groups: ClassVar[tuple[str, ...]] = GROUPS

    def remedy(self, name: str, flags: Mapping[str, str]) -> str:
        """Knows the names of other servers, too."""
        # Where the command has options of its own, `tailrace config` does not list them.
        listing = "; `tailrace config` lists all options" if self.groups == GROUPS else ""
        return nearest(name, flags, listing)

    def check_arguments(self, ctx: click.Context) -> None:
        """Rejects more than one argument. Raises UsageError."""
        if not ctx.args:
            return
        given = [ctx.params["app"], *ctx.args]
        said = f"only one application can be served, but there are several arguments: {', '.join(map(repr, given))}"
        if self.name == "serve" and ctx.parent is not None and isinstance(ctx.parent.command, ServeByDefault):
            said += ctx.parent.command.meant(given)
        raise click.UsageError(said, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options under the headings of their groups."""
        parameters = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for group in self.groups:
            options = [option for option in OPTIONS if option.group == group and option.name in parameters]
            with formatter.section(group):
                formatter.write_dl([_help_row(ctx, parameters[option.name], option) for option in options], _COLUMN)
        others = [parameter for name, parameter in parameters.items() if name not in BY_NAME]
        rest = [parameter.get_help_record(ctx) for parameter in others if isinstance(parameter, click.Option)]
        with formatter.section("Other"):
            formatter.write_dl([row for row in rest if row], _COLUMN)


class Examining(Serving):
    """A command that takes every option of the table, so that a command line can be used again, and needs the
    application."""

    groups: ClassVar[tuple[str, ...]] = (APPLICATION,)


class ServeByDefault(click.Group):
    """A group whose arguments, when they do not begin with one of its commands, belong to `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts `serve` in front where it was left out. `help` shows the help, of a command if it names one."""
        if args[:1] == ["help"] and (args[1:2] == [] or args[1] in self.commands):
            args = [*args[1:], "--help"]
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """`serve` first."""
        return sorted(self.commands, key=lambda name: (name != "serve", name))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands, and the options that matter most: those of `serve`, and the group's own."""
        self.format_commands(ctx, formatter)
        shown = [*(parameter(BY_NAME[name]) for name in COMMON), CONFIG, *self.get_params(ctx)]
        with formatter.section("Options (`tailrace serve --help` lists all)"):
            formatter.write_dl([row for each in shown if (row := each.get_help_record(ctx))], _COLUMN)

    def meant(self, given: list[str]) -> str:
        """The end of the message about several arguments of `serve`: the intended command line, if the first argument
        is a misspelt command, or what another server calls `serve`."""
        first, *rest = given
        command = "serve" if first in _SERVE else most_similar(first, self.commands)
        return f"; did you mean `{shlex.join(['tailrace', command, *rest])}`?" if command else ""


class OfPackage(click.Command):
    """A command that another package brings, as the entry point of its name in the group `tailrace.commands`: a
    `Command`. It is loaded when it is used."""

    def __init__(self, name: str, extra: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._extra = extra

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """That of the loaded command. Raises ConfigError if the package is not installed."""
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> click.Command:
        """The command of the package. Raises ConfigError if it is not installed."""
        # With the parser of e-mail, which a server does not need.
        from importlib.metadata import entry_points

        for entry in entry_points(group="tailrace.commands", name=str(self.name)):
            command: click.Command = entry.load()
            return command
        raise ConfigError(f"`tailrace {self.name}` is not installed; `pip install 'tailrace[{self._extra}]'`")


def message(error: click.ClickException) -> str:
    """What is wrong with the command line, in the style of the other errors: lower case, without a full stop."""
    if type(error) in (click.ClickException, click.UsageError):
        # Ours.
        return error.message
    if isinstance(error, click.NoSuchOption):
        return f"no such option: {error.option_name}"
    said = error.message.rstrip(".")
    said = f"{said[:1].lower()}{said[1:]}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = error.param.opts[0] if isinstance(error.param, click.Option) else error.param.metavar
        return f"{name} is missing" if isinstance(error, click.MissingParameter) else f"{name}: {said}"
    return said


def hint(error: click.UsageError) -> str:
    """The line after a message about the wrong use of a command."""
    is_of_a_command = error.ctx is not None and error.ctx.parent is not None
    command = error.ctx.command_path if error.ctx is not None and is_of_a_command else "tailrace serve"
    return f"`{command} --help` shows the usage"


def parameter(option: Option) -> click.Parameter:
    """The click parameter of an option. Values stay text: `settings` reads them, like those of files and variables."""
    if option.positional:
        return click.Argument([option.name], required=False, metavar=f"[{option.kind.metavar}]")
    spellings = [option.flag, *filter(None, [option.short]), option.name]
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
    if shown in (None, "", False, []):
        return option.help
    if isinstance(shown, list):
        shown = " ".join(map(str, shown))
    return f"{option.help} [default: {shown}]"


CONFIG: Final = click.Option(
    ["--config"],
    metavar="FILE",
    help=f"TOML file with settings, instead of ./tailrace.toml or ./pyproject.toml. [variable: {CONFIG_VARIABLE}]",
)


CONTEXT: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


# Commands refuse further arguments themselves, with a better message than click's.
OPEN: Final[dict[str, Any]] = {"allow_extra_args": True}


def settings_of(given: dict[str, Any]) -> tuple[Settings, list[str]]:
    """The effective settings, and warnings about variables and files that were ignored."""
    config = given.pop("config")
    given = {name: value for name, value in given.items() if value not in (None, ())}
    warnings: list[str] = []
    settings = resolve(given, os.environ, config, warn=warnings.append)
    if (path := settings["env_file"].value) is not None:
        # Once more, since the file may have TAILRACE_* variables.
        warnings.clear()
        settings = resolve(given, envfile.environment(path), config, warn=warnings.append)
    return settings, warnings
