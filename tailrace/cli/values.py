"""Kinds of option values: how each is read from text or TOML, and how it is written back.

A kind accepts what a person writes (`"10MiB"`, `"2m"`, `"yes"`) as well as the value itself (`10485760`, `120.0`,
`True`), so one `read` serves the command line, the environment, TOML files and keyword arguments. `read` raises
`ValueError` whose message completes the sentence "threads = 'x': ...".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

# ASCII alone: int() and Decimal also take the digits of other scripts.
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*", re.ASCII)
_WITH_UNIT: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_OCTAL: Final = re.compile(r"\s*(0o)?[0-7]{1,8}\s*", re.IGNORECASE | re.ASCII)
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
}
# 1024 TiB: more than any machine has, and so little that sums and products in the core cannot overflow.
_LARGEST: Final = 1 << 50
_DURATION_UNITS: Final = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "y": 31536000.0,
}
_RATE: Final = re.compile(r"\s*([0-9]{1,9})\s*/\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII)
_RATE_UNITS: Final = {"s": 1, "min": 60, "h": 3600}
# Seconds. A time shorter than the resolution of the core's clock would become 0, which may mean "never". A time of less
# than a century cannot overflow in the core.
_SHORTEST: Final = 0.001
_LONGEST: Final = 3_000_000_000
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class Kind(NamedTuple):
    """One kind of value.

    name: the type as docs/options.md shows it, in Markdown; with an `s`, the plural.
    read: from text or a plain value to the value of the option; raises ValueError.
    write: from the value to what `tailrace config` and the documentation show: a plain value that `read` takes back.
    metavar: what stands for the value in `--help`.
    annotation: the type of the keyword argument in a program.
    """

    name: str
    metavar: str
    annotation: str
    read: Callable[[object], Any]
    write: Callable[[Any], object] = lambda value: value


def whole(least: int = 0, most: int = 10**12) -> Kind:
    """A whole number within bounds."""

    def read(raw: object) -> int:
        if isinstance(raw, str) and _WHOLE.fullmatch(raw):
            # Not int(), which refuses thousands of digits with a message of its own.
            raw = int(Decimal(raw))
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError("must be a whole number")
        return _bounded(raw, least, most)

    return Kind("integer", "NUMBER", "int", read)


def or_auto(kind: Kind) -> Kind:
    """The values of a kind, or the word `auto`, which stands for one of them."""

    def read(raw: object) -> Any:
        if isinstance(raw, str) and raw.strip().lower() == "auto":
            return "auto"
        try:
            return kind.read(raw)
        except ValueError as error:
            raise ValueError(f"{error}, or auto") from None

    return Kind(
        f"{kind.name} or `auto`",
        f"{kind.metavar}|auto",
        f'{kind.annotation} | Literal["auto"]',
        read,
        lambda value: value if value == "auto" else kind.write(value),
    )


def size(least: int = 0) -> Kind:
    """A number of bytes: `65536`, `"64k"`, `"10MiB"`, `"10MB"`."""

    def read(raw: object) -> int:
        if isinstance(raw, str):
            found = _WITH_UNIT.fullmatch(raw)
            unit = _SIZE_UNITS.get(found[2].lower()) if found else None
            if found is None or unit is None or (unit == 1 and "." in found[1]):
                raise ValueError("must be a size such as 65536, 64k, 10MiB or 1g")
            raw = int(Decimal(found[1]) * unit)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise ValueError("must be a size such as 65536, 64k, 10MiB or 1g")
        return _bounded(raw, least, _LARGEST, _write_size)

    return Kind("size", "SIZE", "int | str", read, _write_size)


def _write_size(value: int) -> object:
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return value


def seconds(*, zero: bool, most: float = _LONGEST) -> Kind:
    """A duration in seconds, `most` at most: `30`, `0.5`, `"500ms"`, `"2m"`. `zero` tells whether 0 is allowed."""

    def read(raw: object) -> float:
        if isinstance(raw, str):
            found = _WITH_UNIT.fullmatch(raw)
            unit = _DURATION_UNITS.get(found[2].lower()) if found else None
            if found is None or unit is None:
                raise ValueError("must be a time in seconds such as 30, 0.5, 500ms or 2m")
            raw = float(found[1]) * unit
        # `raw != raw`: NaN is no time either.
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or raw != raw:
            raise ValueError("must be a time in seconds such as 30, 0.5, 500ms or 2m")
        if raw < 0 or (raw == 0 and not zero):
            raise ValueError("must be " + ("0 or more" if zero else "more than 0") + " seconds")
        if 0 < raw < _SHORTEST:
            raise ValueError("must be " + "0 or " * zero + f"at least {_SHORTEST} seconds")
        if raw > most:
            raise ValueError(f"must be at most {most} seconds")
        return float(raw)

    return Kind("duration", "SECONDS", "float | str", read, lambda value: int(value) if value == int(value) else value)


def rate() -> Kind:
    """A number per period, as a pair of that number and the period in seconds: `10/s`, `600/min`, `100/h`. Empty: None,
    no limit."""

    def read(raw: object) -> tuple[int, int] | None:
        if raw is None or raw == "":
            return None
        if isinstance(raw, Sequence) and not isinstance(raw, str) and len(raw) == 2:
            raw = f"{raw[0]}/{next((unit for unit, length in _RATE_UNITS.items() if length == raw[1]), '?')}"
        found = _RATE.fullmatch(raw) if isinstance(raw, str) else None
        length = _RATE_UNITS.get(found[2].lower()) if found else None
        if found is None or length is None:
            raise ValueError("must be a number and a unit of time such as 10/s, 600/min or 5000/h")
        return _bounded(int(found[1]), 1, 1_000_000), length

    def write(value: tuple[int, int]) -> object:
        return f"{value[0]}/{next(unit for unit, length in _RATE_UNITS.items() if length == value[1])}"

    return Kind("rate", "RATE", "str | None", read, lambda value: "" if value is None else write(value))


def boolean() -> Kind:
    """Yes or no."""

    def read(raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.strip().lower() in _TRUE | _FALSE:
            return raw.strip().lower() in _TRUE
        raise ValueError("must be true or false")

    return Kind("boolean", "", "bool", read)


def text(metavar: str, *, check: Callable[[str], str | None] | None = None) -> Kind:
    """Any text without control characters; `check` may refuse it, or return another one."""

    def read(raw: object) -> str:
        if not isinstance(raw, str):
            raise ValueError("must be text")
        checked = check(_printable(raw)) if check else None
        return _printable(raw) if checked is None else checked

    return Kind("string", metavar, "str", read)


def path(metavar: str = "PATH", *, check: Callable[[str], str] | None = None) -> Kind:
    """The path of a file or directory; empty text is None, which turns a setting of a file off again. `check` may
    refuse or normalise one."""

    def read(raw: object) -> str | None:
        if raw is None or raw == "":
            return None
        if hasattr(raw, "__fspath__"):
            raw = raw.__fspath__()
        if not isinstance(raw, str) or "\0" in raw:
            raise ValueError("must be a path")
        return check(raw) if check else raw

    return Kind("path", metavar, "str | PathLike[str] | None", read)


def choice(*names: str, metavar: str = "") -> Kind:
    """One of a few names. metavar: instead of all of them."""

    def read(raw: object) -> str:
        if not isinstance(raw, str) or raw.lower() not in names:
            raise ValueError("must be one of " + ", ".join(names))
        return raw.lower()

    annotation = f"Literal[{', '.join(map(json.dumps, names))}]"
    *others, last = (f"`{name}`" for name in names)
    shown = metavar.lower() or f"{', '.join(others)} or {last}"
    return Kind(shown, metavar or "|".join(names), annotation, read)


def octal() -> Kind:
    """Permission bits, written in octal: `"027"`, `"0o660"`."""

    def read(raw: object) -> int | None:
        if raw is None or raw == "":
            return None
        if isinstance(raw, str):
            if not _OCTAL.fullmatch(raw):
                raise ValueError("must be octal permission bits such as 027 or 0o660")
            raw = int(raw, 8)
        if isinstance(raw, bool) or not isinstance(raw, int) or not 0 <= raw <= 0o777:
            raise ValueError("must be octal permission bits from 0 to 0o777")
        return raw

    return Kind(
        "octal number", "OCTAL", "int | str | None", read, lambda value: None if value is None else f"0o{value:03o}"
    )


def several(item: Kind, *, may_be_empty: bool = False, splits: bool = False) -> Kind:
    """A list: repeated on the command line, an array in TOML, separated by commas or spaces in the environment.

    splits: commas and spaces separate also in an item, so that one flag may have several.
    """

    def read(raw: object) -> tuple[Any, ...]:
        if isinstance(raw, str):
            raw = _words(raw)
        elif isinstance(raw, int) and not isinstance(raw, bool):
            raw = [raw]
        if not isinstance(raw, Sequence) or isinstance(raw, (bytes, bytearray)):
            raise ValueError("must be a list")
        if splits:
            raw = [word for part in raw for word in (_words(part) if isinstance(part, str) else [part])]
        if not raw and not may_be_empty:
            raise ValueError("must name at least one")
        # A number, such as a port, means its digits.
        return tuple(item.read(str(part) if type(part) is int else part) for part in raw)

    annotation = f"str | Sequence[{item.annotation.removesuffix(' | None')}]"
    return Kind(f"list of {item.name}s", item.metavar, annotation, read, lambda value: [*map(item.write, value)])


def several_or(nothing: str, item: Kind) -> Kind:
    """A list that may be empty, which a word stands for."""
    parts = several(item, may_be_empty=True, splits=True)

    def read(raw: object) -> tuple[Any, ...]:
        if isinstance(raw, str) and not _words(raw):
            raise ValueError("must name at least one")
        read_parts: tuple[Any, ...] = () if raw in (nothing, [nothing], (nothing,)) else parts.read(raw)
        return read_parts

    def write(value: Any) -> object:
        return parts.write(value) if value else nothing

    return Kind(f"{parts.name} or `{nothing}`", item.metavar, parts.annotation, read, write)


def pairs(
    item: Callable[[str, str], tuple[Any, Any]],
    metavar: str,
    example: str,
    write: Callable[[Any, Any], str] = "{}={}".format,
    nameless: Callable[[str], Any] | None = None,
) -> Kind:
    """A list of names with a value each: `NAME=VALUE`, separated by spaces in the environment; in TOML and in programs
    also a table.

    item: reads a name and the text of its value, which may both be empty. example: one as it is written. nameless:
    reads the text of a value that stands alone, or after a `=`; its name is None, and there may be several.
    """

    def read(raw: object) -> tuple[tuple[Any, Any], ...]:
        if isinstance(raw, str):
            raw = raw.split()
        if isinstance(raw, Mapping):
            raw = list(raw.items())
        if nameless and isinstance(raw, os.PathLike):
            raw = [raw]
        if not isinstance(raw, Sequence) or isinstance(raw, (bytes, bytearray)):
            raise ValueError(f"must be a list of {metavar}, or a table")
        found: dict[Any, tuple[Any, Any]] = {}
        for part in raw:
            given, text = split(part)
            name, value = (None, nameless(text)) if nameless and not given else item(given, text)
            key = (name, value) if name is None else name
            if key in found:
                raise ValueError(
                    f"must name {write(name, value).partition('=')[0] if name is not None else value} only once"
                )
            found[key] = (name, value)
        return tuple(found.values())

    def split(part: object) -> tuple[str, str]:
        if nameless and isinstance(part, os.PathLike) and isinstance(path := part.__fspath__(), str):
            return "", _printable(path)
        if isinstance(part, str):
            name, equals, value = _printable(part).partition("=")
            if not equals and nameless:
                return "", name
            if not equals:
                raise ValueError(f"must be {metavar}, such as {example}")
            return name, value
        if isinstance(part, Sequence) and len(part) == 2:
            name, value = (each.__fspath__() if isinstance(each, os.PathLike) else each for each in part)
            # A number, such as a status, means its digits.
            name = str(name) if type(name) is int else name
            if isinstance(name, str) and isinstance(value, str):
                return _printable(name), _printable(value)
        raise ValueError(f"must be a list of {metavar}, or a table")

    return Kind(f"list of `{metavar}`", metavar, "Pairs", read, lambda value: [write(*part) for part in value])


def _words(text: str) -> list[str]:
    """What commas and spaces separate."""
    return [word for word in re.split(r"[,\s]+", text) if word]


def _printable(text: str) -> str:
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise ValueError("must not contain control characters")
    return text


def _bounded(value: int, least: int, most: int, shown: Callable[[int], object] = str) -> int:
    if value < least:
        raise ValueError(f"must be at least {shown(least)}")
    if value > most:
        raise ValueError(f"must be at most {shown(most)}")
    return value
