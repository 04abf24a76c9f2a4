"""Unknown names of options and commands: which one was most likely meant, including names from other servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace_tools.other_servers.find import Entry

_WITHOUT_THE_TABLE: Final = "; `pip install 'tailrace[tools]'` adds hints for the options of other servers"


def nearest(name: str, known: Mapping[str, str], listing: str = "; `tailrace config` lists all options") -> str:
    """The end of a message about an unknown name: the option that other servers call so, or the most similar name.

    known: option names by the spellings that are possible where the unknown name was found. listing: what is said if
    there is neither.
    """
    theirs = _plain(name)
    try:
        # A server that starts has no unknown name, and no use for the table.
        from tailrace_tools.other_servers import find
    except ImportError:
        near = similar(name, known)
        return f"; did you mean {near}?" if near else listing and f"{listing}{_WITHOUT_THE_TABLE}"
    spellings = {_plain(spelling): spelling for spelling in known}
    if not any(find.everywhere(theirs)):
        # The name of another server's option may be misspelt: `--prot` is closer to `port` than to any of our names.
        near = most_similar(theirs, [*spellings, *find.spellings()])
        if near in spellings:
            return f"; did you mean {spellings[near]}?"
        if near is None and (near := _continued(theirs, spellings)):
            return f"; did you mean {spellings[near]}?"
        theirs = near or theirs
    return _of_other_servers(find.everywhere(theirs), known) or listing


def _of_other_servers(found: Iterable[Entry], known: Mapping[str, str]) -> str:
    """What an option of other servers is here: one sentence, or one for each server where they differ."""
    servers: dict[str, list[str]] = {}
    for server, _, row in found:
        ours = next((spelling for spelling, option in known.items() if option == row.ours), "")
        if row.is_sentence:
            # It names others, too: as flags, wherever the unknown name was found.
            ours = f"--{row.ours.replace('_', '-')}"
        if "{ours}" not in row.sentence or ours:
            servers.setdefault(row.sentence.replace("{ours}", ours), []).append(server.value)
    if len(servers) == 1:
        return f"; {next(iter(servers))}"
    return "".join(f"; from {' and '.join(names)}: {sentence}" for sentence, names in servers.items())


def similar(name: str, known: Iterable[str]) -> str | None:
    """The option that was most likely meant, among those of a command that has only its own; None: none is near."""
    spellings = {_plain(spelling): spelling for spelling in known}
    near = most_similar(_plain(name), spellings) or _continued(_plain(name), spellings)
    return spellings[near] if near else None


def _continued(beginning: str, known: Iterable[str]) -> str | None:
    """The shortest of the names that begin so, if the others begin like that one."""
    found = sorted((each for each in known if each.startswith(beginning)), key=len)
    is_clear = len(beginning) > 1 and found and all(each.startswith(found[0]) for each in found)
    return found[0] if is_clear else None


def _plain(name: str) -> str:
    plain = name.removeprefix("TAILRACE_").lstrip("-").replace("-", "_")
    return plain.lower() if len(plain) > 1 else plain


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """The first of the closest names; None: none is close enough. Up to a third of the letters may differ, but no more
    than two."""
    by_edits = [(edits(name, each), each) for each in known if min(len(name), len(each)) > 2]
    near = [(number, each) for number, each in by_edits if number <= min(2, max(len(name), len(each)) // 3)]
    return min(near, key=lambda each: each[0])[1] if near else None


def edits(one: str, other: str) -> int:
    """How many letters must be inserted, removed, replaced or swapped with the next letter to turn one into the other
    (optimal string alignment distance)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        before, last, row = row, before, [i + 1]
        for j, their in enumerate(other):
            least = min(before[j] + (letter != their), before[j + 1] + 1, row[j] + 1)
            if i and j and letter == other[j - 1] and their == one[i - 1]:
                least = min(least, last[j - 1] + 1)
            row.append(least)
    return row[-1]
