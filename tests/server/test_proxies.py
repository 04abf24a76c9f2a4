"""What a proxy states about its client: to whom it is believed, and what follows it."""

import json

import pytest
from harness.server import Server
from server.probes import eventually

STATED = (
    "X-Forwarded-For: 192.0.2.7:4711",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: outer.example",
    "X-Forwarded-Port: 8443",
    "X-Forwarded-Prefix: /pre",
)


def environ_of(server, *fields, path="/a"):
    answer = server.get(path, *fields)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def seen(environ):
    """Client, scheme, host, port and prefix."""
    names = ("REMOTE_ADDR", "REMOTE_PORT", "wsgi.url_scheme", "HTTP_HOST", "SERVER_PORT", "SCRIPT_NAME")
    return tuple(environ.get(name) for name in names)


WANTED = ("192.0.2.7", "4711", "https", "outer.example", "8443", "/pre")


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({"trusted_proxies": "unix,127.0.0.0/8"}, {}),
        ({"trusted_proxies": "*"}, {}),
        ({}, {"TAILRACE_TRUSTED_PROXIES": "127.0.0.1 10.0.0.0/8"}),
        ({}, {"FORWARDED_ALLOW_IPS": "10.0.0.1,127.0.0.1"}),
        ({}, {"FORWARDED_ALLOW_IPS": "*"}),
    ],
)
def test_environ_and_access_log_show_what_a_trusted_proxy_states(tmp_path, options, environment):
    log = tmp_path / "log"
    atoms = "{client} {host} {request:x-a} {response:content-type}"
    logged = {"access_log": log, "access_log_format": atoms, "forwarded_headers": "x-forwarded"}
    with Server("fw_delivery:app", environment=environment, **logged, **options) as server:
        environ = environ_of(server, *STATED, "X-A: b")
        assert seen(environ) == WANTED
        assert environ["PATH_INFO"] == "/a"
        eventually(lambda: log.exists() and log.read_text(), "a line of the log")
        assert log.read_text() == "192.0.2.7 outer.example b application/json\n"


def test_a_peer_that_is_not_trusted_is_not_believed_and_that_is_said_once():
    with Server("fw_delivery:app", trusted_proxies="none") as server:
        for _ in range(3):
            environ = environ_of(server, *STATED, "Forwarded: for=192.0.2.7")
            assert environ["REMOTE_ADDR"] == "127.0.0.1"
            assert environ["wsgi.url_scheme"] == "http"
            assert environ["SCRIPT_NAME"] == ""
            assert not [name for name in environ if "FORWARDED" in name]
        remedy = "add 127.0.0.1 to --trusted-proxies"
        eventually(lambda: remedy in server.log, "the line")
        assert server.log.count(remedy) == 1


def test_forwarded_counts_as_much_and_the_two_kinds_of_fields_must_agree():
    with Server("fw_delivery:app", trusted_proxies="127.0.0.1") as server:
        field = 'Forwarded: for=203.0.113.9, for="192.0.2.7:4711";proto=https;host="outer.example:8443"'
        assert seen(environ_of(server, field))[:5] == ("192.0.2.7", "4711", "https", "outer.example:8443", "8443")
        refusal = server.get("/a", field, "X-Forwarded-For: 192.0.2.8")
        assert refusal.status == 400
        assert b"disagree: the proxy" in refusal.body
    with Server("fw_delivery:app", trusted_proxies="127.0.0.1", forwarded_headers="x-forwarded") as server:
        environ = environ_of(server, field, "X-Forwarded-For: 192.0.2.8")
        assert (environ["REMOTE_ADDR"], environ["wsgi.url_scheme"]) == ("192.0.2.8", "http")
        assert "HTTP_FORWARDED" not in environ


def test_fields_that_proxies_seldom_write_are_believed_only_where_an_option_names_them():
    with Server("fw_delivery:app", trusted_proxies="127.0.0.1") as server:
        for _ in range(2):
            own, environ = environ_of(server), environ_of(server, *STATED)
            assert seen(environ) == (*WANTED[:3], *seen(own)[3:])
            assert not {"HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PORT", "HTTP_X_FORWARDED_PREFIX"} & set(environ)
        remedy = "add x-forwarded-host to --forwarded-headers"
        eventually(lambda: remedy in server.log, "the line")
        assert server.log.count(remedy) == 1
    options = {"trusted_proxies": "127.0.0.1", "forwarded_headers": "x-forwarded-for,x-forwarded-host"}
    with Server("fw_delivery:app", **options) as server:
        assert seen(environ_of(server, *STATED))[:4] == ("192.0.2.7", "4711", "http", "outer.example")


@pytest.mark.parametrize("underscores", ["drop", "keep"])
def test_no_other_spelling_of_a_name_is_believed_or_passed(underscores):
    with Server("fw_delivery:app", trusted_proxies="127.0.0.1", underscore_headers=underscores) as server:
        environ = environ_of(server, "X_Forwarded_For: 192.0.2.7", "x-forwarded_proto: https", "X_Forwarded_Host: evil")
        assert environ["REMOTE_ADDR"] == "127.0.0.1"
        assert not [name for name in environ if "FORWARDED" in name]


def test_the_prefix_comes_before_the_root_path():
    options = {"trusted_proxies": "127.0.0.1", "forwarded_headers": "any"}
    with Server("fw_delivery:app", root_path="/app", **options) as server:
        for path, script_name, path_info in (("/app/a", "/pre/app", "/a"), ("/a", "/pre", "/a")):
            environ = environ_of(server, "X-Forwarded-Prefix: /pre", path=path)
            assert (environ["SCRIPT_NAME"], environ["PATH_INFO"]) == (script_name, path_info)
