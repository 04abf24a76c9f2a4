"""A template for the module of `hooks`: a function for each gunicorn hook, with gunicorn's code as a comment."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from tailrace.printable import printable
from tailrace_tools.migrate.source import Source
from tailrace_tools.other_servers import find

_SIGNATURE = re.compile(r"`(\w+\(\w*\))`")
# Maximum number of lines shown of a hook's code.
_MAX_LINES = 40


def skeleton(source: Source) -> list[str]:
    """The lines of the module; empty if no configured hook has an equivalent."""
    bodies: dict[str, list[str]] = {}
    for name, code in source.hooks.items():
        entry = find.setting(name)
        signature = _SIGNATURE.match(entry.row.says) if entry else None
        if signature is not None:
            bodies.setdefault(signature[1], []).extend(_commented(name, code))
    if not bodies:
        return []
    lines = ["import logging", "", 'logger = logging.getLogger("tailrace")']
    for signature_, body in bodies.items():
        lines += ["", "", f"def {signature_}:", *body, "    pass"]
    return lines


def _commented(name: str, code: list[str]) -> Iterator[str]:
    yield f"    # gunicorn's {name}:"
    for line in textwrap.dedent("\n".join(code[:_MAX_LINES])).split("\n"):
        yield f"    #   {printable(line.expandtabs(4))}".rstrip()
    if len(code) > _MAX_LINES:
        yield f"    #   ... and {len(code) - _MAX_LINES} more lines"
