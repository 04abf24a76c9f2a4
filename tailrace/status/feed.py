"""`/events`: what the live page is sent. Once a second one snapshot, the same for every viewer.

One thread samples, also while nobody watches, so that a page that is opened shows the last two minutes at once. A new
viewer gets a state of its own, if the last one is older than half a second; the history has one sample a second. No
sample asks a worker, or the kernel, for anything that would delay a worker. The threads of viewers wait for the sample.

The format is that of server-sent events (HTML Living Standard, section 9.2): `history`, the samples of the last two
minutes; then `state` each second, the sample and the document of `/status.json`; and `again` where the page is to
connect again.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.logs import log
from tailrace.status import counts

SECONDS: Final = 1.0
# Two minutes, and the sample before.
KEPT: Final = 121
# Each holds a thread. The page asks for `/status.json` now and then while it is one too many.
MAX_VIEWERS: Final = 16
# Then the page connects again, which takes the place of a viewer that nobody knows to be gone (seconds).
LONGEST: Final = 50.0
# What a sample has of the document; the page derives from two samples what it draws.
_SAMPLED: Final = ("time", "master", "totals", "paths")
_SAMPLED_OF_HOLDER: Final = ("pid", "published", "delivered")
# The percentiles of a sample cover the requests that ended within this time before it (seconds).
_PERCENTILES: Final = 10.0
# For how long a document serves the next viewer, too (seconds).
_FRESH: Final = 0.5


class Feed:
    """Samples the server. look: gives the document, with the requests in flight if it is called with True."""

    def __init__(self, look: Callable[[bool], Mapping[str, Any]], seconds: float = SECONDS) -> None:
        self._look, self._seconds = look, seconds
        self._changed = threading.Condition()
        # As JSON: each is encoded once, and not for each viewer.
        self._samples: deque[str] = deque(maxlen=KEPT)
        # Histograms of the last seconds, each with the time at which it was taken.
        self._latencies: deque[tuple[float, Mapping[str, Any]]] = deque()
        self._event, self._taken, self._serial = b"", float("-inf"), 0
        self._viewers = 0
        self._is_over = False
        # One look at a time: samples follow each other.
        self._looking = threading.Lock()

    def start(self) -> None:
        """Begins to sample, on a thread of its own."""
        threading.Thread(target=self._run, name="tailrace-feed", daemon=True).start()

    def stop(self) -> None:
        """Ends the viewers' responses. Any thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def viewer(self) -> Viewer | None:
        """A response for one more viewer; None: there are too many. Raises OSError where no state can be read."""
        with self._changed:
            if self._viewers >= MAX_VIEWERS:
                return None
            self._viewers += 1
            is_fresh = time.monotonic() - self._taken < _FRESH
        try:
            if not is_fresh:
                self._take(with_requests=True, is_regular=False)
        except BaseException:
            self.leave()
            raise
        return Viewer(self)

    def leave(self) -> None:
        """A viewer has gone."""
        with self._changed:
            self._viewers -= 1

    def first(self) -> tuple[int, bytes]:
        """The number of the last state, and the events that a new viewer gets."""
        with self._changed:
            return self._serial, _event_of("history", f"[{','.join(self._samples)}]") + self._event

    def next(self, serial: int, until: float) -> tuple[int, bytes] | None:
        """Waits for a state later than that one, `until` a time of the monotonic clock. None: there was none."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._serial != serial, until - time.monotonic())
            return None if self._is_over or self._serial == serial else (self._serial, self._event)

    def _run(self) -> None:
        at = time.monotonic()
        while True:
            at = max(at + self._seconds, time.monotonic())
            with self._changed:
                if self._changed.wait_for(lambda: self._is_over, at - time.monotonic()):
                    return
                is_watched = self._viewers > 0
            try:
                self._take(with_requests=is_watched, is_regular=True)
            except OSError:
                # The master changes its state too often, or has stopped while it wrote it. The page says that it hears
                # nothing.
                continue
            except Exception:  # the next sample may be well
                log.logger.exception("cannot sample the state for the live page; trying again")

    def _take(self, *, with_requests: bool, is_regular: bool) -> None:
        """Looks at the server. is_regular: the look of this second, which the history has and every viewer is sent;
        else it is for new viewers alone."""
        with self._looking:
            now, document = time.monotonic(), dict(self._look(with_requests))
            # The page needs no histograms: it draws the percentiles of the sample.
            latency = document.pop("latency")
            sample = _json({**sampled(document), "latency": self._percentiles(now, latency)})
            self._latencies.append((now, latency))
            event = _event_of("state", f'{{"sample":{sample},"document":{_json(document)}}}') if with_requests else b""
            with self._changed:
                if is_regular:
                    self._samples.append(sample)
                if with_requests:
                    self._event, self._taken = event, time.monotonic()
                if with_requests and is_regular:
                    self._serial += 1
                    self._changed.notify_all()

    def _percentiles(self, now: float, latency: Mapping[str, Any]) -> dict[str, Any]:
        """By phase; None: no request ended within this time."""
        # Samples are not exactly a second apart.
        while self._latencies and now - self._latencies[0][0] > _PERCENTILES + self._seconds / 2:
            self._latencies.popleft()
        before = self._latencies[0][1] if self._latencies else latency
        return {phase: counts.percentiles(found, before[phase]) for phase, found in latency.items()}


class Viewer:
    """The response for one viewer, an iterable of bytes. The server closes it when the client has disconnected."""

    def __init__(self, feed: Feed) -> None:
        self._feed: Feed | None = feed
        self._serial: int | None = None
        self._until = time.monotonic() + LONGEST

    def __iter__(self) -> Viewer:
        return self

    def __next__(self) -> bytes:
        feed = self._feed
        if feed is None:
            raise StopIteration
        if self._serial is None:
            self._serial, events = feed.first()
            return events
        if time.monotonic() >= self._until:
            self.close()
            return _event_of("again", "null")
        later = feed.next(self._serial, self._until)
        if later is None:
            raise StopIteration
        self._serial, events = later
        return events

    def close(self) -> None:
        """Gives the place to the next viewer."""
        if self._feed is not None:
            self._feed.leave()
            self._feed = None


def sampled(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a document, apart from percentiles."""
    sample = {key: document[key] for key in _SAMPLED}
    sample["classes"] = document["responses"]["classes"]
    if held := document["held"]:
        sample["held"] = {key: held[key] for key in _SAMPLED_OF_HOLDER}
    sample["rss_bytes"] = sum(worker["rss_bytes"] or 0 for worker in document["workers"])
    return sample


def _json(data: object) -> str:
    # Without indentation there are no line ends, which would end the data of an event.
    return json.dumps(data, separators=(",", ":"))


def _event_of(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
