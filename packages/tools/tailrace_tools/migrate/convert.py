"""Converts the options of a configuration to settings of Tailrace, and to remarks about the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.cli.load import parse as parse_application
from tailrace.cli.log_settings import SAID_BY_THE_FILE
from tailrace.cli.option import Option, Place
from tailrace.cli.options import BY_NAME, CONFLICTS
from tailrace.cli.values import Kind, octal, whole
from tailrace.errors import ConfigError, LoadError
from tailrace.system.addresses import InheritedAddress, TcpAddress, UnixAddress
from tailrace.system.binds import BACKLOG, MAX_BACKLOG, Bind
from tailrace.system.binds import parse as parse_bind
from tailrace.system.binds import parse_all as parse_binds
from tailrace_tools.migrate.source import CPUS, UNSET, Given, Remark, Source
from tailrace_tools.other_servers import values
from tailrace_tools.other_servers.rows import Effect, Refused, Server

_PROXIES: Final = ["unix", "127.0.0.1", "::1"]
# Options of gunicorn that a file for `log_config` replaces.
_LOGGING: Final = ("logconfig", "logconfig_dict")
_LOOPBACK: Final = ("127.", "::1", "localhost")
# What the other servers set for all sockets and `--bind` for each one.
_EXAMPLES: Final = {"mode": "unix:/run/app.sock", "backlog": "127.0.0.1:8000"}
OF_SOCKETS: Final[dict[str, Kind]] = {"mode": octal(), "backlog": whole(1, MAX_BACKLOG)}
_PORT_ONLY: Final = "it depends on $PORT"


@dataclass
class Setting:
    """A value for a tailrace.toml, as the option's kind writes it, and comments about it.

    entries: those of a list, by their names, or by themselves if they have none. An option may be given thousands of
    times, so none of them reads the list again.
    """

    value: Any
    origins: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)

    def add(self, entries: dict[Any, Any]) -> None:
        """Adds entries to a list, or none of them: raises ValueError if one has the name of another one."""
        for key, entry in entries.items():
            if self.entries.get(key, entry) != entry:
                raise ValueError(f"must name {key} once")
        new = {key: entry for key, entry in entries.items() if key not in self.entries}
        self.entries.update(new)
        self.value.extend(new.values())


@dataclass
class Migrated:
    """settings: by option name. sockets: options of each address, with their origins. warnings: whatever needs the
    user's attention, including settings. references: options whose values name variables, as the source has them; None:
    they become settings or remarks, since a file has no variables."""

    source: Source
    settings: dict[str, Setting] = field(default_factory=dict)
    sockets: dict[str, tuple[int, Given]] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    references: dict[str, list[str]] | None = None


def convert(source: Source, *, keeps_references: bool = False) -> Migrated:
    """The equivalent settings. keeps_references: for a command line, which may have variables."""
    made = Migrated(source, remarks=list(source.remarks), references={} if keeps_references else None)
    others = _others(source.given)
    for given in source.given:
        _one(given, others, made)
    _implied(others, made)
    _encrypted(made)
    _with_options(made)
    _combined(made)
    if "app" not in made.settings and "app" not in (made.references or ()):
        made.warnings.append("no application is named; add it, as in `tailrace mysite.wsgi:application`")
    return made


def _others(given: list[Given]) -> dict[str, Any]:
    """The values by the keys of the table."""
    found: dict[str, list[Any]] = {}
    for each in given:
        if each.entry is None or each.value in (UNSET, None):
            continue
        found.setdefault(each.entry.name.key, []).append("auto" if each.value is CPUS else each.value)
    return {key: _together(values) for key, values in found.items()}


def _together(values: list[Any]) -> Any:
    """A value that is given once, or the list of all."""
    first, *others = values
    if not others:
        return first
    return [*first, *others] if isinstance(first, list) else values


def _one(given: Given, others: dict[str, Any], made: Migrated) -> None:
    entry = given.entry
    if entry is None:
        _remark(made, given, f"unknown option of {made.source.server.value}; see its manual")
        return
    row = entry.row
    if given.value is None or (row.effect is not Effect.OPTION and given.value in (False, "false", "0", 0, "", [])):
        # The default of the other server, or a switch that is off.
        return
    if row.convert is values.variables:
        # A remark would show a value that may be secret.
        is_known = given.value and given.value not in (UNSET, CPUS)
        variables = values.listed(given.value if is_known else given.name)
        made.source.variables += [each.partition("=")[0] for each in variables]
        return
    if made.references is not None and _refer(given, others, made.references):
        return
    value = None if given.value is UNSET else "auto" if given.value is CPUS else given.value
    try:
        found = row.convert(value, others)
        if given.value is UNSET:
            raise ValueError
        for name, raw in found.items():
            if name in OF_SOCKETS:
                made.sockets[name] = (OF_SOCKETS[name].read(raw), given)
                continue
            _set(made, BY_NAME[name], raw, given)
    except Refused as refused:
        _remark(made, given, str(refused), is_warning=not refused.is_needless)
    except (ValueError, TypeError, OverflowError, ConfigError, LoadError) as error:
        if given.computed:
            _computed(made, given, row.ours)
        else:
            _remark(made, given, f"`{row.ours}` does not accept the value: {error}")


def _refer(given: Given, others: dict[str, Any], references: dict[str, list[str]]) -> bool:
    """Takes an option as it is written, if a shell expands its value, and if our option takes the same one."""
    row = given.entry.row if given.entry else None
    if row is None or row.effect is not Effect.OPTION or not given.written or given.value is CPUS:
        return False
    is_list = isinstance(BY_NAME[row.ours].default, tuple) if row.ours in BY_NAME else True
    if not re.search(r"\$|a command", given.computed) or (is_list and given.value is not UNSET):
        return False
    try:
        found = row.convert(given.written, others)
    except (Refused, ValueError, TypeError):
        return False
    if row.convert is values.gunicorn_bind and ":" not in given.written:
        # The variable has the port.
        found = {"bind": given.written}
    for name, raw in found.items():
        if name in OF_SOCKETS:
            return False
        before = references.get(name, []) if is_list else []
        references[name] = before + (list(map(str, raw)) if isinstance(raw, list) else [str(raw)])
    return True


def _set(made: Migrated, option: Option, raw: Any, given: Given) -> None:
    """Adds a value. Raises ValueError, ConfigError or LoadError if the option does not take it."""
    if given.value is CPUS and option.name != "workers":
        raise ValueError("it depends on the number of CPUs")
    read = option.kind.read(raw)
    if read is None or (read == () and raw == ""):
        # An empty path: unset, for which TOML has no value.
        return
    if option.name == "bind":
        parsed = parse_binds(read)
        if given.computed == _PORT_ONLY and [_is_anywhere(bind) for bind in parsed] == [True]:
            # A setting in the file would override the variable, which the platform sets.
            reason = "`bind` is 0.0.0.0:$PORT by default; if $PORT may be unset, start with"
            port = str(parsed[0].address).rpartition(":")[2]
            is_encrypted = any(each.entry and each.entry.row.ours == "certfile" for each in made.source.given)
            address = f"{'https://' * is_encrypted}0.0.0.0:${{PORT:-{port}}}"
            _remark(made, given, f'{given.computed}: {reason} `tailrace --bind "{address}"`')
            return
    elif option.name == "app":
        parse_application(read)
    setting = Setting(option.kind.write(read))
    known = made.settings.get(option.name)
    if isinstance(option.default, tuple) and isinstance(setting.value, list):
        entries = _entries(read, setting.value)
        if known is not None and isinstance(raw, list) and isinstance(known.value, list):
            known.add(entries)
            setting = known
        else:
            setting.entries = entries
            if known is not None:
                setting.origins, setting.comments = known.origins, known.comments
    origin = f"{given.name}, {given.place}" if given.place else given.name
    if given.computed:
        setting.comments.append(f"{given.text} ({given.place or 'command line'}): {given.computed}")
        if given.value is CPUS:
            setting.comments.append(
                "auto starts one worker per CPU. With `threads = 1`, set a larger number if workers often wait"
            )
        elif read_anyway := _read_anyway(option, given.computed):
            setting.comments.append(f"this overrides the variable; remove the line, since {read_anyway}")
        else:
            variable = option.variable
            setting.comments.append(f"this is the default; to override it, set the environment variable {variable}")
        made.warnings.append(f"{option.name}: {given.computed}; the result contains a suggestion")
    setting.origins.append(origin)
    made.settings[option.name] = setting


def _is_anywhere(bind: Bind) -> bool:
    """Whether it equals the default with $PORT: HTTP on all IPv4 addresses."""
    at = bind.address
    return isinstance(at, TcpAddress) and bind == Bind(at) and at.host in ("", "0.0.0.0")


def _entries(read: tuple[Any, ...], written: list[Any]) -> dict[Any, Any]:
    """The entries of a list as the file has them, by their names, or by themselves if they have none."""
    keys = [each[0] or each if isinstance(each, tuple) else each for each in read]
    return dict(zip(keys, written, strict=True))


def _computed(made: Migrated, given: Given, ours: str) -> None:
    what = given.computed or "its value is computed"
    if not ours:
        _remark(made, given, what)
        return
    if read_anyway := _read_anyway(BY_NAME[ours], what):
        _remark(made, given, f"{what}, and {read_anyway}")
        return
    variable = BY_NAME[ours].variable
    _remark(made, given, f"{what}: set `{ours}` here, or {variable} in the environment of the server")


def _read_anyway(option: Option, computed: str) -> str:
    """That Tailrace reads the variable which a value depends on; empty if it does not."""
    variable = option.platform_variable
    if variable is None or computed != f"it depends on ${variable.name}":
        return ""
    return f"`{option.name}` is {variable.written.format('$' + variable.name)} by default"


def _remark(made: Migrated, given: Given, reason: str, *, is_warning: bool = True) -> None:
    made.remarks.append(Remark(given.text, given.place, reason, is_warning))


# Defaults of the other server.


def _implied(others: dict[str, Any], made: Migrated) -> None:
    server = made.source.server
    if server in (Server.WAITRESS, Server.MOD_WSGI) and "bind" not in made.settings:
        port = 8080 if server is Server.WAITRESS else 8000
        made.settings["bind"] = Setting([f"0.0.0.0:{port}"], ["the default"])
    if server is Server.GUNICORN:
        _socket_mode(made)
    if server in (Server.GUNICORN, Server.UWSGI):
        _one_thread(others, made)
        _proxies(made)
    is_silent = values.is_on(others.get("disable_logging", False))
    if server is Server.UWSGI and "access_log" not in made.settings and not is_silent:
        reason = 'uWSGI logs each request by default; `access_log = "-"` does the same'
        made.remarks.append(Remark("request log", "", reason, is_warning=False))
    if server is Server.UWSGI and not {"lazy_apps", "lazy"} & others.keys() and "master" in others:
        reason = "uWSGI loads the application before it forks; `preload = true` does the same"
        made.remarks.append(Remark("no lazy-apps", "", reason, is_warning=False))
    if any(given.entry and given.entry.name.key in _LOGGING for given in made.source.given):
        for name in SAID_BY_THE_FILE:
            if name in made.settings:
                made.settings[name].comments.append("remove it once the file for `log_config` exists")
    if names := sorted(set(made.source.variables)):
        reason = "set them in the environment, or in the file that `env_file` names; their values are not shown here"
        made.remarks.append(Remark(f"variables: {', '.join(names)}", "", reason))


def _encrypted(made: Migrated) -> None:
    """With a certificate, the other servers encrypt all their addresses."""
    if "certfile" not in made.settings:
        return
    computed = [each for each in made.source.given if each.computed and each.entry and each.entry.row.ours == "bind"]
    if "bind" not in made.settings and computed:
        where = "0.0.0.0:$PORT" if computed[0].computed == _PORT_ONLY else "0.0.0.0:8000"
        reason = (
            f"{made.source.server.value} encrypts it because a certificate is set, but the default `bind` is not "
            f'encrypted: start with `tailrace --bind "https://{where}"`'
        )
        if computed[0].value is UNSET:
            _remark(made, computed[0], reason)
        return
    setting = made.settings.setdefault("bind", Setting(["127.0.0.1:8000"], ["the default"]))
    setting.value = [_https(text) for text in setting.value]
    setting.entries = {}


def _https(text: str) -> str:
    """An address with the scheme of an encrypted one."""
    if text.startswith("unix:"):
        return f"https+{text}"
    return text if "://" in text and not text.startswith("http://") else f"https://{text.removeprefix('http://')}"


def _with_options(made: Migrated) -> None:
    """Writes the options of all sockets into each address."""
    setting = made.settings.get("bind")
    for name, (number, given) in made.sockets.items():
        written = f"mode={number:o}" if name == "mode" else f"backlog={number}"
        if name == "backlog" and number == BACKLOG:
            continue
        found = [_with_option(text, name, written) for text in setting.value] if setting else []
        if setting is None or found == setting.value:
            _remark(made, given, f"set it as an option of an address in `bind`, as in {_EXAMPLES[name]}?{written}")
            continue
        setting.value, setting.entries = found, {}
        setting.origins.append(f"{given.name}, {given.place}" if given.place else given.name)


def _with_option(text: str, name: str, written: str) -> str:
    """The address with an option, if it may have that."""
    at = parse_bind(text)[0].address
    is_apt = (
        isinstance(at, UnixAddress) and not at.is_abstract if name == "mode" else not isinstance(at, InheritedAddress)
    )
    return f"{text}{'&' if '?' in text else '?'}{written}" if is_apt else text


def _socket_mode(made: Migrated) -> None:
    """gunicorn's umask is 0 by default, so every local user, such as nginx, may connect to its UNIX sockets."""
    is_given = any(given.entry and given.entry.name.key == "umask" for given in made.source.given)
    setting = made.settings.get("bind")
    if is_given or setting is None:
        return
    mode = f"mode={values.socket_mode_of(0):o}"
    found = [_with_option(text, "mode", mode) for text in setting.value]
    if found == setting.value:
        return
    comment = "every local user may connect; if the proxy is in the group that owns the socket, use mode=660"
    setting.value, setting.entries = found, {}
    setting.comments.append(comment)
    made.warnings.append(f"bind: {mode}, as with gunicorn; {comment}")


