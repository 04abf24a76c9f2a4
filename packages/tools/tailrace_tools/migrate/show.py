"""The text of a tailrace.toml: settings by group, options without an equivalent, options that are not needed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable

from tailrace.cli.option import GROUPS
from tailrace.cli.options import BY_NAME, OPTIONS
from tailrace.printable import printable
from tailrace_tools.migrate import hooks
from tailrace_tools.migrate.convert import Migrated
from tailrace_tools.migrate.source import SHOWN, Remark, shortened

_WIDTH = 100
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]+)\b(?!=)")


def as_toml(made: Migrated) -> str:
    """The file."""
    source = made.source
    lines = [
        *_comment(f"Tailrace settings, converted by `tailrace migrate` from {source.title} ({source.server.value})."),
        *_comment("Check them with `tailrace config`; start the server with `tailrace`."),
    ]
    for group in GROUPS:
        found = [option.name for option in OPTIONS if option.group == group and option.name in made.settings]
        if found:
            lines += ["", *_comment(group)]
        for name in found:
            setting = made.settings[name]
            for comment in setting.comments:
                lines += _comment(shortened(comment, 2 * SHOWN))
            written = f"{name} = {_value(setting.value)}"
            lines.append(f"{written:<44} # {_one_line(', '.join(dict.fromkeys(setting.origins)))}")
    lines += _remarks("No equivalent, or for you to decide:", [each for each in made.remarks if each.is_warning])
    lines += _remarks("Not needed:", [each for each in made.remarks if not each.is_warning])
    if skeleton := hooks.skeleton(source):
        lines += ["", *_comment("Template for hooks.py: remove the `# ` of each line, complete it, and set `hooks`:")]
        lines += ['# hooks = "hooks.py"', "#", *(f"# {line}".rstrip() for line in skeleton)]
    return "\n".join(lines)


def warnings(made: Migrated) -> list[str]:
    """One line for each point that needs the user's attention."""
    lines = list(made.warnings)
    for each in dict.fromkeys(made.remarks):
        if each.is_warning:
            where = f" ({each.place})" if each.place else ""
            lines.append(f"{shortened(_one_line(each.text), SHOWN)}{where}: {_ours(each.reason)}")
    return [_one_line(line) for line in lines]


def _remarks(heading: str, remarks: list[Remark]) -> list[str]:
    if not remarks:
        return []
    lines = ["", *_comment(heading)]
    for each in dict.fromkeys(remarks):
        where = f" ({each.place})" if each.place else ""
        lines += [f"#   {shortened(_one_line(each.text), SHOWN)}{_one_line(where)}"]
        lines += _comment(f"{_ours(each.reason)}.", "#       ")
    return lines


def _comment(text: str, beginning: str = "# ") -> Iterable[str]:
    return textwrap.wrap(
        _one_line(text), _WIDTH, initial_indent=beginning, subsequent_indent=beginning, break_on_hyphens=False
    )


def _one_line(text: str) -> str:
    """Makes sure that text of the source cannot end the comment."""
    return printable(text.replace("\t", " "))


def _ours(sentence: str) -> str:
    """The sentence with option names as in the file."""

    def key(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return f"`{name}`" if name in BY_NAME else found[0]

    # A command that is quoted keeps its flags.
    parts = sentence.split("`")
    return "`".join(part if place % 2 else _FLAG.sub(key, part) for place, part in enumerate(parts))


def _value(value: object) -> str:
    """For booleans, numbers, text and lists, the notation of JSON is that of TOML.

    What is not printable is escaped, since a terminal may show the file. TOML has no escape for half of a surrogate
    pair, which is not UTF-8 either.
    """
    written = json.dumps(value, ensure_ascii=False)
    return "".join(
        each if each.isprintable() or "\ud800" <= each <= "\udfff" else f"\\U{ord(each):08x}" for each in written
    )
