"""Checks before each experiment, while no server runs, whether the machine is quiet enough for a ranking.

A fixed piece of work is timed in short slices on the server's core and on the client's. On a quiet core, all slices
take nearly the same time. A check also reads the time that the hypervisor gave to other guests, and the number of
other runnable processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from tailrace_compare import machine

# Of each core. A slice takes about a millisecond: shorter than the kernel's time slices, so that some meet an
# interruption and some do not.
SLICES = 100
STEPS = 12_000
# What the run queue is read after.
QUEUE_SLICES = 10

# Beyond these, differences between servers are no larger than those between two runs of the same one.
MAX_SPREAD = 0.15
MAX_STEAL = 0.03
MAX_WAITING = 0.5


@dataclass(frozen=True)
class Look:
    """before: the experiment that came next. spread: the slices' times from the 10th to the 90th percentile, over the
    median. steal: the part of the cores' time that the hypervisor gave to others. waiting: other processes that ran or
    wanted to run."""

    before: str
    spread: float
    steal: float
    waiting: float


@dataclass(frozen=True)
class Verdict:
    """Whether a ranking is refused, and why."""

    refused: bool
    reason: str


def look(before: str) -> Look:
    """Measures now, for a quarter of a second."""
    allowed = os.sched_getaffinity(0)
    steal, begun = stolen_seconds(), time.perf_counter()
    spreads, queue = [], []
    try:
        for core in sorted({machine.SERVER_CORE, machine.LOAD_CORE}):
            os.sched_setaffinity(0, {core})
            taken = []
            for number in range(SLICES):
                taken.append(timed_slice())
                if number % QUEUE_SLICES == 0:
                    queue.append(running() - 1)
            spreads.append(spread(taken))
    finally:
        os.sched_setaffinity(0, allowed)
    cores_seconds = len(machine.CORES) * (time.perf_counter() - begun)
    return Look(before, max(spreads), (stolen_seconds() - steal) / cores_seconds, max(0.0, mean(queue)))


def judge(looks: Sequence[Look]) -> Verdict:
    """The rule: a ranking is refused where a quarter of the looks, or the only one, exceeds a limit."""
    told = [
        (upper_quartile([each.spread for each in looks]), MAX_SPREAD, "a fixed piece of work varied by {}"),
        (upper_quartile([each.steal for each in looks]), MAX_STEAL, "other virtual machines took {}"),
    ]
    reasons = [f"{text.format(percent(found))} (limit {percent(most)})" for found, most, text in told if found > most]
    waiting = upper_quartile([each.waiting for each in looks])
    if waiting > MAX_WAITING:
        reasons.append(f"{waiting:.1f} other processes were runnable (limit {MAX_WAITING:g})")
    if not reasons:
        return Verdict(False, "")
    return Verdict(True, f"The machine was too noisy: in a quarter of the checks, {', and '.join(reasons)}.")


def as_json(looks: Sequence[Look]) -> dict[str, Any]:
    return {**asdict(judge(looks)), "looks": [asdict(each) for each in looks]}


def from_json(document: dict[str, Any]) -> list[Look]:
    return [Look(**each) for each in document["looks"]]


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def upper_quartile(values: Sequence[float]) -> float:
    """0 of nothing."""
    if len(values) < 2:
        return max(values, default=0.0)
    return quantiles(values, n=4, method="inclusive")[2]


def spread(taken: Sequence[float]) -> float:
    """From the 10th to the 90th percentile, in parts of the median."""
    tenths = quantiles(taken, n=10, method="inclusive")
    return (tenths[-1] - tenths[0]) / median(taken)


def timed_slice() -> float:
    """Seconds for the fixed piece of work."""
    begun = time.perf_counter()
    value = 1
    for step in range(STEPS):
        value = (31 * value + step) & 0xFFFF
    return time.perf_counter() - begun


def stolen_seconds() -> float:
    """What other guests have had of the cores that this process may use."""
    return stolen_ticks(Path("/proc/stat").read_text(), machine.CORES) / os.sysconf("SC_CLK_TCK")


def stolen_ticks(stat: str, cores: Iterable[int]) -> int:
    """Time stolen from the cores, in the unit of proc_stat(5)."""
    lines = {line.partition(" ")[0]: line.split() for line in stat.splitlines()}
    fields = [lines.get(f"cpu{core}", []) for core in cores]
    return sum(int(each[8]) for each in fields if len(each) > 8)


def running() -> int:
    """Threads of all processes that run or want to, this one included."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
