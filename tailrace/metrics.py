"""Metrics of the application, made with `prometheus_client`: all workers share them, and `/metrics` shows them.

    from tailrace import metrics

    metrics.share_prometheus_client()

    from prometheus_client import Counter

    ORDERS = Counter("shop_orders", "Orders that were placed.", ["payment"])
    ORDERS.labels("card").inc()

A value is in memory that the master has made before it forked, so it is exact over all workers and stays when a worker
is replaced. It begins at 0 when the master starts, also the next one after SIGUSR2. Without workers, for example in
tests or with another server, values are in memory of the process.

Thread: any. In a forked process, a gauge that each process has for itself gets a number of its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tailrace._tailrace import SharedNumber, SharedNumbers
from tailrace.logs import log

__all__ = ["PrometheusValue", "share_prometheus_client"]

# Of a help text, so that its record fits.
_LONGEST_HELP: Final = 200

_lock = threading.RLock()
_numbers: SharedNumbers | None = None
# All numbers of this process, which `use` moves to other memory, and a fork separates.
_cells: list[_Cell] = []
_has_refused = False
# Time of the next check for exited processes (monotonic clock).
_looks_at = 0.0
_OURS: Final = "tailrace_"
# Such names of prometheus_client metrics that have been logged.
_refused: set[str] = set()


class _Local:
    """A number that found no place in the shared memory. It counts in this process alone, and is not shown."""

    def __init__(self) -> None:
        self._value = 0.0
        self._lock = threading.Lock()

    def add(self, amount: float) -> None:
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        self._value = value

    def get(self) -> float:
        return self._value


class _Later:
    """The own number of a forked process, which takes a place once it has a value."""

    def __init__(self, cell: _Cell) -> None:
        self._cell = cell

    def _found(self) -> SharedNumber | _Local:
        with _lock:
            if self._cell.number is self:
                self._cell.number = _find(self._cell.name, True)
            found = self._cell.number
        assert not isinstance(found, _Later)
        return found

    def add(self, amount: float) -> None:
        self._found().add(amount)

    def set(self, value: float) -> None:
        self._found().set(value)

    def get(self) -> float:
        return 0.0


class _Cell:
    """A number with a name. is_own: each process has its own."""

    __slots__ = ("is_own", "name", "number")

    def __init__(self, name: str, is_own: bool) -> None:
        self.name, self.is_own = name, is_own
        self.number: SharedNumber | _Local | _Later = _find(name, is_own)
        _cells.append(self)


def _shared() -> SharedNumbers:
    global _numbers
    with _lock:
        if _numbers is None:
            _numbers = SharedNumbers()
        return _numbers


def _forget_ended(numbers: SharedNumbers) -> None:
    """Frees the numbers of exited processes, including those that the application forked. If it finds none, it does
    not check again for one second, however many labels find no room."""
    global _looks_at
    if time.monotonic() < _looks_at:
        return
    owners = {owner for _, owner, _ in numbers.all() if owner}
    ended = [owner for owner in owners if not os.path.exists(f"/proc/{owner}")]
    for owner in ended:
        numbers.forget(owner)
    if not ended:
        _looks_at = time.monotonic() + 1.0


def _find(name: str, is_own: bool) -> SharedNumber | _Local:
    global _has_refused
    numbers, owner = _shared(), os.getpid() if is_own else 0
    found = numbers.number(name, owner)
    if found is None and is_own:
        _forget_ended(numbers)
        found = numbers.number(name, owner)
    if found is not None:
        return found
    numbers.refuse()
    if not _has_refused:
        _has_refused = True
        log.logger.error(
            "metrics: no room for %s: at most %d numbers are shared, with up to 480 bytes of names and labels each; "
            "further ones are not shown. Use fewer label values. This is logged once.",
            _shown(name),
            SharedNumbers.MAX,
        )
    return _Local()


def use(numbers: SharedNumbers) -> None:
    """The metrics of this process and of those that it forks are in this memory from now on. For the master."""
    global _numbers
    with _lock:
        _numbers = numbers
        for each in _cells:
            value, each.number = each.number.get(), _find(each.name, each.is_own)
            each.number.add(value)


def _forked() -> None:
    """In a forked process: what was the parent's own is not this one's."""
    _lock.release()
    for each in _cells:
        if each.is_own:
            each.number = _Later(each)


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forked)


def family_name(kind: str, name: str, help: str, mode: str) -> str:
    """The name of the number by which others know of a metric; its value has no meaning."""
    said = help.encode(errors="replace")[:_LONGEST_HELP].decode(errors="ignore")
    return _named(["metric", kind, name, said, mode])


def sample_name(kind: str, mode: str, metric: str, suffix: str, labels: Iterable[tuple[str, str]]) -> str:
    """The name of the number of a sample. A metric that a reload gives another kind or mode begins anew."""
    return _named(["sample", kind, mode, metric, suffix, list(labels)])


def _shown(name: str) -> str:
    """The name of a number, for the log."""
    what, *parts = json.loads(name)
    if what == "metric":
        return str(parts[1])
    *_, metric, suffix, labels = parts
    return (
        f"{metric}{suffix}{{{', '.join(f'{label}={value!r}' for label, value in labels)}}}"
        if labels
        else metric + suffix
    )


def _named(parts: list[object]) -> str:
    # A surrogate, which may come from a client, has no bytes in UTF-8.
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace").decode()


class _Unshared:
    """A number that is counted but not shown."""

    def __init__(self) -> None:
        self.number = _Local()


class PrometheusValue:
    """A value of `prometheus_client` in the shared memory: its `values.ValueClass`.

    Gauges follow their `multiprocess_mode`: `mostrecent` is one value, `min`, `max` and `sum` are those of the workers
    that live, and `all` shows each with a label `pid`.
    """

    _multiprocess = True

    def __init__(
        self,
        typ: str,
        metric_name: str,
        name: str,
        labelnames: Sequence[str],
        labelvalues: Sequence[str],
        help_text: str,
        multiprocess_mode: str = "",
        **_: object,
    ) -> None:
        self._cell: _Cell | _Unshared
        if metric_name.startswith(_OURS):
            # Logged, not raised: values of labeled metrics are first created in requests.
            if metric_name not in _refused:
                _refused.add(metric_name)
                log.logger.error(
                    "metrics: %s is omitted: names that begin with tailrace_ are reserved for the server", metric_name
                )
            self._cell = _Unshared()
            return
        mode = multiprocess_mode.removeprefix("live")
        mode = {"mostrecent": "last", "": "last" if typ == "gauge" else ""}.get(mode, mode)
        with _lock:
            _Cell(family_name(typ, metric_name, help_text, mode), is_own=False)
            labels = zip(labelnames, labelvalues, strict=True)
            name = sample_name(typ, mode, metric_name, name.removeprefix(metric_name), labels)
            self._cell = _Cell(name, is_own=typ == "gauge" and mode != "last")

    def inc(self, amount: float) -> None:
        """Adds to it."""
        self._cell.number.add(amount)

    def set(self, value: float, timestamp: float | None = None) -> None:
        """Sets it."""
        self._cell.number.set(value)

    def get(self) -> float:
        """Its value."""
        return self._cell.number.get()

    def set_exemplar(self, exemplar: object) -> None:
        """Exemplars are not kept."""

    def get_exemplar(self) -> None:
        """There is none."""


def share_prometheus_client() -> None:
    """Has `prometheus_client` keep the values of metrics that are made from now on in the shared memory.

    Call it before the modules that make metrics are imported; the log names metrics that were made before. Raises
    ImportError."""
    from prometheus_client import REGISTRY, values
    from prometheus_client.metrics import MetricWrapperBase

    if values.ValueClass is PrometheusValue:
        return
    values.ValueClass = PrometheusValue
    # It has no public list; one of another version may have none.
    collectors = list(getattr(REGISTRY, "_collector_to_names", ()))
    if earlier := sorted(each._name for each in collectors if isinstance(each, MetricWrapperBase)):
        log.logger.warning(
            "metrics: share_prometheus_client() was called after these metrics had been made, so they are not "
            "shared: %s",
            ", ".join(earlier),
        )


# Reading, for `/metrics`.


class Sample:
    """A sample of a metric: what follows its name, its labels, its value."""

    __slots__ = ("labels", "suffix", "value")

    def __init__(self, suffix: str, labels: Mapping[str, str], value: float) -> None:
        self.suffix, self.labels, self.value = suffix, labels, value


def read(numbers: SharedNumbers, workers: Collection[int] | None = None) -> dict[str, tuple[str, str, list[Sample]]]:
    """All metrics by name: kind, help and samples, those of histograms cumulative. workers: the processes whose own
    numbers count; None: all."""
    all_numbers = numbers.all()
    if workers is not None:
        all_numbers = [each for each in all_numbers if each[1] in (0, *workers)]
    parsed = [(json.loads(text), owner, value) for text, owner, value in all_numbers]
    families = {name: (kind, said, mode) for (_, kind, name, said, mode), *_ in _of(parsed, "metric")}
    found: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = {}
    for (_, kind, mode, name, suffix, pairs), owner, value in _of(parsed, "sample"):
        if name not in families or families[name][0] != kind or families[name][2] != mode:
            continue
        labels = tuple((label, at) for label, at in pairs)
        if owner and mode == "all":
            labels += (("pid", str(owner)),)
        found.setdefault(name, {}).setdefault((suffix, labels), []).append(value)
    combined: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "last": lambda values: values[-1]}
    answer: dict[str, tuple[str, str, list[Sample]]] = {}
    for name, (kind, said, mode) in families.items():
        combine = combined.get(mode, sum)
        samples = [
            Sample(suffix, dict(labels), combine(values)) for (suffix, labels), values in found.get(name, {}).items()
        ]
        answer[name] = (kind, said, _cumulative(samples) if kind == "histogram" else samples)
    return answer


def _of(parsed: Iterable[tuple[list[Any], int, float]], what: str) -> list[tuple[list[Any], int, float]]:
    return [each for each in parsed if each[0][0] == what]


def _cumulative(samples: list[Sample]) -> list[Sample]:
    """The samples of a histogram, whose buckets have been counted one by one."""
    groups: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for each in samples:
        groups.setdefault(tuple((name, at) for name, at in each.labels.items() if name != "le"), []).append(each)
    result = []
    for labels, group in groups.items():
        # Those after it found no room.
        if not any(each.suffix == "_sum" for each in group) or not any(
            each.labels.get("le") == "+Inf" for each in group
        ):
            continue
        count = 0.0
        for each in sorted(
            (each for each in group if each.suffix == "_bucket"), key=lambda each: float(each.labels["le"])
        ):
            count += each.value
            result.append(Sample("_bucket", each.labels, count))
        result.append(Sample("_count", dict(labels), count))
        result += [each for each in group if each.suffix == "_sum"]
    return result
