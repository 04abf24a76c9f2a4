"""A row of the table of other servers' options, and the notation in which a row lists them.

A row has a text for each server, with an option in each word: its spellings, separated by slashes, then `=` if it
takes a value (`==` for two, `=?` for an optional one), then, after a colon, its name elsewhere: `-p/--pid=:pidfile`.
That is the setting of gunicorn.conf.py, or the rest of granian's variable after `GRANIAN_`, if it differs from the long
spelling. A word that begins with a colon is a setting without a flag, one with `$` a variable. `--emperor*` stands for
each option that begins so.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


class Server(enum.Enum):
    """A server; the value is its name. OTHER: uvicorn, hypercorn and the commands of frameworks, for messages alone."""

    GUNICORN = "gunicorn"
    UWSGI = "uWSGI"
    MOD_WSGI = "mod_wsgi-express"
    GRANIAN = "granian"
    WAITRESS = "waitress"
    OTHER = "other servers"


class Effect(enum.Enum):
    """The fate of another server's option: it becomes an option of Tailrace, it is not needed, or the user achieves its
    effect elsewhere."""

    OPTION = enum.auto()
    NEEDLESS = enum.auto()
    ELSEWHERE = enum.auto()


class Refused(Exception):
    """A value has no equivalent; the message is the reason, a sentence without its full stop.

    is_needless: nothing needs to be done.
    """

    def __init__(self, reason: str, *, is_needless: bool = False) -> None:
        super().__init__(reason)
        self.is_needless = is_needless


# The other options of a configuration, by `Name.key`; of one that is given several times, a list.
Others = Mapping[str, Any]
# From a value to the options of Tailrace by name. Raises Refused or ValueError.
Conversion = Callable[[Any, Others], Mapping[str, Any]]


@dataclass(frozen=True)
class Name:
    """An option of another server.

    flags: its spellings on the command line. values: how many follow it there; None: one or none. settings: its names
    in a configuration file. variable: its environment variable, or "".
    """

    flags: tuple[str, ...]
    values: int | None
    settings: tuple[str, ...]
    variable: str

    @property
    def key(self) -> str:
        """The name by which conversions know it."""
        return plain(self.settings[0] if self.settings else self.long or self.variable)

    @property
    def long(self) -> str:
        """The first long spelling, or the first."""
        return next((flag for flag in self.flags if flag.startswith("--")), (*self.flags, "")[0])

    @property
    def shown(self) -> str:
        """The name for a document."""
        return ", ".join(self.flags) or "".join(self.settings) or self.variable


@dataclass(frozen=True)
class Row:
    """Options of other servers that mean the same.

    ours: the option of Tailrace, or "". says: how the option differs from ours; without one, the reason and the remedy,
    a sentence without its full stop. is_sentence: `says` is a sentence although there is an option.
    """

    effect: Effect
    ours: str
    says: str
    names: Mapping[Server, tuple[Name, ...]]
    convert: Conversion
    is_sentence: bool

    def each(self) -> Iterator[tuple[Server, Name]]:
        """Every option of other servers in the row."""
        for server, names in self.names.items():
            for name in names:
                yield server, name

    @property
    def sentence(self) -> str:
        """The row in words, where our option has the name `{ours}`."""
        if self.is_sentence:
            return self.says
        return "Tailrace calls it {ours}" + (f", {self.says}" if self.says else "")


_KEYWORDS: Final = {
    "gunicorn": Server.GUNICORN,
    "uwsgi": Server.UWSGI,
    "mod_wsgi": Server.MOD_WSGI,
    "granian": Server.GRANIAN,
    "waitress": Server.WAITRESS,
    "other": Server.OTHER,
}


def option(ours: str, differs: str = "", *, convert: Conversion | None = None, says: str = "", **names: str) -> Row:
    """Options that are one of ours. differs: the end of "Tailrace calls it --bind, ...". says: a sentence instead."""
    return Row(
        Effect.OPTION,
        ours,
        says or differs,
        _names(names),
        convert or (lambda value, others: {ours: value}),
        bool(says),
    )


def needless(reason: str, **names: str) -> Row:
    """Options that are not needed."""
    return _refusal(Effect.NEEDLESS, reason, names)


def elsewhere(reason: str, *, unless: str = "", **names: str) -> Row:
    """Options without an equivalent; the reason names the remedy. unless: a value that needs no remedy."""
    return _refusal(Effect.ELSEWHERE, reason, names, unless)


def _refusal(effect: Effect, reason: str, names: Mapping[str, str], unless: str = "") -> Row:
    def refuse(value: object, others: Others) -> Mapping[str, Any]:
        if unless and value == unless:
            return {}
        raise Refused(reason, is_needless=effect is Effect.NEEDLESS)

    return Row(effect, "", reason, _names(names), refuse, True)


def _names(names: Mapping[str, str]) -> dict[Server, tuple[Name, ...]]:
    return {
        _KEYWORDS[word]: tuple(_name(_KEYWORDS[word], each) for each in text.split()) for word, text in names.items()
    }


def _name(server: Server, text: str) -> Name:
    if text.startswith("$"):
        return Name((), 1, (), text[1:])
    spellings, _, elsewhere_called = text.partition(":")
    spellings, equals, rest = spellings.partition("=")
    values = None if rest == "?" else len(equals + rest)
    flags = tuple(filter(None, spellings.split("/")))
    long = [flag[2:] for flag in flags if flag.startswith("--")]
    settings: tuple[str, ...] = ()
    variable = ""
    if server is Server.GUNICORN:
        settings = (elsewhere_called or long[0].replace("-", "_"),)
    elif server is Server.UWSGI:
        settings = tuple(long)
    elif server is Server.GRANIAN and long:
        variable = "GRANIAN_" + (elsewhere_called or long[0].replace("-", "_").upper())
    return Name(flags, values, settings, variable)


def plain(name: str) -> str:
    """A spelling without dashes; letters keep their case in names of one letter, which are flags."""
    bare = name.lstrip("-$").replace("-", "_")
    return bare.lower() if len(bare) > 1 else bare
