"""The server's own log: a reader of standard error that stalls delays nothing."""

import fcntl
import gc
import logging
import os
import re
import signal
import threading
import weakref
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from harness.daemons import LogDaemon
from harness.server import Server
from server.probes import eventually, resident

from tailrace.logs import log

MODES = [("--threads", "4"), ("--workers", "2"), ("--debug",), ("--gevent",)]
# What fails, and is logged with its traceback.
FAILS = "/sleep?seconds=x"


@contextmanager
def error_pipe():
    """The reading end of a small pipe, and the writing end for a server."""
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield reader, writer
    finally:
        os.close(reader)


def serving(arguments, writer, **options):
    """A server whose standard error is the pipe that only it writes to."""
    if arguments == ("--gevent",):
        pytest.importorskip("gevent")
    try:
        return Server("srv_shapes:app", *arguments, stderr=writer, **options)
    finally:
        os.close(writer)


def drained(reader):
    """A thread that reads to the end, and the text so far."""
    text = bytearray()

    def read():
        while piece := os.read(reader, 65536):
            text.extend(piece)

    thread = threading.Thread(target=read)
    thread.start()
    return thread, text


@pytest.mark.nightly(gate=2)
@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_an_error_log_that_nobody_reads_holds_no_request_and_no_stop(arguments):
    with error_pipe() as (_, writer), serving(arguments, writer) as server:
        for _ in range(50):
            assert server.get(FAILS).status == 500
        assert server.get("/").body == b"pong"
        if arguments != ("--debug",):
            # The master has something to say, too.
            for number in (signal.SIGTTIN, signal.SIGTTOU) * 20:
                server.send_signal(number)
            eventually(lambda: server.get("/").body == b"pong", "an answer after that")
        assert server.stop() == 0


@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_what_waited_for_its_reader_is_complete_and_in_order(arguments):
    with error_pipe() as (reader, writer), serving(arguments, writer) as server:
        for number in range(60):
            assert server.get(f"{FAILS}&number={number}").status == 500
        thread, text = drained(reader)
        assert server.stop() == 0
        thread.join()
    numbers = re.findall(rb"number=(\d+): exception in the application\nTraceback", text)
    assert sorted(map(int, numbers)) == list(range(60))
    if "--workers" not in arguments:
        # Each client has its response before the exception is logged: two threads may change places, and no more.
        assert all(abs(int(number) - place) <= 3 for place, number in enumerate(numbers)), numbers
        assert text.count(b"\nValueError: could not convert string to float: 'x'\n") == 60
    assert text.endswith(b"INFO: stopped\n")


def test_more_than_is_kept_for_a_reader_is_dropped_and_counted():
    count = 4000
    with error_pipe() as (reader, writer), serving((), writer) as server:
        before = resident(server)
        with server.client() as client:
            for number in range(count):
                assert client.ask(f"GET {FAILS}&number={number} HTTP/1.1\r\nHost: t\r\n\r\n".encode()).status == 500
        assert resident(server) - before < 20 << 20
        thread, text = drained(reader)
        eventually(lambda: b"were dropped" in text, "the count")
        assert server.stop() == 0
        thread.join()
    (dropped,) = re.findall(rb"tailrace: (\d+) entries of this log were dropped", text)
    assert int(dropped) + len(re.findall(rb"number=\d+: exception", text)) == count


@pytest.mark.parametrize("arguments", MODES, ids=" ".join)
def test_a_reader_that_has_gone_costs_nothing(arguments):
    reader, writer = os.pipe()
    with serving(arguments, writer) as server:
        text = b""
        while b"listening" not in text:
            text += os.read(reader, 4096)
        os.close(reader)
        assert server.get(FAILS).status == 500
        assert server.get("/").body == b"pong"
        assert server.stop() == 0


def test_the_log_of_an_embedding_program_is_its_own():
    # Nothing of ours stands between its handlers and where they write.
    assert not [handler for handler in log.logger.handlers if isinstance(handler, log.LogHandler)]
    assert log.waits_for() == []
    assert log.logger.level == logging.NOTSET


def test_a_handler_of_the_log_is_kept_by_nobody_when_it_is_not_needed_any_more():
    """A program may call `run` often."""
    handler = weakref.ref(log.LogHandler())
    gc.collect()
    assert handler() is None


def test_every_destination_that_is_behind_is_waited_for(tmp_path):
    """A master must not wait for one that stalls when another one has room again."""
    with LogDaemon(tmp_path / "a", reads=False), LogDaemon(tmp_path / "b", reads=False):
        handlers = [log.LogHandler(f"syslog:{tmp_path / name}") for name in "ab"]
        for handler in handlers:
            while handler.stream.waits_for() is None:
                handler.handle(logging.makeLogRecord({"msg": "an entry", "levelno": logging.INFO}))
        assert sorted(log.waits_for()) == sorted(handler.stream.waits_for() for handler in handlers)


def test_a_line_that_is_lost_for_lack_of_memory_is_one_short_line(monkeypatch):
    written = []

    class Stream:
        def __init__(self, destination, *, json):
            pass

        def write(self, severity, text, fields=()):
            written.append(text)

        def allow_thread(self):
            """A test before may have had this process log with threads."""

    monkeypatch.setattr(log, "LogStream", Stream)
    handler = log.LogHandler()
    monkeypatch.setattr(handler, "format", Mock(side_effect=MemoryError))
    handler.handle(logging.makeLogRecord({"msg": "an entry"}))
    assert written == [b"tailrace: a line of the log was lost: there is no memory for it"]
    # Another mistake is shown as `logging` shows it.
    shown = Mock()
    monkeypatch.setattr(logging.Handler, "handleError", shown)
    monkeypatch.setattr(handler, "format", Mock(side_effect=TypeError))
    handler.handle(logging.makeLogRecord({"msg": "an entry"}))
    assert (len(written), shown.call_count) == (1, 1)
