"""Metrics of the application, which all workers share and `/metrics` of `--status` shows.

    from tailrace import metrics

    ORDERS = metrics.counter("shop_orders", "Orders that were placed.", ["payment"])
    ORDERS.labels("card").inc()

A value is in memory that the master has made before it forked, so it is exact over all workers and stays when a worker
is replaced. It begins at 0 when the master starts, also the next one after SIGUSR2. Without workers, for example in
tests or with another server, the functions do the same with memory of the process.

`PrometheusValue` keeps the values of `prometheus_client` there, see `share_prometheus_client`.

Thread: any. In a forked process, a gauge that each process has for itself gets a number of its own.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from tailrace._tailrace import SharedNumber, SharedNumbers
from tailrace.logs import log

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "PrometheusValue",
    "counter",
    "gauge",
    "histogram",
    "share_prometheus_client",
]

GaugeMode = Literal["last", "sum", "max", "min"]

# As in prometheus_client and Go's client (seconds).
DEFAULT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z", re.ASCII)
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z", re.ASCII)
# Of a help text, so that its record fits.
_LONGEST_HELP: Final = 200

_lock = threading.RLock()
_numbers: SharedNumbers | None = None
_families: dict[str, _Family] = {}
# All numbers of this process, which `use` moves to other memory, and a fork separates.
_cells: list[_Cell] = []
_has_refused = False


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
    """Frees the numbers of processes that have ended, also of those that the application has forked."""
    for owner in {owner for _, owner, _ in numbers.all() if owner and not os.path.exists(f"/proc/{owner}")}:
        numbers.forget(owner)


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
            SharedNumbers.MOST,
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


class _Family:
    """A metric, with its samples by their label values."""

    kind: str = ""

    def __init__(self, name: str, help: str, labels: Sequence[str], mode: str = "") -> None:
        self.name, self.help, self.label_names, self.mode = name, help, tuple(labels), mode
        self._samples: dict[tuple[object, ...], Any] = {}
        _Cell(family_name(self.kind, name, help, mode), is_own=False)

    def labels(self, *values: object, **named: object) -> Any:
        """The sample with these label values, in the order of their names or by name. Raises ValueError."""
        # The keys are tuples of str: other values are not found, and looked up below as str.
        try:
            if (found := self._samples.get(values)) is not None and not named:
                return found
        except TypeError:  # a value that cannot be hashed
            pass
        if named:
            if values or set(named) != set(self.label_names):
                raise ValueError(f"{self.name}: the labels are {_listed(self.label_names)}")
            values = tuple(named[each] for each in self.label_names)
        key = tuple(map(str, values))
        if (found := self._samples.get(key)) is None:
            if len(key) != len(self.label_names):
                raise ValueError(f"{self.name}: the labels are {_listed(self.label_names)}")
            with _lock:
                if (found := self._samples.get(key)) is None:
                    found = self._samples[key] = self._make(tuple(zip(self.label_names, key, strict=True)))
        return found

    def _make(self, labels: tuple[tuple[str, str], ...]) -> object:
        raise NotImplementedError

    @property
    def _only(self) -> Any:
        """The sample of a metric without labels. Raises ValueError."""
        found = self._samples.get(())
        return self.labels() if found is None else found

    def _cell(self, suffix: str, labels: Iterable[tuple[str, str]], is_own: bool = False) -> _Cell:
        return _Cell(sample_name(self.kind, self.mode, self.name, suffix, labels), is_own)


class _CounterSample:
    __slots__ = ("_cell",)

    def __init__(self, cell: _Cell) -> None:
        self._cell = cell

    def inc(self, amount: float = 1.0) -> None:
        """Adds to it. Raises ValueError for a negative amount."""
        # Neither is NaN.
        if not amount >= 0:
            raise ValueError("a counter only grows: the amount must not be negative")
        self._cell.number.add(amount)

    def get(self) -> float:
        """Its value, over all workers."""
        return self._cell.number.get()


class Counter(_Family):
    """A number that grows."""

    kind = "counter"

    def _make(self, labels: tuple[tuple[str, str], ...]) -> _CounterSample:
        return _CounterSample(self._cell("_total", labels))

    def inc(self, amount: float = 1.0) -> None:
        """Adds to it, if it has no labels. Raises ValueError."""
        self._only.inc(amount)

    def get(self) -> float:
        """Its value, over all workers, if it has no labels."""
        return float(self._only.get())


class _GaugeSample:
    __slots__ = ("_cell",)

    def __init__(self, cell: _Cell) -> None:
        self._cell = cell

    def inc(self, amount: float = 1.0) -> None:
        """Adds to it."""
        self._cell.number.add(amount)

    def dec(self, amount: float = 1.0) -> None:
        """Subtracts from it."""
        self._cell.number.add(-amount)

    def set(self, value: float) -> None:
        """Sets it."""
        self._cell.number.set(value)

    def get(self) -> float:
        """Its value, or that of this process."""
        return self._cell.number.get()


class Gauge(_Family):
    """A number that grows and shrinks."""

    kind = "gauge"

    def _make(self, labels: tuple[tuple[str, str], ...]) -> _GaugeSample:
        return _GaugeSample(self._cell("", labels, self.mode != "last"))

    def inc(self, amount: float = 1.0) -> None:
        """Adds to it, if it has no labels."""
        self._only.inc(amount)

    def dec(self, amount: float = 1.0) -> None:
        """Subtracts from it, if it has no labels."""
        self._only.dec(amount)

    def set(self, value: float) -> None:
        """Sets it, if it has no labels."""
        self._only.set(value)

    def get(self) -> float:
        """Its value, or that of this process, if it has no labels."""
        return float(self._only.get())


class _HistogramSample:
    __slots__ = ("_bounds", "_buckets", "_sum")

    def __init__(self, bounds: Sequence[float], buckets: Sequence[_Cell], total: _Cell) -> None:
        self._bounds, self._buckets, self._sum = bounds, buckets, total

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._buckets[bisect_left(self._bounds, value)].number.add(1.0)
        self._sum.number.add(value)

    @contextlib.contextmanager
    def time(self) -> Iterator[None]:
        """Counts how long the block takes, in seconds, also if it raises."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.observe(time.perf_counter() - begun)


