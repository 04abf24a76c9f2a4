"""Option values and where each came from: command line, then environment, then file, then default.

`resolve` serves the command line and reads the environment and files; `from_keywords` serves programs that embed
Tailrace and reads neither, so that a library call does what its arguments say. `effective` makes the settings of the
server from the result.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from tailrace.cli import static_settings
from tailrace.cli.option import Option, Place
from tailrace.cli.options import BY_NAME, CONFLICTS, OPTIONS
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.unknown import nearest
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import cgroup

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_VARIABLE: Final = "TAILRACE_CONFIG"
DEFAULT: Final = "default"
# The default of graceful_timeout with --reload (seconds): who saves a file waits for the new code.
_RELOAD_GRACE: Final = 1.0
_LIMITS_OF_CLIENTS: Final = ("max_requests_per_client", "max_connections_per_client")
_ALL_TRUSTED: Final = (
    "no effect with --trusted-proxies *: trusted peers are not limited; name the addresses of the proxies instead"
)
# An error shows at most this many characters of a wrong value.
_MOST_SHOWN: Final = 200
_NAMES: Final = {name: name for name in BY_NAME}
_VARIABLES: Final = {option.variable: option.name for option in OPTIONS} | {CONFIG_VARIABLE: "config"}
# Kubernetes sets these variables in every container of a namespace that has a service called "tailrace" or
# "tailrace-web" ("Discovering services", kubernetes.io). Docker's links set the same.
_SERVICE_VARIABLE: Final = re.compile(
    r"TAILRACE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")
# Finds our table in a file that is not valid TOML.
_OUR_TABLE: Final = re.compile(r"""^\s*\[*\s*tool\s*\.\s*["']?tailrace\b""", re.MULTILINE)


class Setting(NamedTuple):
    """The effective value of an option, and its source in words."""

    value: Any
    source: str


Settings = dict[str, Setting]


def effective(settings: Settings) -> ServerSettings:
    """The values alone, with what follows from `debug` and `reload`, and the machine as it is now."""
    values = {name: setting.value for name, setting in settings.items()}
    if values["debug"] or values["reload"]:
        values["workers"] = 1
    if values["debug"]:
        # A breakpoint stops the only thread for any time.
        values["hang_timeout"] = 0.0
    return ServerSettings(cgroup.machine(), **values)


def resolve(
    command_line: Mapping[str, object],
    environ: Mapping[str, str],
    config: str | None = None,
    directory: Path | None = None,
    warn: Callable[[str], object] = lambda message: None,
) -> Settings:
    """The effective settings.

    command_line: option values by name, given ones only. config: path of the file named by `--config`, which beats the
    variable `TAILRACE_CONFIG`; without either, tailrace.toml in `directory` (the current one) is read, or else
    `[tool.tailrace]` of its pyproject.toml. warn: called with a line for each variable or file that was ignored. Raises
    ConfigError."""
    settings = {option.name: Setting(option.default, DEFAULT) for option in OPTIONS}
    file, table = _read_file(config or environ.get(CONFIG_VARIABLE) or None, directory or Path(), warn)
    for key, raw in table.items():
        name = key.replace("-", "_")
        if name not in BY_NAME:
            raise ConfigError(f"{file}: unknown key {key!r}{nearest(name, _NAMES)}")
        settings[name] = Setting(_read(BY_NAME[name], raw, f"{file}: {key} ="), file)
    for variable, text in environ.items():
        if variable == CONFIG_VARIABLE:
            continue
        if variable in _VARIABLES:
            option = BY_NAME[_VARIABLES[variable]]
            settings[option.name] = Setting(_read(option, text, f"{variable} ="), variable)
        elif variable.startswith("TAILRACE_") and not _is_of_a_service(variable, text):
            # A warning and no error: other programs set variables, too.
            warn(f"the variable {variable} is ignored: there is no such option{nearest(variable, _VARIABLES)}")
    for name, raw in command_line.items():
        option = BY_NAME[name]
        source = option.kind.metavar if option.positional else option.flag
        settings[name] = Setting(_read(option, raw, source), f"command line: {source}")
    for option in OPTIONS:
        if settings[option.name].source == DEFAULT:
            settings[option.name] = _default(option, environ)
    if settings["reload"].value and settings["graceful_timeout"].source == DEFAULT:
        settings["graceful_timeout"] = Setting(_RELOAD_GRACE, f"{DEFAULT} with --reload")
    return settings


def _default(option: Option, environ: Mapping[str, str]) -> Setting:
    """What holds if nothing else is said."""
    foreign = option.foreign
    if foreign is None or (text := environ.get(foreign.variable, "").strip()) == "":
        return Setting(option.default, DEFAULT)
    try:
        if foreign.kind is not None:
            _read(replace(option, kind=foreign.kind), text, f"{foreign.variable} =")
        return Setting(_read(option, foreign.written.format(text), f"{foreign.variable} ="), foreign.variable)
    except ConfigError as error:
        raise ConfigError(f"{error}; correct it, or set {option.flag}, which takes precedence") from None


def is_chosen(option: Option, setting: Setting) -> bool:
    """Whether somebody has chosen the value for Tailrace: it is no default, and not from a variable of a platform."""
    return setting.source != DEFAULT and (option.foreign is None or setting.source != option.foreign.variable)


def from_the_platform(settings: Settings) -> str:
    """The options whose values come from variables of a platform, in words; empty if there are none."""
    chosen, said = effective(settings), []
    for option in OPTIONS:
        value, source = settings[option.name]
        # --debug and --reload have one worker.
        if source != DEFAULT and not is_chosen(option, settings[option.name]) and getattr(chosen, option.name) == value:
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            said.append(f"{source} sets {option.flag} to {shown}")
    return "; ".join(said)


def _is_of_a_service(variable: str, text: str) -> bool:
    """Whether Kubernetes has set the variable. `TAILRACE_PORT` counts only with such an address: it may be a mistake
    for an option."""
    if variable.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(text):
        return True
    return _SERVICE_VARIABLE.fullmatch(variable) is not None


def from_keywords(given: Mapping[str, object], place: Place | None = None) -> Settings:
    """Settings from keyword arguments, or from the text values of an ini section.

    place: the function that was called. Raises ConfigError, also for an option that this function does not take.
    """
    settings = {option.name: Setting(option.default, DEFAULT) for option in OPTIONS}
    for name, raw in given.items():
        if name not in BY_NAME:
            raise ConfigError(f"unknown option {name!r}{nearest(name, _NAMES)}")
        option = BY_NAME[name]
        if place is not None and place in option.absent:
            raise ConfigError(f"{place.value} does not take {name!r}: {option.absent[place]}")
        settings[name] = Setting(_read(option, raw, f"{name} ="), "argument")
    return settings


def without_effect(settings: Settings, *, has_master: bool) -> list[str]:
    """A warning for each reason why options have no effect together with others.

    Raises ConfigError for options that contradict each other.
    """
    chosen = effective(settings)
    places = [
        place
        for place, holds in (
            (Place.RELOAD, chosen.reload),
            (Place.DEBUG, chosen.debug),
            (Place.DEBUG_ALONE, chosen.debug and not has_master),
            (Place.GEVENT, chosen.gevent),
            (Place.WITHOUT_GEVENT, not chosen.gevent),
            (Place.WITHOUT_RELOAD, not chosen.reload),
            (Place.WITHOUT_PRELOAD, not chosen.preload),
        )
        if holds
    ]
    flags: dict[str, list[str]] = {}
    for option in OPTIONS:
        if not is_chosen(option, settings[option.name]) or settings[option.name].value is False:
            continue
        for place in places:
            if (reason := option.absent.get(place)) is None:
                continue
            if (option.name, place) in CONFLICTS:
                raise ConfigError(f"{option.flag} cannot be combined with {place.value}: {reason}; remove one")
            flags.setdefault(f"no effect {place.where}: {reason}", []).append(option.flag)
            break
    if "*" in chosen.trusted_proxies:
        for name in _LIMITS_OF_CLIENTS:
            if getattr(chosen, name):
                flags.setdefault(_ALL_TRUSTED, []).append(BY_NAME[name].flag)
    lines = [f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {line}" for line, names in flags.items()]
    return lines + static_settings.without_effect(chosen)


def _read(option: Option, raw: object, place: str) -> Any:
    if raw is None and option.default is None:
        return None
    try:
        return option.kind.read(raw)
    except ValueError as error:
        shown = repr(", ".join(map(str, raw)) if isinstance(raw, (list, tuple)) else raw)
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN]}..."
        raise ConfigError(f"{place} {shown}: {error}") from None


