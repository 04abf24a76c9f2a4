"""Handlers of signals, and which signals count."""

import itertools
import logging
import os
import signal
import threading
import time

import pytest
from package.test_master_loop import Watch

import tailrace
from tailrace.master.main import _terminable, _Terminated
from tailrace.system import signals
from tailrace.system.signals import Stops, handled
from tailrace.worker.debug import MainThreadStop


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "0")])
    return []


def test_the_same_signal_within_a_tenth_of_a_second_counts_once():
    stops = Stops()
    assert stops.counts(signal.SIGTERM, 5.0)
    assert not stops.counts(signal.SIGTERM, 5.0)
    assert not stops.counts(signal.SIGTERM, 5.09)
    assert stops.counts(signal.SIGINT, 5.09), "another one"
    assert stops.counts(signal.SIGTERM, 5.11), "counted from the first of them"
    assert not stops.counts(signal.SIGTERM, 5.12)
    assert stops.counts(signal.SIGTERM, 1.0), "the clock has been set back"


def seconds():
    """Of CLOCK_REALTIME, rounded as `arrived` rounds them."""
    whole, nanoseconds = divmod(time.time_ns(), 10**9)
    return whole + nanoseconds / 1e9


def test_a_signal_has_the_time_of_its_arrival_however_late_it_is_read():
    reader, writer = signals.wakeup_sockets()
    with reader, writer, signals.woken(writer, [signal.SIGTERM]):
        clock = [seconds()]
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            clock.append(seconds())
        (first, at), (second, later) = signals.arrived(reader), signals.arrived(reader)
    assert (first, second) == (signal.SIGTERM, signal.SIGTERM)
    assert clock[0] <= at <= clock[1] <= later <= clock[2]


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def log_of_a_stop(monkeypatch):
    """Runs a server with these options, stops it by two signals that it reads one right after the other: the log."""

    def run(options):
        begin = "ready in" if "workers" in options else "listening on"
        begins, again = Watch(begin, terminate), Watch("finish", terminate)
        logger = logging.getLogger("tailrace")
        level = logger.level
        for each in (begins, again):
            logger.addHandler(each)
        logger.setLevel(logging.INFO)
        try:
            tailrace.run(app, bind="127.0.0.1:0", **options)
        finally:
            logger.setLevel(level)
            for each in (begins, again):
                logger.removeHandler(each)
        assert again.then is None, "the second signal was sent"
        assert "stopped" in again.lines
        return again.lines

    monkeypatch.setattr(signals, "REPEATED", 3600.0)
    return run


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"debug": True}], ids=str)
def test_a_stop_that_comes_twice_at_once_is_as_graceful_as_one(log_of_a_stop, options):
    """timeout(1) signals its child, and then the group of its child."""
    assert not any("stopping now" in line for line in log_of_a_stop(options))


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=str)
def test_a_second_signal_that_is_read_late_stops_at_once(monkeypatch, log_of_a_stop, options):
    """An application holds the interpreter for long, and meanwhile the user presses Ctrl-C twice."""
    arrived, hours = signals.arrived, itertools.count(step=7200)

    def late(reader):
        number, at = arrived(reader)
        return number, at + next(hours)

    monkeypatch.setattr(signals, "arrived", late)
    assert "SIGTERM: stopping now" in log_of_a_stop(options)


class Core:
    """A core that is stopped."""

    def __init__(self):
        self.calls = []

    def stop(self, graceful):
        self.calls.append(graceful)


def test_the_end_of_the_graceful_time_is_no_repetition(monkeypatch):
    """With --debug the signal is sent by the server itself, and may come just after the first one."""
    monkeypatch.setattr(signals, "REPEATED", 3600.0)
    core = Core()
    stop = MainThreadStop(core, 30.0)
    with handled({signal.SIGTERM: stop}):
        try:
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(SystemExit):
                stop._interrupt(threading.get_ident())
        finally:
            stop.close()
    assert core.calls == [30.0, 0.0]


def test_a_signal_after_the_loop_is_a_repetition_or_ends_what_follows(monkeypatch):
    """An idle server stops within milliseconds, while timeout(1) sends its second signal."""
    monkeypatch.setattr(signals, "REPEATED", 3600.0)
    with _terminable() as stops:
        assert stops.counts(signal.SIGTERM, time.time()), "in the loop"
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(signals, "REPEATED", 0.0)
        with pytest.raises(_Terminated):
            signal.raise_signal(signal.SIGTERM)
