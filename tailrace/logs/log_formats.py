"""How an entry of the server's own log reads: as text, or as an object of JSON; and its fields for the journal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, Final

TEXT: Final = "text"
JSON: Final = "json"
# By the kind of destination. Time and process are the daemon's to show, and the level is shown by the journal.
_TEXTS: Final = {
    "syslog": "%(levelname)s: %(message)s",
    "journal": "%(message)s",
}
_TEXT: Final = "%(asctime)s tailrace[%(process)d] %(levelname)s: %(message)s"
_TIME: Final = "%Y-%m-%dT%H:%M:%S%z"
# Levels of logging, and the severities of syslog (RFC 5424 section 6.2.1).
_SEVERITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7
# What every record has. Further attributes are what a caller has given as `extra`.
_ORDINARY: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

# The number of the worker that this process is; None: it is none.
_worker: int | None = None


def set_worker(number: int) -> None:
    """From now on entries of JSON and of the journal, and records of `tailrace.access`, name this worker."""
    global _worker
    _worker = number


def worker() -> int | None:
    """The number of the worker that this process is; None for a master, and in an embedding program."""
    return _worker


def formatter(kind: str, format: str) -> logging.Formatter:
    """The formatter for a kind of destination ("file", "syslog", "journal", ...) and a format, TEXT or JSON."""
    return JsonFormatter() if format == JSON else logging.Formatter(_TEXTS.get(kind, _TEXT), _TIME)


class JsonFormatter(logging.Formatter):
    """Entries as objects of JSON, each on one line and in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """The object: `time` (RFC 3339, UTC), `level`, `logger`, `process`, `worker`, `message`, what was given as
        `extra`, and `exception`, the traceback."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if _worker is not None:
            entry["worker"] = _worker
        entry |= {name: value for name, value in extras(record).items() if name not in entry}
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            entry["exception"] = record.exc_text
        if record.stack_info:
            entry["stack"] = record.stack_info
        try:
            return _dumped(entry)
        except Exception:  # that of a value
            return _dumped({name: _simple(value) for name, value in entry.items()})


def _dumped(value: object) -> str:
    return json.dumps(value, default=str, allow_nan=False)


def _simple(value: object) -> object:
    """The value, or a text for one that cannot be written as JSON: a number such as NaN, a dict with other keys."""
    try:
        _dumped(value)
    except Exception:
        return _text(value)
    return value


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # of the application's class
        return f"<{type(value).__name__}, whose text cannot be made: {type(error).__name__}>"


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _ORDINARY}


def severity(level: int) -> int:
    """The severity of syslog for a level of logging."""
    return next((severity for least, severity in _SEVERITIES if level >= least), _DEBUG)


def journal_fields(record: logging.LogRecord) -> list[tuple[str, bytes]]:
    """The fields that the journal shows as TAILRACE_LOGGER, TAILRACE_WORKER and so on."""
    fields: dict[str, object] = {"logger": record.name, "worker": _worker, **extras(record)}
    return [(name, _bytes(value)) for name, value in fields.items() if value is not None]


def _bytes(value: object) -> bytes:
    return _text(value).encode("utf-8", "backslashreplace")


def access_record(
    make: Callable[..., logging.LogRecord], name: str, record: Mapping[str, Any], line: str
) -> logging.LogRecord:
    """The record of logging for a response that is over. make: `makeRecord` of the logger. record: the delivery
    record, whose fields become attributes. line: that of the access log."""
    extra = {**record, "worker": _worker}
    made = make(name, logging.INFO, "(tailrace)", 0, line, (), None, None, extra)
    made.created = record["ended"]
    made.msecs = made.created % 1 * 1000
    return made