def _read_file(config: str | None, directory: Path, warn: Callable[[str], object]) -> tuple[str, dict[str, object]]:
    """The name to show for the settings file, and its table; empty when there is none."""
    if config is not None:
        path = Path(config)
        document = _parse(path, f"; check --config or {CONFIG_VARIABLE}")
        return (config, _tool_table(document, path)) if path.name == "pyproject.toml" else (config, document)
    if _stands(path := directory / "tailrace.toml", warn):
        return str(path), _parse(path)
    if _stands(path := directory / "pyproject.toml"):
        return f"{path} [tool.tailrace]", _project_table(path)
    return "", {}


def _stands(path: Path, warn: Callable[[str], object] = lambda message: None) -> bool:
    """Whether there is such a file."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        # The directory may not be searched. No error: the application may be somewhere else.
        warn(f"cannot look for a settings file in {os.path.abspath(path.parent)}: {error.strerror}")
        return False


def _parse(path: Path, remedy: str = "") -> dict[str, object]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{remedy}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: this is a directory; name the file in it{remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}{remedy}") from None
    return _document(text, path)


def _document(text: bytes, path: Path) -> dict[str, object]:
    """What the file says. Raises ConfigError that names the line."""
    try:
        return tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not valid TOML: not UTF-8 (at line {line})") from None
    except (ValueError, RecursionError) as error:  # also numbers and nesting beyond what Python takes
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _project_table(path: Path) -> dict[str, object]:
    """Our table of a pyproject.toml that no option names.

    The file is for other programs, too. So it is no error when it cannot be read, or is not valid and has no table of
    ours.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    try:
        document = _document(text, path)
    except ConfigError:
        if _OUR_TABLE.search(text.decode(errors="replace")):
            raise
        return {}
    return _tool_table(document, path)


def _tool_table(document: dict[str, object], path: Path) -> dict[str, object]:
    tool = document.get("tool", {})
    table = tool.get("tailrace", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.tailrace must be a table")
    return table


def warn_of_no_effect(settings: Settings, *, has_master: bool) -> None:
    """Logs which options have no effect together with others. Raises ConfigError for those that contradict each
    other."""
    for line in without_effect(settings, has_master=has_master):
        log.logger.warning("%s", line)
