"""What an option is: its name, kind, default and texts, and the ways to serve that do not support it.

`options` is the table: which options there are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tailrace.cli.values import Kind

APPLICATION: Final = "Application"
ADDRESSES: Final = "Addresses"
TLS: Final = "Encryption"
PROCESSES: Final = "Processes"
CONCURRENCY: Final = "Concurrency"
LIMITS: Final = "Limits"
TIMES: Final = "Times"
RESPONSES: Final = "Requests and responses"
STATIC: Final = "Static files"
LOGS: Final = "Logs"
GROUPS: Final = (APPLICATION, ADDRESSES, TLS, PROCESSES, CONCURRENCY, LIMITS, TIMES, RESPONSES, STATIC, LOGS)


class Place(enum.Enum):
    """A way to serve that does not support every option; the value is its name.

    A function refuses an option that it does not support. On the command line this is a warning, or an error if it is
    one of the table's CONFLICTS."""

    RUN = "tailrace.run"
    THREAD = "tailrace.serve_in_thread"
    HUB = "tailrace.gevent.serve"
    DEBUG = "--debug"
    # With --reload, or as process 1, there is a master, and these options have their effect.
    DEBUG_ALONE = "--debug without --reload"
    RELOAD = "--reload"
    GEVENT = "--gevent"
    WITHOUT_GEVENT = "without --gevent"
    WITHOUT_RELOAD = "without --reload"

    @property
    def where(self) -> str:
        """The way in a sentence: `with --debug`, `without --gevent`."""
        return self.value if self.value.startswith("without ") else f"with {self.value}"


# The functions for programs that have the application already.
FUNCTIONS: Final = (Place.RUN, Place.THREAD, Place.HUB)


class PlatformVariable(NamedTuple):
    """A variable of other servers and of platforms, which supplies the default of an option.

    written: the option's value, as text, with the variable's in place of `{}`. kind: what the variable may hold; None:
    what the option may hold.
    """

    name: str
    written: str = "{}"
    kind: Kind | None = None


class Option(NamedTuple):
    """One option.

    name: the key in files and of `tailrace.run`; the flag is `--` with dashes, the variable `TAILRACE_` in capitals.
    help: for --help and docs/options.md, in one or two lines. details: what else docs/options.md says, in Markdown.
    core: the setting of the Rust core that takes the value unchanged; None when there is none.
    short: the flag of one letter, for the command line. An option has no further name.
    positional: an argument of the command line rather than a flag.
    example: a value as it is written in a file.
    platform_variable: supplies the value if nothing else does.
    absent: where it is not taken or has no effect, with the reason and what to do instead.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    group: str
    details: str = ""
    core: str | None = None
    short: str = ""
    positional: bool = False
    example: object = None
    platform_variable: PlatformVariable | None = None
    absent: Mapping[Place, str] = MappingProxyType({})

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return "TAILRACE_" + self.name.upper()


def option(kind: Kind, default: object, help: str, group: str, **more: Any) -> Any:
    """Declares an option: a field of `options.OptionValues`. The arguments are the fields of `Option` but its name."""
    return field(metadata={"kind": kind, "default": default, "help": help, "group": group, **more})
