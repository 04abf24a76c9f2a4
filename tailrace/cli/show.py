"""What `tailrace config` prints: the effective settings, and where each came from."""

from __future__ import annotations

import json

from tailrace.cli.option import GROUPS
from tailrace.cli.options import BY_NAME, OPTIONS
from tailrace.cli.settings import Settings


def as_json(settings: Settings) -> str:
    """A JSON object with the value and the source of each option."""
    shown = {
        name: {"value": BY_NAME[name].kind.write(value) if value is not None else None, "source": source}
        for name, (value, source) in settings.items()
    }
    return json.dumps(shown, indent=2)


def as_toml(settings: Settings) -> str:
    """A TOML file that `--config` takes; settings without a value are comments."""
    lines = []
    for group in GROUPS:
        lines.append(f"# {group}")
        for option in OPTIONS:
            if option.group == group:
                value, source = settings[option.name]
                written = (
                    f"# {option.name} is unset"
                    if value is None
                    else f"{option.name} = {_toml(option.kind.write(value))}"
                )
                lines.append(f"{written:<44} # {source}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _toml(value: object) -> str:
    """For booleans, numbers, text and lists, the notation of JSON is that of TOML, too."""
    return json.dumps(value, ensure_ascii=False)
