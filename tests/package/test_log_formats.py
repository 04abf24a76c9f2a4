"""How an entry of the server's own log reads."""

import json
import logging
import re
import sys

import pytest

from tailrace.logs import log_formats


@pytest.fixture(autouse=True)
def no_worker(monkeypatch):
    monkeypatch.setattr(log_formats, "_worker", None)


def record(message="said %s", *arguments, level=logging.INFO, **more):
    made = logging.makeLogRecord(
        {"name": "tailrace.error", "msg": message, "args": arguments, "levelno": level, **more}
    )
    made.levelname = logging.getLevelName(level)
    made.created, made.process = 1_000_000_000.5, 7
    return made


def failure():
    try:
        raise ValueError("caf\u00e9\n")
    except ValueError:
        return sys.exc_info()


def test_an_object_has_time_level_logger_process_and_message():
    text = log_formats.formatter("file", "json").format(record("a\n%s", "\u20ac"))
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "2001-09-09T01:46:40.500Z",
        "level": "info",
        "logger": "tailrace.error",
        "process": 7,
        "message": "a\n\u20ac",
    }


def test_an_object_has_worker_exception_stack_and_extra():
    log_formats.set_worker(3)
    made = record(exc_info=failure(), stack_info="Stack (most recent call last):", status=200, odd=object)
    entry = json.loads(log_formats.formatter("file", "json").format(made))
    assert (entry["worker"], entry["status"], entry["odd"]) == (3, 200, "<class 'object'>")
    assert entry["exception"].startswith("Traceback (most recent call last):")
    assert entry["exception"].endswith("ValueError: caf\u00e9\n")
    assert entry["stack"] == "Stack (most recent call last):"
    assert log_formats.worker() == 3


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("stderr", r"2001-09-09T\S+ tailrace\[7\] WARNING: said x"),
        ("file", r"2001-09-09T\S+ tailrace\[7\] WARNING: said x"),
        ("syslog", "WARNING: said x"),
        ("journal", "said x"),
    ],
)
def test_a_text_leaves_out_what_the_destination_shows(kind, wanted):
    text = log_formats.formatter(kind, "text").format(record("said %s", "x", level=logging.WARNING))
    assert re.fullmatch(wanted, text)


@pytest.mark.parametrize(
    ("level", "severity"), [(0, 7), (10, 7), (19, 7), (20, 6), (29, 6), (30, 4), (40, 3), (50, 2), (99, 2)]
)
def test_a_level_has_a_severity(level, severity):
    assert log_formats.severity(level) == severity


def test_the_journal_has_fields_for_logger_worker_and_extra():
    assert log_formats.journal_fields(record(status=200, client=None)) == [
        ("logger", b"tailrace.error"),
        ("status", b"200"),
    ]
    log_formats.set_worker(2)
    assert ("worker", b"2") in log_formats.journal_fields(record())


def test_the_record_of_a_response_has_its_fields_as_attributes():
    log_formats.set_worker(2)
    logger = logging.getLogger("tailrace.access")
    made = log_formats.access_record(logger.makeRecord, logger.name, {"status": 200, "ended": 1_000_000_000.25}, "50%")
    assert (made.getMessage(), made.status, made.worker, made.levelno) == ("50%", 200, 2, logging.INFO)
    assert (made.created, made.msecs) == (1_000_000_000.25, 250)


class Nameless:
    def __str__(self):
        raise RuntimeError("no text")


def test_an_entry_is_valid_json_whatever_was_given_as_extra():
    ring = []
    ring.append(ring)
    made = record("text", ratio=float("nan"), keys={(1, 2): 3}, ring=ring, bad=Nameless(), good=[1, None])
    text = log_formats.formatter("file", "json").format(made)

    def refuse(constant):
        raise AssertionError(constant)

    entry = json.loads(text, parse_constant=refuse)
    assert (entry["message"], entry["ratio"], entry["keys"]) == ("text", "nan", "{(1, 2): 3}")
    assert (entry["ring"], entry["good"]) == ("[[...]]", [1, None])
    assert entry["bad"] == "<Nameless, whose text cannot be made: RuntimeError>"
    fields = dict(log_formats.journal_fields(made))
    assert fields["bad"] == b"<Nameless, whose text cannot be made: RuntimeError>"


def test_what_is_given_as_extra_replaces_no_field_of_the_entry():
    made = record("text", time="forged", logger="forged", worker="forged")
    made.level = "forged"
    log_formats.set_worker(3)
    entry = json.loads(log_formats.formatter("file", "json").format(made))
    assert "forged" not in entry.values()
    assert (entry["level"], entry["worker"]) == ("info", 3)
