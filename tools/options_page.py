"""Writes docs/options.md from the options table; `--check` only says whether it is up to date.

python tools/options_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tailrace.cli.option import FUNCTIONS, GROUPS, Option, Place
from tailrace.cli.options import ACCESS_LOG_ATOMS, ACCESS_LOG_FIELDS, ACCESS_LOG_LETTERS, OPTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

HEAD = """\
# Options

Generated from the table in `tailrace/cli/options.py` by `tools/options_page.py`; make changes there.

You can set each option on the command line (`--max-body 10MiB`), in a variable (`TAILRACE_MAX_BODY=10MiB`), or as a key
of `tailrace.toml` or of `[tool.tailrace]` in `pyproject.toml` (`max_body = "10MiB"`). The command line comes first,
then the environment, then the file, then the default. `tailrace config` prints the settings in effect and the source of
each.

An option has the same name everywhere: with dashes on the command line, in capitals in variables, with underscores in
programs, and with either in files. The one-letter flags `-b` and `-w` exist only on the command line. Every command
that takes options accepts them (`serve`, `config`, `doctor`, `static list`).

The file is the one that `--config` or `TAILRACE_CONFIG` names. Without either, it is `tailrace.toml` in the current
directory, or else `pyproject.toml` there. An unknown key is an error. An unknown `TAILRACE_*` variable causes a
warning; those that Kubernetes sets for a service called "tailrace" are ignored.

In a program, options are arguments of `tailrace.run`, `tailrace.serve_in_thread` and `tailrace.gevent.serve`
(`max_body="10MiB"`), or keys in a section of PasteDeploy, which calls `tailrace.run`. These functions read neither the
environment nor files. They do not take options that concern the program rather than the server: "Not by" says where,
and why. "Not with" marks an option that, on the command line, is refused or has no effect and causes a warning.

- A **size** is a number of bytes, or a number followed by `k`, `m`, `g`, `t` or `KiB`, `MiB`, `GiB`, `TiB` (powers of
  1024), or by `kB`, `MB`, `GB`, `TB` (powers of 1000).
- A **time** is a number of seconds, or a number followed by `ms`, `s`, `m`, `h`, `d`, `w` or `y`.
- **true or false** may also be `yes`, `no`, `on`, `off`, `1` or `0` in variables. On the command line, write `--debug`
  or `--no-debug`.
- A **list** is an array in TOML, a repeated flag on the command line, and separated by commas or spaces in a variable.
- A **list of `NAME=VALUE`** may also be a table in TOML (`static = {"/assets" = "./dist"}`) and a dict in a program. In
  a variable, separate the items by spaces.
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group}\n")
        parts += [entry(option) for option in OPTIONS if option.group == group]
    parts.append("\n## Atoms of the access log\n\nIn `access_log_format`, in braces:\n\n| atom | value |\n|---|---|\n")
    parts += [f"| `{{{name}}}` | {meaning} |\n" for name, meaning in (ACCESS_LOG_ATOMS | ACCESS_LOG_FIELDS).items()]
    parts.append("\nOr gunicorn's atoms instead of braces (`%%` is a percent sign):\n\n| atom | value |\n|---|---|\n")
    parts += [f"| `{name}` | {meaning} |\n" for name, meaning in ACCESS_LOG_LETTERS.items()]
    return "".join(parts)


def entry(option: Option) -> str:
    """One option."""
    spellings = ", ".join(f"`{flag}`" for flag in filter(None, (option.flag, option.short)))
    flags = "the first argument" if option.positional else spellings
    facts = " · ".join((flags, f"`{option.variable}`", option.kind.name, default(option)))
    lines = [f"\n### {option.name}\n\n{option.help}\n\n"]
    lines += [f"{option.details}\n\n"] if option.details else []
    lines.append(f"{facts}\n")
    if option.example is not None:
        lines.append(f"\n```toml\n{option.name} = {json.dumps(option.example)}\n```\n")
    lines += absent(option)
    return "".join(lines)


def absent(option: Option) -> list[str]:
    """A line for each reason for which it cannot be had somewhere."""
    places: dict[tuple[str, str], list[str]] = {}
    for place, reason in option.absent.items():
        word = "by " if place in FUNCTIONS else place.where.removesuffix(place.value)
        places.setdefault((word, reason), []).append(marked(place))
    lines = [f"- Not {word}{', '.join(names)}: {reason}.\n" for (word, reason), names in places.items()]
    return ["\n", *lines] if lines else []


def marked(place: Place) -> str:
    """The name of the place, with flags and functions as code."""
    return re.sub(r"(--\S+|tailrace\.\S+)", r"`\1`", place.value)


def default(option: Option) -> str:
    """The default in words."""
    if option.default is None:
        return "unset by default"
    return f"default `{json.dumps(option.kind.write(option.default))}`"


def main() -> int:
    """Writes or checks."""
    fresh = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh)
        return 0
    if PAGE.is_file() and PAGE.read_text() == fresh:
        return 0
    print(
        "docs/options.md does not follow tailrace/cli/options.py; run `.venv/bin/python tools/options_page.py`",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
