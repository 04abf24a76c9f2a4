"""Maps a figure to a place on an axis: linear from zero, or logarithmic if figures differ by a factor of 100."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LOG_FROM = 100
MAX_TICKS = 5
MAX_LOG_TICKS = 6


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`. If it is logarithmic, figures of zero or less are at its start."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, figures: Iterable[float], log: bool | None = None) -> Scale:
        """An axis with room for these figures. log: as the figures demand if not given."""
        known = [figure for figure in figures if math.isfinite(figure)]
        positive = [figure for figure in known if figure > 0]
        if log is None:
            log = bool(positive) and max(positive) / min(positive) >= LOG_FROM
        if log:
            positive = positive or [1.0]
            return cls(min(positive) / 1.15, max(positive) * 1.15, True)
        low, high = min(known, default=0.0), max(known, default=0.0)
        if low >= 0 and high <= 0:
            return cls(0.0, 1.0, False)
        room = 0.04 * (max(high, 0.0) - min(low, 0.0))
        return cls(low - room if low < 0 else 0.0, high + room if high > 0 else 0.0, False)

    def place(self, figure: float) -> float:
        """Where a figure stands, from 0 to 1."""
        if not self.log:
            share = (figure - self.low) / (self.high - self.low)
        elif figure <= 0:
            share = 0.0
        else:
            share = math.log(figure / self.low) / math.log(self.high / self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Round figures on the axis, a handful of them."""
        return self.log_ticks() if self.log else self.linear_ticks()

    def linear_ticks(self) -> list[float]:
        rough = (self.high - self.low) / (MAX_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(number * step, 12) for number in range(first, last + 1)]

    def log_ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found: list[float] = []
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            found = [
                mantissa * 10.0**power
                for power in range(first, last + 1)
                for mantissa in mantissas
                if self.low <= mantissa * 10.0**power <= self.high
            ]
            if len(found) <= MAX_LOG_TICKS:
                return found if len(found) > 2 else self.linear_ticks()
        return found[:: math.ceil(len(found) / MAX_LOG_TICKS)]


def tick_label(figure: float) -> str:
    """A round figure, short."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(figure) >= size:
            return f"{figure / size:,.10g}{letter}"
    return f"{figure:.10g}"
