"""Writes docs/options.md from the options table; `--check` only says whether it is up to date.

python tools/options_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tailrace.cli.options import (
    ACCESS_LOG_ATOMS,
    ACCESS_LOG_FIELDS,
    ACCESS_LOG_LETTERS,
    FUNCTIONS,
    GROUPS,
    OPTIONS,
    Option,
    Place,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

HEAD = """\
# Options

Made from the table in `tailrace/cli/options.py` by `tools/options_page.py`; change it there.

Each option can be given on the command line (`--max-body 10MiB`), as a variable (`TAILRACE_MAX_BODY=10MiB`), as a key
of `tailrace.toml` or of `[tool.tailrace]` in `pyproject.toml` (`max_body = "10MiB"`). The command line comes first,
then the environment, then the file, then the default. `tailrace config` prints what is in effect and where each value
came from.

An option has one name, written as each place demands: with dashes on the command line, in capitals in variables, with
underscores in programs, with either in files. The flags of one letter, `-b` and `-w`, are for the command line; every
command that takes options takes them (`serve`, `config`, `doctor`, `static list`).

The file is the one that `--config` or `TAILRACE_CONFIG` names; without them `tailrace.toml` in the current directory,
or else its `pyproject.toml`. An unknown key is an error. An unknown `TAILRACE_*` variable is a warning; those that
Kubernetes sets for a service called "tailrace" are passed over.

In a program, options are arguments of `tailrace.run`, `tailrace.serve_in_thread` and `tailrace.gevent.serve`
(`max_body="10MiB"`), and keys of a section of PasteDeploy, which is for `tailrace.run`. These read neither environment
nor files. An option that concerns the program rather than the server is not taken; "Not by" says where and why. On the
command line "Not with" marks what has no effect, with a warning, or is refused.

- A **size** is a number of bytes, or ends in `k`, `m`, `g`, `t` or `KiB`, `MiB`, `GiB`, `TiB` (powers of 1024), or in
  `kB`, `MB`, `GB`, `TB` (powers of 1000).
- A **time** is a number of seconds, or ends in `ms`, `s`, `m`, `h`, `d`, `w` or `y`.
- **true or false** is also `yes`, `no`, `on`, `off`, `1`, `0` in variables, and `--debug` or `--no-debug` on the
  command line.
- A **list** is an array in TOML, a repeated flag on the command line, and separated by commas or spaces in a variable.
- A **list of `NAME=VALUE`** is also a table in TOML (`static = {"/assets" = "./dist"}`) and a dict in a program, and is
  separated by spaces in a variable.
"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group}\n")
        parts += [entry(option) for option in OPTIONS if option.group == group]
    parts.append(
        "\n## Atoms of the access log\n\nIn `access_log_format`, in braces:\n\n| atom | what it gives |\n|---|---|\n"
    )
    parts += [f"| `{{{name}}}` | {meaning} |\n" for name, meaning in (ACCESS_LOG_ATOMS | ACCESS_LOG_FIELDS).items()]
    parts.append(
        "\nOr those of gunicorn, in place of braces (`%%` is a percent sign):\n\n| atom | what it gives |\n|---|---|\n"
    )
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
