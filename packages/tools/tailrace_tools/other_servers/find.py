"""Looks up another server's option in the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

from tailrace_tools.other_servers.rows import Effect, Name, Row, Server, plain
from tailrace_tools.other_servers.table import TABLE

# Letters.
_LONG: Final = 8


class Entry(NamedTuple):
    """An option of another server and its row."""

    server: Server
    name: Name
    row: Row


@cache
def _entries() -> Mapping[Server, Mapping[str, Entry]]:
    """All options by server and spelling without dashes."""
    found: dict[Server, dict[str, Entry]] = {server: {} for server in Server}
    for row in TABLE:
        for server, name in row.each():
            for spelling in (*name.flags, *name.settings, name.variable):
                if spelling:
                    found[server].setdefault(plain(spelling), Entry(server, name, row))
    return found


def of(server: Server, spelling: str) -> Entry | None:
    """The option of the server with this spelling: of its command line, file or environment."""
    return _exact(server, spelling) or _negated(server, spelling) or _of_family(server, spelling)


def is_negated(entry: Entry, spelling: str) -> bool:
    """Whether the spelling is the opposite of the option."""
    name = plain(spelling)
    return name.startswith("no_") and name not in _entries()[entry.server]


def _exact(server: Server, spelling: str) -> Entry | None:
    return _entries()[server].get(plain(spelling))


def _negated(server: Server, spelling: str) -> Entry | None:
    """The switch that `--no-NAME` turns off."""
    name = plain(spelling)
    found = _entries()[server].get(name.removeprefix("no_"))
    return found if name.startswith("no_") and found is not None and found.name.values == 0 else None


def _of_family(server: Server, spelling: str) -> Entry | None:
    name = plain(spelling)
    return next(
        (entry for key, entry in _entries()[server].items() if key[-1] == "*" and name.startswith(key[:-1])), None
    )


def setting(name: str) -> Entry | None:
    """The setting of a gunicorn.conf.py with this name."""
    found = of(Server.GUNICORN, name)
    return found if found is not None and name in found.name.settings else None


def everywhere(spelling: str) -> Iterator[Entry]:
    """The options of all servers with this spelling, one for each row; if there are none, those that it negates, then
    those whose family it belongs to."""
    for look in (_exact, _negated, _of_family):
        rows: list[Row] = []
        for server in Server:
            found = look(server, spelling)
            if found is not None and found.row not in rows:
                rows.append(found.row)
                yield found
        if rows:
            return


@cache
def spellings() -> tuple[str, ...]:
    """Spellings without dashes among which the nearest one is found: all that are options of ours, and of the others
    those that are too long to be near by chance."""
    return tuple(
        dict.fromkeys(
            key
            for known in _entries().values()
            for key, entry in known.items()
            if "*" not in key and (entry.row.effect is Effect.OPTION or len(key) >= _LONG)
        )
    )
