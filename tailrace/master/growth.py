"""Which endpoints have made a worker grow, for the line that says why it is replaced.

No process, clock or log is used here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

_MIB: Final = 1 << 20
# At most this many are named, and each has this part of the growth at least.
_MAX_SHOWN: Final = 3
_MIN_SHARE: Final = 0.1
# Minimum growth for the log, in multiples of its standard error.
_SURE: Final = 2.0


def named(endpoints: Iterable[Mapping[str, Any]]) -> str:
    """Those that have caused most of the growth, as the end of a line; empty: none is known.

    endpoints: of the worker, as the scoreboard has them.
    """
    grown = [each for each in endpoints if each["grown_bytes"] >= max(_MIB, _SURE * _error(each))]
    total = sum(each["grown_bytes"] for each in grown)
    grown.sort(key=lambda each: each["grown_bytes"], reverse=True)
    told = [_described(each) for each in grown[:_MAX_SHOWN] if each["grown_bytes"] >= _MIN_SHARE * total]
    return f"; it grew with {', '.join(told)}" if told else ""


def _error(endpoint: Mapping[str, Any]) -> float:
    return 1024 * math.sqrt(endpoint["grown_variance"])


def _described(endpoint: Mapping[str, Any]) -> str:
    bytes_, responses = endpoint["grown_bytes"], max(1, endpoint["grown_responses"])
    name = endpoint["endpoint"] or "other endpoints"
    return f"{name} (+{_size(bytes_ / responses)} a response, {_size(bytes_)} in total)"


def _size(count: float) -> str:
    return f"{count / _MIB:.1f} MiB" if count >= _MIB / 10 else f"{count / 1024:.1f} KiB"