class Histogram(_Family):
    """How often values were how large."""

    kind = "histogram"

    def __init__(self, name: str, help: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self.bounds = tuple(buckets)
        super().__init__(name, help, labels)

    def _make(self, labels: tuple[tuple[str, str], ...]) -> _HistogramSample:
        bounds = [*map(_bound, self.bounds), "+Inf"]
        buckets = [self._cell("_bucket", [*labels, ("le", bound)]) for bound in bounds]
        return _HistogramSample(self.bounds, buckets, self._cell("_sum", labels))

    def observe(self, value: float) -> None:
        """Counts a value, if it has no labels."""
        self._only.observe(value)

    def time(self) -> contextlib.AbstractContextManager[None]:
        """Counts how long a block takes, in seconds, if it has no labels."""
        found: contextlib.AbstractContextManager[None] = self._only.time()
        return found


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
    """A counter, shown as `name_total`. Raises ValueError.

    The same arguments give the same object, so a module may be loaded again."""
    made: Counter = _registered(Counter, name.removesuffix("_total"), help, labels)
    return made


def gauge(name: str, help: str, labels: Sequence[str] = (), *, mode: GaugeMode = "last") -> Gauge:
    """A gauge. Raises ValueError.

    mode: `last`: all workers change one value. Otherwise each has its own, which ends with the worker, and `/metrics`
    shows their `sum`, `max` or `min`: use `sum` for what is in progress.
    """
    if mode not in ("last", "sum", "max", "min"):
        raise ValueError(f'{name}: mode must be "last", "sum", "max" or "min"')
    made: Gauge = _registered(Gauge, name, help, labels, mode)
    return made


def histogram(
    name: str, help: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = DEFAULT_BUCKETS
) -> Histogram:
    """A histogram. Raises ValueError.

    buckets: the upper bounds, ascending. Each combination of label values takes two numbers more than there are bounds.
    """
    bounds = [float(each) for each in buckets if each != float("inf")]
    if not bounds or bounds != sorted(set(bounds)) or not all(map(math.isfinite, bounds)):
        raise ValueError(f"{name}: buckets must be finite numbers in ascending order")
    made: Histogram = _registered(Histogram, name, help, labels, bounds)
    return made


def _registered(kind: Any, name: str, help: str, labels: Sequence[str], *more: Any) -> Any:
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is no name of a metric: use letters, digits, _ and :")
    if name.startswith("tailrace_"):
        raise ValueError(f"{name}: the names of the server's own metrics begin with tailrace_")
    if isinstance(labels, str):
        raise ValueError(f"{name}: labels must be a list of names")
    if len(set(labels)) < len(labels):
        raise ValueError(f"{name}: a label is named twice")
    for each in labels:
        if not _LABEL.match(each) or each.startswith("__") or each == "le":
            raise ValueError(f"{name}: {each!r} is no name of a label")
    with _lock:
        found = _families.get(name)
        if found is None:
            for other in _families.values():
                if same := _series(kind.kind, name) & _series(other.kind, other.name):
                    raise ValueError(f"{name}: the {other.kind} {other.name} is already shown as {min(same)}")
            found = _families[name] = kind(name, help, labels, *more)
        made = [type(found), found.label_names, *([found.mode] if kind is Gauge else [])]
        asked = [kind, tuple(labels), *(more if kind is Gauge else [])]
        if made != asked or (isinstance(found, Histogram) and found.bounds != tuple(more[0])):
            raise ValueError(f"{name}: there is a metric of this name with other labels or of another kind")
        return found


def _series(kind: str, name: str) -> set[str]:
    """The names by which a metric is shown."""
    suffixes = {"counter": ("_total",), "histogram": ("", "_bucket", "_count", "_sum")}
    return {name + suffix for suffix in suffixes.get(kind, ("",))}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _bound(value: float) -> str:
    """A bound as prometheus_client writes it."""
    return repr(float(value))


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
