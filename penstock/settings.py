"""Option values and where each came from: command line, then environment, then file, then default.

`resolve` serves the command line and reads the environment and files; `from_keywords` serves programs that embed
Penstock and reads neither, so that a library call does what its arguments say.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import ConfigError
from penstock.options import BY_NAME, OPTIONS, Option

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_VARIABLE: Final = "PENSTOCK_CONFIG"
DEFAULT: Final = "default"


class Setting(NamedTuple):
    """The effective value of an option, and its source in words."""

    value: Any
    source: str


Settings = dict[str, Setting]


def plain(settings: Settings) -> dict[str, Any]:
    """The values alone."""
    return {name: setting.value for name, setting in settings.items()}


def resolve(
    command_line: Mapping[str, object],
    environ: Mapping[str, str],
    config: str | None = None,
    directory: Path | None = None,
) -> Settings:
    """The effective settings.

    command_line: option values by name, given ones only. config: path of the file named by `--config`, which beats
    the variable `PENSTOCK_CONFIG`; without either, penstock.toml in `directory` (the current one) is read, or else
    `[tool.penstock]` of its pyproject.toml. Raises ConfigError.
    """
    settings = {option.name: Setting(option.default, DEFAULT) for option in OPTIONS}
    file, table = _read_file(config or environ.get(CONFIG_VARIABLE) or None, directory or Path())
    for key, raw in table.items():
        name = key.replace("-", "_")
        if name not in BY_NAME:
            raise ConfigError(f"{file}: unknown key {key!r}{_nearest(key, BY_NAME)}")
        settings[name] = Setting(_read(BY_NAME[name], raw, f"{file}: {key} ="), file)
    variables = {option.variable: option for option in OPTIONS}
    for variable, text in environ.items():
        if not variable.startswith("PENSTOCK_") or variable == CONFIG_VARIABLE:
            continue
        if variable not in variables:
            known = [*variables, CONFIG_VARIABLE]
            raise ConfigError(f"environment: unknown variable {variable}{_nearest(variable, known)}")
        option = variables[variable]
        settings[option.name] = Setting(_read(option, text, f"{variable} ="), variable)
    for name, raw in command_line.items():
        option = BY_NAME[name]
        source = option.kind.metavar if option.positional else option.flag
        settings[name] = Setting(_read(option, raw, source), f"command line: {source}")
    return settings


def from_keywords(given: Mapping[str, object], *, allowed: Iterable[str] | None = None) -> Settings:
    """Settings from keyword arguments, or from the text values of an ini section. Raises ConfigError."""
    known = tuple(BY_NAME if allowed is None else allowed)
    settings = {option.name: Setting(option.default, DEFAULT) for option in OPTIONS}
    for name, raw in given.items():
        if name not in known:
            raise ConfigError(f"unknown option {name!r}{_nearest(name, known)}")
        settings[name] = Setting(_read(BY_NAME[name], raw, f"{name} ="), "argument")
    return settings


def _read(option: Option, raw: object, place: str) -> Any:
    if raw is None and option.default is None:
        return None
    try:
        return option.kind.read(raw)
    except ValueError as error:
        shown = ", ".join(map(str, raw)) if isinstance(raw, (list, tuple)) else raw
        raise ConfigError(f"{place} {shown!r}: {error}") from None


def _read_file(config: str | None, directory: Path) -> tuple[str, dict[str, object]]:
    """The name to show for the settings file, and its table; empty when there is none."""
    if config is not None:
        path = Path(config)
        if not path.is_file():
            raise ConfigError(f"{config}: no such file; check --config or {CONFIG_VARIABLE}")
        document = _parse(path)
        return (config, _tool_table(document, path)) if path.name == "pyproject.toml" else (config, document)
    if (path := directory / "penstock.toml").is_file():
        return str(path), _parse(path)
    if (path := directory / "pyproject.toml").is_file():
        return f"{path} [tool.penstock]", _tool_table(_parse(path), path)
    return "", {}


def _parse(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            document: dict[str, object] = tomllib.load(file)
            return document
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _tool_table(document: dict[str, object], path: Path) -> dict[str, object]:
    tool = document.get("tool", {})
    table = tool.get("penstock", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.penstock must be a table")
    return table


def _nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name."""
    found = difflib.get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f"; did you mean {found[0]}?" if found else "; `penstock config` lists all options"
