"""Times of the wall clock, as documents have them."""

from __future__ import annotations

import datetime


def shown(clock: float) -> str:
    """A time (seconds since 1970) as RFC 3339 has it, in UTC."""
    return datetime.datetime.fromtimestamp(clock, datetime.timezone.utc).isoformat(timespec="milliseconds")
