"""What `tailrace config` prints: the effective settings, and where each came from."""

from __future__ import annotations

import json

from tailrace.cli.option import GROUPS
from tailrace.cli.options import BY_NAME, OPTIONS
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.settings import Settings
from tailrace.logs import log


def as_json(settings: Settings) -> str:
    """A JSON object with the value and the source of each option, and with what follows from the machine."""
    machine = _of_the_machine(settings.effective)
    shown: dict[str, dict[str, object]] = {
        name: {"value": BY_NAME[name].kind.write(value) if value is not None else None, "source": source}
        for name, (value, source) in settings.items()
    }
    for name, follows in machine.items():
        shown[name]["machine"] = follows
    return json.dumps(shown, indent=2)


def as_toml(settings: Settings) -> str:
    """A TOML file that `--config` takes; settings without a value are comments."""
    machine = _of_the_machine(settings.effective)
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
                follows = f"; {machine[option.name]}" if option.name in machine else ""
                lines.append(f"{written:<44} # {source}{follows}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _of_the_machine(chosen: ServerSettings) -> dict[str, str]:
    """What the machine makes of options, in words."""
    machine, shown = chosen.machine, {}
    if chosen.workers == "auto":
        shown["workers"] = f"{chosen.worker_count} for {machine.cpus_shown}"
    if chosen.client_memory is None and machine.memory is not None:
        workers = log.counted(chosen.worker_count, "worker")
        shown["client_memory"] = f"{chosen.memory >> 20} MiB for {machine.memory_shown} and {workers}"
    if (most := chosen.memory_in_use_limit) is not None:
        shown["max_rss"] = f"{most >> 20} MiB in use for {machine.memory_shown}"
    return shown


def _toml(value: object) -> str:
    """For booleans, numbers, text and lists, the notation of JSON is that of TOML, too."""
    return json.dumps(value, ensure_ascii=False)
