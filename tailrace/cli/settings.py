"""Option values and where each came from: command line, then environment, then file, then default.

`resolve` serves the command line and reads the environment and files; `from_keywords` serves programs that embed
Tailrace and reads neither, so that a library call does what its arguments say. `Settings.effective` is what the server
uses.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tailrace.cli import static_settings
from tailrace.cli.option import Option, Place
from tailrace.cli.options import BY_NAME, CONFLICTS, OPTIONS
from tailrace.cli.server_settings import ServerSettings
from tailrace.cli.unknown import nearest
from tailrace.errors import ConfigError
from tailrace.logs import log
from tailrace.system import binds, cgroup
from tailrace.system.holding import PUBLISH_VARIABLE

CONFIG_VARIABLE: Final = "TAILRACE_CONFIG"
DEFAULT: Final = "default"
# The default of graceful_timeout with --reload (seconds): who saves a file waits for the new code.
_RELOAD_GRACE: Final = 1.0
# The defaults of the access log with --debug: short lines for a terminal beside the editor.
_DEBUG_LOG: Final = {
    "access_log": "-",
    "access_log_format": "{method} {target} {status} {bytes} bytes {duration_ms} ms",
}
# The default of trusted_proxies if all addresses are UNIX sockets or of the loopback interface.
_THIS_MACHINE: Final = ("unix", "127.0.0.0/8", "::1")
_LIMITS_OF_CLIENTS: Final = ("max_requests_per_client", "max_connections_per_client")
_ALL_TRUSTED: Final = (
    "no effect with --trusted-proxies *: trusted peers are not limited; name the addresses of the proxies instead"
)
_ALL_ENCRYPTED: Final = (
    "no effect if all addresses use https://: encrypted connections cannot be passed to another worker; terminate TLS "
    "in a proxy in front, and --bind an address without https://"
)
# An error shows at most this many characters of a wrong value.
_MAX_SHOWN: Final = 200
# A URL that may have a password.
_WITH_PASSWORD: Final = re.compile(r"(://)(?=.*(?:@|password)).*(?=['\"])", re.DOTALL)
_NAMES: Final = {name: name for name in BY_NAME}
_VARIABLES: Final = {option.variable: option.name for option in OPTIONS} | {CONFIG_VARIABLE: "config"}
# Kubernetes sets these variables in every container of a namespace that has a service called "tailrace" or
# "tailrace-web" ("Discovering services", kubernetes.io). Docker's links set the same.
_SERVICE_VARIABLE: Final = re.compile(
    r"TAILRACE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")
# gunicorn's options; often left over after a migration.
_GUNICORN: Final = "GUNICORN_CMD_ARGS"
_OF_A_PROJECT: Final = (
    "; in this file, options belong at the top level: remove the table header ([tool.tailrace] is for pyproject.toml)"
)
# Position in the parser's message, and a line with an unquoted value.
_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_UNQUOTED: Final = re.compile(r"""\s*([\w-]+)\s*=\s*([^\s"'\[\]{}#][^"'\[\]{}#]*?)\s*(?:#.*)?""")
# Finds our table in a file that is not valid TOML.
_OUR_TABLE: Final = re.compile(r"""^\s*\[*\s*tool\s*\.\s*["']?tailrace\b""", re.MULTILINE)


class Setting(NamedTuple):
    """The effective value of an option, and its source in words."""

    value: Any
    source: str


class Settings(dict[str, Setting]):
    """The setting of each option, by name; not changed once it is made."""

    @functools.cached_property
    def machine(self) -> cgroup.Machine:
        """What the server may use, as it was at the first call."""
        return cgroup.machine()

    @functools.cached_property
    def effective(self) -> ServerSettings:
        """The values alone, with what follows from `debug` and `reload`, and the machine."""
        values = {name: setting.value for name, setting in self.items()}
        if values["debug"] or values["reload"]:
            values["workers"] = 1
        if values["debug"]:
            # A breakpoint stops the only thread for any time.
            values["hang_timeout"] = 0.0
        return ServerSettings(machine=self.machine, **values)

    def changed(self, changes: Mapping[str, Setting]) -> Settings:
        """With other settings of some options, on the same machine."""
        changed = Settings({**self, **changes})
        changed.machine = self.machine
        return changed


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
            remedy = _OF_A_PROJECT if name in ("tailrace", "tool") else nearest(name, _NAMES)
            raise ConfigError(f"{file}: unknown key {key!r}{remedy}")
        settings[name] = Setting(_read(BY_NAME[name], raw, f"{file}: {key} ="), file)
    for variable, text in environ.items():
        if variable in (CONFIG_VARIABLE, PUBLISH_VARIABLE):
            continue
        if variable in _VARIABLES:
            option = BY_NAME[_VARIABLES[variable]]
            settings[option.name] = Setting(_read(option, text, f"{variable} ="), variable)
        elif variable.startswith("TAILRACE_") and not _is_of_a_service(variable, text):
            # A warning and no error: other programs set variables, too.
            warn(f"the variable {variable} is ignored: there is no such option{nearest(variable, _VARIABLES)}")
    if environ.get(_GUNICORN, "").strip():
        warn(
            f'the variable {_GUNICORN} is ignored: convert it with `tailrace migrate "gunicorn ${_GUNICORN}"`, then '
            "unset it"
        )
    for name, raw in command_line.items():
        option = BY_NAME[name]
        source = option.kind.metavar if option.positional else option.flag
        settings[name] = Setting(_read(option, raw, source), f"command line: {source}")
    for option in OPTIONS:
        if settings[option.name].source == DEFAULT:
            settings[option.name] = _default(option, environ)
    if settings["reload"].value and settings["graceful_timeout"].source == DEFAULT:
        settings["graceful_timeout"] = Setting(_RELOAD_GRACE, f"{DEFAULT} with --reload")
    if settings["debug"].value and settings["access_log"].source == DEFAULT:
        for name, value in _DEBUG_LOG.items():
            if settings[name].source == DEFAULT:
                settings[name] = Setting(value, f"{DEFAULT} with --debug")
    _trust_this_machine(settings)
    return Settings(settings)


def _trust_this_machine(settings: dict[str, Setting]) -> None:
    """By default, a server that only this machine can reach trusts the proxies on it."""
    if settings["trusted_proxies"].source == DEFAULT and binds.are_local(settings["bind"].value):
        settings["trusted_proxies"] = Setting(_THIS_MACHINE, f"{DEFAULT}: only this machine can reach the addresses")


def _default(option: Option, environ: Mapping[str, str]) -> Setting:
    """What holds if nothing else is said."""
    variable = option.platform_variable
    if variable is None or (text := environ.get(variable.name, "").strip()) == "":
        return Setting(option.default, DEFAULT)
    try:
        if variable.kind is not None:
            _read(option._replace(kind=variable.kind), text, f"{variable.name} =")
        return Setting(_read(option, variable.written.format(text), f"{variable.name} ="), variable.name)
    except ConfigError as error:
        raise ConfigError(f"{error}; correct it, or set {option.flag}, which takes precedence") from None


def is_chosen(option: Option, setting: Setting) -> bool:
    """Whether somebody has chosen the value for Tailrace: it is no default, and not from a variable of a platform."""
    return setting.source != DEFAULT and (
        option.platform_variable is None or setting.source != option.platform_variable.name
    )


def from_the_platform(settings: Settings) -> str:
    """The options whose values come from variables of a platform, in words; empty if there are none."""
    chosen, said = settings.effective, []
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
    _trust_this_machine(settings)
    return Settings(settings)


def without_effect(settings: Settings, *, has_master: bool) -> list[str]:
    """A warning for each reason why options have no effect together with others.

    Raises ConfigError for options that contradict each other.
    """
    chosen = settings.effective
    places = [
        place
        for place, holds in (
            (Place.RELOAD, chosen.reload),
            (Place.DEBUG, chosen.debug),
            (Place.DEBUG_ALONE, chosen.debug and not has_master),
            (Place.GEVENT, chosen.gevent),
            (Place.WITHOUT_GEVENT, not chosen.gevent),
            (Place.WITHOUT_RELOAD, not chosen.reload),
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
    if chosen.sticky and chosen.stream_body:
        raise ConfigError(
            "--sticky cannot be combined with --stream-body: requests are passed to other workers with their whole "
            "bodies; remove one"
        )
    has_others = chosen.workers != 1 and not (chosen.reload or chosen.debug)
    if chosen.sticky and has_others and all(bind.protocol == "https" for bind in binds.parse_all(chosen.bind)):
        flags.setdefault(_ALL_ENCRYPTED, []).append(BY_NAME["sticky"].flag)
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
        # It may end in the log.
        shown = _WITH_PASSWORD.sub(r"\1...", shown)
        if len(shown) > _MAX_SHOWN:
            shown = f"{shown[:_MAX_SHOWN]}..."
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
    # Imported here, since most servers have no file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not valid TOML: not UTF-8 (at line {line})") from None
    except (ValueError, RecursionError) as error:  # also numbers and nesting beyond what Python takes
        raise ConfigError(f"{path}: not valid TOML: {error}{_quoted(text, str(error))}") from None


def _quoted(text: bytes, error: str) -> str:
    """Suffix for the error message about an unquoted value; empty for any other mistake."""
    line = _LINE.search(error)
    lines = text.decode().split("\n")
    found = _UNQUOTED.fullmatch(lines[int(line[1]) - 1]) if line and int(line[1]) <= len(lines) else None
    if found is None or len(found[2]) > _MAX_SHOWN:
        return ""
    lower = found[2].lower()
    return f"; write {found[1]} = {lower}" if lower in ("true", "false") else f'; write {found[1]} = "{found[2]}"'


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
