"""`--log-config`: a dictionary for `logging.config.dictConfig` in a TOML or JSON file.

The process that starts a server applies it first of all. A worker that loads the application applies it again before
that, so that handlers have threads and connections of the worker's own, and a reload reads the file again.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tailrace._tailrace import log_destination_kind
from tailrace.errors import ConfigError
from tailrace.logs import log, log_formats

# What `logging.config` takes at the top, and for a logger; it ignores all else.
_KEYS: Final = (
    *("version", "formatters", "filters", "handlers", "loggers", "root", "incremental"),
    "disable_existing_loggers",
)
_KEYS_OF_A_LOGGER: Final = ("level", "propagate", "filters", "handlers")
_KEYS_OF_ROOT: Final = tuple(key for key in _KEYS_OF_A_LOGGER if key != "propagate")
_SECTIONS: Final = ("formatters", "filters", "handlers", "loggers")
_PART: Final = re.compile(r"Unable to configure (formatter|filter|handler|logger) '(.*)'")

# The path, level and directory of `apply`.
_applied: tuple[str, str, str] | None = None


class _Change(NamedTuple):
    """What `apply` has done with a logger: level and propagation before that, and what it has attached."""

    logger: logging.Logger
    level: int
    propagate: bool
    handlers: list[logging.Handler]
    filters: list[Any]


_changes: Final[list[_Change]] = []


def apply(path: str, level: str, directory: str) -> None:
    """Configures logging as the file says. Raises ConfigError that names the file and the key.

    level: of the logger `tailrace`, if the file sets none. directory: what relative names of log files are relative to.
    If the file gives that logger no handler, its log goes to standard error.
    """
    global _applied
    # Imported here because most servers start without it.
    import logging.config

    config = _read(path)
    _check(path, config)
    for handler in config.get("handlers", {}).values():
        _locate(handler, directory)
    _undo()
    loggers = {logging.getLogger(name) for name in ("", log.logger.name, *config.get("loggers", {}))}
    before = [_Change(each, each.level, each.propagate, [*each.handlers], [*each.filters]) for each in loggers]
    # Loggers that exist by now are the server's and those of libraries.
    config = {"version": 1, "disable_existing_loggers": False, **config}
    try:
        logging.config.dictConfig(config)
    except (Exception, SystemExit) as error:  # what a class named in the file raises, too
        raise ConfigError(f"--log-config {path}: {_reason(error)}") from None
    for name in config.get("handlers", {}):
        log.follow_rotation(vars(logging)["_handlers"].get(name))
    log.revive()
    if log.logger.level == logging.NOTSET:
        log.logger.setLevel(level.upper())
    if not log.logger.hasHandlers():
        log.send_to(log.STDERR, log_formats.TEXT, level)
    _changes[:] = [
        change._replace(
            handlers=[each for each in change.logger.handlers if each not in change.handlers],
            filters=[each for each in change.logger.filters if each not in change.filters],
        )
        for change in before
    ]
    _applied = (path, level, directory)


def _undo() -> None:
    """Undoes what an earlier `apply` has done: the file may have fewer loggers now."""
    for change in _changes:
        change.logger.setLevel(change.level)
        change.logger.propagate = change.propagate
        for handler in change.handlers:
            change.logger.removeHandler(handler)
        for each in change.filters:
            change.logger.removeFilter(each)
    _changes.clear()


def apply_again() -> None:
    """In a worker: does what `apply` has done in the master, if it has. Raises ConfigError."""
    if _applied is not None:
        apply(*_applied)


def warn_of_threads() -> None:
    """In a master, which forks: warns of threads that handlers have started."""
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if _applied is not None and others:
        log.logger.warning(
            "--log-config %s: handlers have started threads in the master (%s). A process with threads should not "
            "fork: use handlers without threads, such as tailrace.LogHandler, or attach these handlers in the "
            "application",
            _applied[0],
            ", ".join(others),
        )


def _read(path: str) -> dict[str, Any]:
    extension = os.path.splitext(path)[1].lower()
    if extension not in (".toml", ".json"):
        raise ConfigError(
            f"--log-config {path}: is neither .toml nor .json; write the dictionary of logging.config.dictConfig as "
            "TOML or JSON (docs/logging.md has an example)"
        )
    # Imported here, since most servers have no file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        config = tomllib.loads(text) if extension == ".toml" else json.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"--log-config {path}: no such file; check the path") from None
    except OSError as error:
        raise ConfigError(f"--log-config {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--log-config {path}: not valid {extension[1:].upper()}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--log-config {path}: must be an object with keys such as handlers and loggers")
    return config


def _check(path: str, config: Mapping[str, Any]) -> None:
    """Raises ConfigError for keys that `logging.config` would ignore, and for what is no table."""
    for key in config:
        if key not in _KEYS:
            raise ConfigError(f"--log-config {path}: unknown key {key}{_nearest(key, _KEYS)}")
    for section in _SECTIONS:
        table = config.get(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--log-config {path}: {section} must be a table")
        for name, entry in table.items():
            if not isinstance(entry, dict):
                raise ConfigError(f"--log-config {path}: {section}.{name} must be a table")
    if config.get("version", 1) != 1:
        raise ConfigError(f"--log-config {path}: version must be the number 1; it may be left out")
    for key in ("disable_existing_loggers", "incremental"):
        _check_type(path, key, config.get(key, False), bool)
    for name, entry in config.get("handlers", {}).items():
        _check_handler(path, f"handlers.{name}", entry)
    for name, entry in config.get("loggers", {}).items():
        for key, value in entry.items():
            if key not in _KEYS_OF_A_LOGGER and isinstance(value, dict):
                raise ConfigError(
                    f"--log-config {path}: loggers.{name}.{key} is a table in a table; put the logger's name in "
                    f'quotes: [loggers."{name}.{key}"]'
                )
        _check_logger(path, f"loggers.{name}", entry, _KEYS_OF_A_LOGGER)
    root = config.get("root", {})
    if not isinstance(root, dict):
        raise ConfigError(f"--log-config {path}: root must be a table")
    _check_logger(path, "root", root, _KEYS_OF_ROOT)


def _check_logger(path: str, name: str, entry: Mapping[str, Any], known: Iterable[str]) -> None:
    for key, value in entry.items():
        if key not in known:
            raise ConfigError(f"--log-config {path}: unknown key {name}.{key}{_nearest(key, known)}")
        if key in ("handlers", "filters"):
            _check_type(path, f"{name}.{key}", value, list)
        elif key == "propagate":
            _check_type(path, f"{name}.{key}", value, bool)


def _check_handler(path: str, name: str, entry: Mapping[str, Any]) -> None:
    if "()" not in entry and not isinstance(entry.get("class"), str):
        raise ConfigError(f"--log-config {path}: {name} must name its class, such as class = 'tailrace.LogHandler'")
    stream = entry.get("stream")
    if stream in ("stdout", "stderr", "sys.stdout", "sys.stderr"):
        raise ConfigError(
            f"--log-config {path}: {name}.stream is the text {stream!r}, to which nothing can be written; write "
            f"'ext://sys.{stream.removeprefix('sys.')}'"
        )


def _check_type(path: str, name: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        what = {bool: "true or false", list: "a list, such as ['server']"}[wanted]
        raise ConfigError(f"--log-config {path}: {name} must be {what}, not {value!r}")


def _locate(handler: dict[str, Any], directory: str) -> None:
    """Makes the file of a handler absolute, and notes that it will be made."""
    key = "destination" if handler.get("class") == "tailrace.LogHandler" else "filename"
    name = handler.get(key)
    if not isinstance(name, str) or not name:
        return
    with contextlib.suppress(ValueError):  # the handler will say what is wrong
        if key == "destination" and (name == log.LOGGING or log_destination_kind(name) != "file"):
            return
        handler[key] = os.path.abspath(os.path.join(directory, name))
        log.will_make(handler[key])


def _reason(error: BaseException) -> str:
    """The key, and the messages of the error and its causes."""
    said: list[str] = []
    key = ""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause) or type(cause).__name__
        if found := _PART.fullmatch(text):
            key = f"{found[1]}s.{found[2]}"
        elif "root logger" in text:
            key = "root"
        elif isinstance(cause, KeyError):
            said.append(f"there is no {text}")
        elif not any(text in each for each in said):
            said.append(text)
        cause = cause.__cause__
    return ": ".join(filter(None, (key, *said))) or type(error).__name__


def _nearest(key: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else f"; choose from {', '.join(known)}"
