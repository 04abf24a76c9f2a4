"""The runner for `pserve`."""

import logging
from importlib.metadata import entry_points

import pytest

from tailrace import paste
from tailrace.errors import ConfigError
from tailrace.worker import single


def app(environ, start_response):
    return []


@pytest.fixture
def served(monkeypatch):
    seen = []
    monkeypatch.setattr(single, "serve", lambda settings, application: seen.append((settings, application)) or True)
    return seen


def test_pserve_finds_the_runner():
    (found,) = entry_points(group="paste.server_runner", name="main").select(value="tailrace.paste:serve")
    assert found.load() is paste.serve


def test_a_section_is_read_like_the_command_line(served):
    paste.serve(
        app, {"here": "/srv", "__file__": "x.ini"}, threads="4", max_body="10MiB", **{"keepalive-timeout": "5s"}
    )
    ((settings, application),) = served
    assert application is app
    assert (settings["threads"].value, settings["max_body"].value, settings["keepalive_timeout"].value) == (
        4,
        10 << 20,
        5.0,
    )


@pytest.mark.parametrize(
    ("section", "bind"),
    [
        ({}, ("127.0.0.1:8000",)),
        ({"host": "0.0.0.0", "port": "6543"}, ("0.0.0.0:6543",)),
        ({"port": "6543"}, ("127.0.0.1:6543",)),
        ({"host": "::1"}, ("[::1]:8000",)),
        ({"listen": "127.0.0.1:1 [::1]:1"}, ("127.0.0.1:1", "[::1]:1")),
        ({"bind": "unix:/run/x.sock"}, ("unix:/run/x.sock",)),
    ],
)
def test_ways_to_say_where_to_listen(served, section, bind):
    paste.serve(app, {}, **section)
    assert served[0][0]["bind"].value == bind


@pytest.mark.parametrize(
    ("level", "section", "shown"),
    [
        (logging.NOTSET, {}, True),
        (logging.NOTSET, {"log_level": "warning"}, False),
        (logging.NOTSET, {"log-level": "warning"}, False),
        (logging.WARNING, {}, False),
    ],
)
def test_the_log_shows_the_address_unless_the_ini_file_sets_a_level(monkeypatch, level, section, shown):
    """`pserve` gives the root logger the level WARNING where the file has no logging."""
    seen = []
    monkeypatch.setattr(single, "serve", lambda settings, app: seen.append(logger.isEnabledFor(logging.INFO)) or True)
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    logger = logging.getLogger("tailrace")
    before = logger.level
    logger.setLevel(level)
    try:
        paste.serve(app, {}, **section)
    finally:
        logger.setLevel(before)
    assert seen == [shown]


def test_two_ways_at_once_are_an_error():
    with pytest.raises(ConfigError, match="listen and host/port both say where to listen"):
        paste.serve(app, {}, listen=":1", port="2")


def test_unknown_keys_are_errors():
    with pytest.raises(ConfigError, match=r"unknown option 'thread'; did you mean threads\?"):
        paste.serve(app, {}, thread="4")
    with pytest.raises(ConfigError, match=r"^tailrace\.run does not take 'factory': call the factory, and"):
        paste.serve(app, {}, factory="true")
