"""Writes docs/options.md from the options table; `--check` only says whether it is up to date.

python tools/options_page.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from penstock.options import ACCESS_LOG_ATOMS, GROUPS, OPTIONS, Option

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

HEAD = """\
# Options

Made from the table in `penstock/options.py` by `tools/options_page.py`; change it there.

Each option can be given on the command line (`--max-body 10MiB`), as a variable (`PENSTOCK_MAX_BODY=10MiB`), as a key
of `penstock.toml` or of `[tool.penstock]` in `pyproject.toml` (`max_body = "10MiB"`), and as an argument of
`penstock.run` (`max_body="10MiB"`). The command line comes first, then the environment, then the file, then the
default. `penstock config` prints what is in effect and where each value came from.

The file is the one that `--config` or `PENSTOCK_CONFIG` names; without them `penstock.toml` in the current directory,
or else its `pyproject.toml`. Unknown keys and unknown `PENSTOCK_*` variables are errors. `penstock.run` and
`penstock.serve_in_thread` read neither environment nor files.

- A **size** is a number of bytes, or ends in `k`, `m`, `g` or `KiB`, `MiB`, `GiB` (powers of 1024), or `kB`, `MB`, `GB`
  (powers of 1000).
- A **time** is a number of seconds, or ends in `ms`, `s`, `m` or `h`.
- **true or false** is also `yes`, `no`, `on`, `off`, `1`, `0` in variables, and `--debug` or `--no-debug` on the
  command line.
- A **list** is an array in TOML, a repeated flag on the command line, and separated by commas or spaces in a variable.
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
    parts += [f"| `{{{name}}}` | {meaning} |\n" for name, meaning in ACCESS_LOG_ATOMS.items()]
    return "".join(parts)


def entry(option: Option) -> str:
    """One option."""
    spellings = ", ".join(f"`{flag}`" for flag in (option.flag, *option.flags))
    flags = "the first argument" if option.positional else spellings
    facts = " · ".join((flags, f"`{option.variable}`", option.kind.name, default(option)))
    lines = [f"\n### {option.name}\n\n{option.help}\n\n{facts}\n"]
    if option.example is not None:
        lines.append(f"\n```toml\n{option.name} = {json.dumps(option.example)}\n```\n")
    return "".join(lines)


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
        "docs/options.md does not follow penstock/options.py; run `.venv/bin/python tools/options_page.py`",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