def _one_thread(others: dict[str, Any], made: Migrated) -> None:
    """A worker that serves one request at a time: the application need not be thread-safe."""
    if "threads" in made.settings or "gevent" in made.settings or others.get("worker_class", "sync") != "sync":
        return
    if "threads" in others or "threads" in (made.references or ()):
        return
    server = made.source.server.value
    made.settings["threads"] = Setting(
        1,
        ["the default"],
        [
            f"a worker of {server} without threads serves one request at a time, so this is the safe value",
            "remove it if the application is thread-safe, as Django and Flask are: threads start on demand",
        ],
    )
    made.warnings.append(f"threads: 1, as with {server}; remove it if the application is thread-safe")


def _proxies(made: Migrated) -> None:
    """gunicorn trusts proxies on this machine, and both servers pass on the header fields of any proxy."""
    setting = made.settings.get("bind")
    listening = parse_binds(setting.value if setting else ["127.0.0.1:8000"])
    tcp = [bind.address for bind in listening if not isinstance(bind.address, UnixAddress)]
    if "trusted_proxies" in made.settings or not tcp:
        return
    comments = ["from other peers, X-Forwarded-* and Forwarded are removed"]
    is_computed = setting is None and any(given.entry and given.entry.row.ours == "bind" for given in made.source.given)
    if is_computed or any(not str(getattr(address, "host", "")).startswith(_LOOPBACK) for address in tcp):
        comments.append("if the proxy is on another machine or in another container, add its address or network")
        made.warnings.append("trusted_proxies: add the address of the proxy, if it is not on this machine")
    made.settings["trusted_proxies"] = Setting(list(_PROXIES), ["the default"], comments)


def _combined(made: Migrated) -> None:
    """Removes settings that contradict another one, or have no effect with it."""
    chosen = {
        Place.GEVENT: "gevent" in made.settings,
        Place.WITHOUT_GEVENT: "gevent" not in made.settings,
        Place.WITHOUT_RELOAD: "reload" not in made.settings,
        Place.RELOAD: "reload" in made.settings,
    }
    for name in list(made.settings):
        for place, reason in BY_NAME[name].absent.items():
            if chosen.get(place):
                setting = made.settings.pop(name)
                text = f"{name} = {setting.value}"
                beside = place.where
                is_conflict = (name, place) in CONFLICTS
                verb = "is rejected" if is_conflict else "has no effect"
                where = re.sub(r"^the default$", "", setting.origins[0]) if setting.origins else ""
                made.remarks.append(Remark(text, where, f"it {verb} {beside}: {reason}", is_warning=is_conflict))
                break
    if "log_config" not in made.settings:
        return
    for name in SAID_BY_THE_FILE:
        if (found := made.settings.pop(name, None)) is not None:
            reason = "it is rejected with `log_config`: give the logger `tailrace` in that file its level and handlers"
            made.remarks.append(Remark(f"{name} = {found.value}", found.origins[0], reason))
