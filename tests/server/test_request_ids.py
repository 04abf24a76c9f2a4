"""`--request-id`: who may state the id of a request, and where it is seen."""

import json
import re
import time
import urllib.request

import pytest
from frameworks.process import nginx
from harness.addresses import free_address
from harness.server import Server
from harness.status import document
from server.probes import asking, eventually

from tailrace.cli.settings import from_keywords
from tailrace.errors import ConfigError

UUID_7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
FIELD = "X-Request-ID"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

SITE = """
server {
    listen %(listen)s;
    location / {
        proxy_set_header X-Request-ID $request_id;
        proxy_set_header X-Request-Start "t=${msec}";
        add_header X-Made-By-Nginx $request_id;
        proxy_pass http://%(server)s;
    }
}
"""


def ids(server, *fields):
    """The id in `environ`, and all in the response."""
    answer = server.get("/a", *fields)
    assert answer.status == 200, answer.body
    environ = json.loads(answer.body)
    return environ.get("HTTP_X_REQUEST_ID"), answer.all(FIELD)


def test_a_client_that_is_not_trusted_gets_a_new_id_each_time(tmp_path):
    log = tmp_path / "log"
    with Server(
        "fw_delivery:app",
        request_id=FIELD,
        trusted_proxies="none",
        access_log=log,
        access_log_format="{id} {trace}",
    ) as server:
        made = []
        for fields in ([], [f"{FIELD}: forged"], ["X_Request_ID: forged"], [f"{FIELD}: a", f"{FIELD}: b"]):
            seen, answered = ids(server, *fields, f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01")
            assert UUID_7.fullmatch(seen), (fields, seen)
            assert answered == [seen]
            made.append(seen)
        assert len(set(made)) == len(made)
        eventually(lambda: log.exists() and log.read_text().count("\n") == len(made), "the lines of the log")
        assert log.read_text() == "".join(f"{each} {TRACE}\n" for each in made)


def test_a_trusted_proxy_states_the_id_unless_it_is_ambiguous_or_unsafe():
    with Server("fw_delivery:app", request_id=FIELD, trusted_proxies="127.0.0.1") as server:
        for value in ("abc", "a" * 128, "1-67891233-abcdef012345678912345678"):
            assert ids(server, f"x-request-id: {value}") == (value, [value])
        for fields in (["X-Request-ID: a", "X-Request-ID: a"], *([f"{FIELD}: {bad}"] for bad in UNSAFE)):
            seen, answered = ids(server, *fields)
            assert UUID_7.fullmatch(seen), (fields, seen)
            assert answered == [seen]


UNSAFE = ("", "a" * 129, "a b", 'a"', "a\\", "a,b", "a\tb")


def test_a_response_keeps_the_field_that_the_application_sets():
    with Server("srv_request_ids:app", request_id=FIELD) as server:
        assert server.get("/own").all(FIELD) == ["own"]
        refused = server.get("/a b")
        assert (refused.status, refused.all(FIELD)) == (400, [])


def test_errors_and_requests_that_run_are_shown_with_the_id(tmp_path):
    with Server("srv_request_ids:app", "--threads", "4", request_id=FIELD, slow_request_log=0.1) as server:
        failed = server.get("/fail")
        (made,) = failed.all(FIELD)
        assert (failed.status, bool(UUID_7.fullmatch(made))) == (500, True)
        assert server.logged(f"GET /fail (id {made}): exception in the application")
        with asking(server, f"/wait?{tmp_path}/gate") as client:
            assert server.logged("GET /wait?")
            line = eventually(lambda: re.search(r"GET /wait\S* \(id (\S+)\): slow", server.log), "the slow request")
            (tmp_path / "gate").touch()
            assert client.response().all(FIELD) == [line[1]]


@pytest.mark.parametrize("trusted", ["", "127.0.0.1"])
def test_nginx_states_the_id_and_its_time_if_it_is_trusted(tmp_path, trusted):
    listen, log, status = free_address(), tmp_path / "log", free_address()
    options = {"access_log": log, "access_log_format": "{proxied_ms}", "status": status, "trusted_proxies": trusted}
    with Server("fw_delivery:app", request_id=FIELD, **options) as server:
        with nginx(listen, SITE % {"listen": listen.bind, "server": server.address.bind}):
            asked = urllib.request.Request(f"{listen.url}/a", headers={FIELD: "forged"})
            with urllib.request.urlopen(asked, timeout=30) as response:
                seen = json.load(response)["HTTP_X_REQUEST_ID"]
                assert response.headers[FIELD] == seen
                assert (response.headers["X-Made-By-Nginx"] == seen) == bool(trusted)
                assert seen != "forged"
            early = server.get("/a", f"X-Queue-Start: t={time.time() - 2:.3f}")
            late = server.get("/a", f"X-Queue-Start: t={time.time() + 60:.3f}")
            assert (early.status, late.status) == (200, 200)
        eventually(lambda: log.exists() and log.read_text().count("\n") == 3, "the lines of the log")
        by_nginx, before, after = log.read_text().splitlines()
        assert after == "-"
        if not trusted:
            assert (by_nginx, before) == ("-", "-")
            return
        assert 0 <= float(by_nginx) < 10_000
        assert 1_990 <= float(before) < 12_000
        eventually(lambda: document(status)["latency"]["queued"]["count"] == 3, "all are counted")
        assert document(status)["latency"]["proxied"]["count"] == 2


def test_there_is_no_id_without_the_option():
    with Server("fw_delivery:app", trusted_proxies="127.0.0.1") as server:
        assert ids(server) == (None, [])
        assert ids(server, f"{FIELD}: abc") == ("abc", [])


@pytest.mark.parametrize("name", ["Content-Length", "X-Forwarded-For", "X_Request_ID", "a b", "Cookie"])
def test_a_field_with_another_meaning_cannot_have_the_id(name):
    with pytest.raises(ConfigError, match="name of a header field"):
        from_keywords({"request_id": name})
