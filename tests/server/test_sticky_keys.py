"""`--sticky cookie:NAME` and `--sticky header:NAME`: sessions in memory, also with the applications of the guide."""

import contextlib
import http.cookiejar
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from harness.addresses import free_address
from harness.server import APPS, Server
from harness.status import document
from server.probes import eventually

GUIDE = Path(__file__).parents[2] / "docs/guides/sessions-in-memory.md"
WORKERS = 4
PLACES = pytest.mark.parametrize("place", ["cookie:sid", "header:X-Session"])
FORMS = ["list", "generator", "write", "file", "empty", "redirect", "error"]


@contextlib.contextmanager
def served(place, *flags, app="srv_sessions:app", **options):
    with Server(app, "--sticky", place, *flags, workers=WORKERS, **options) as server:
        eventually(lambda: server.log.count("ready in") == WORKERS, "all workers")
        yield server


def passed(status):
    return document(status)["totals"]["passed"]


def ask(url, key=None, place="", cookie='{}; sid="{}"', method="GET"):
    """The response to a request on a connection of its own, with this key."""
    fields = {}
    if key is not None:
        fields = {"X-Session": key} if place.startswith("header") else {"Cookie": cookie.format("sid=old", key)}
    with requests.Session() as session:
        session.trust_env = False
        session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        return session.request(method, url, headers=fields, timeout=30, allow_redirects=False)


def owners(server, key, place, count=12, **options):
    """The workers that answer requests with a key, and whether they have its session."""
    answers = [ask(server.url, key, place, **options) for _ in range(count)]
    return {int(each.headers["X-Pid"]) for each in answers}, {each.headers["X-Known"] for each in answers}


def open_session(server, key, form="list", *, place="", own=None, **query):
    answer = requests.Request("GET", f"{server.url}/open/{form}", params={"key": key, **query}).prepare()
    return int(ask(answer.url, own, place).headers["X-Pid"])


@PLACES
@pytest.mark.parametrize("flags", [(), ("--gevent",), ("--compress",)], ids=["threads", "gevent", "compressed"])
def test_each_form_of_response_issues_a_key_whose_requests_reach_its_worker(place, flags):
    status = free_address()
    with served(place, *flags, status=status) as server:
        for form in FORMS:
            for number in range(3):
                key = f"{form}-{number}"
                own = open_session(server, key, form)
                assert owners(server, key, place) == ({own}, {"True"}), key
        assert passed(status) > 0
    assert "Traceback" not in server.log


@PLACES
def test_keys_that_no_response_has_issued_are_served_where_they_arrive(place):
    status = free_address()
    with served(place, status=status) as server:
        for number in range(50):
            assert ask(server.url, f"made-up-{number}", place).headers["X-Known"] == "False"
        # The application sends back what it gets.
        for _ in range(8):
            ask(f"{server.url}/echo", "echoed", place)
        pids, _ = owners(server, "echoed", place, 40)
        assert len(pids) > 1
        assert ask(f"{server.url}/open/raised?key=failed").status_code == 500
        assert len(owners(server, "failed", place, 40)[0]) > 1
        open_session(server, "x" * 4097)
        assert len(owners(server, "x" * 4097, place, 40)[0]) > 1
        assert passed(status) == 0
        own = open_session(server, "x" * 4096)
        assert owners(server, "x" * 4096, place) == ({own}, {"True"})


@PLACES
def test_the_worker_that_renews_a_session_owns_the_new_key_and_not_the_other(place):
    with served(place) as server:
        first = open_session(server, "first")
        assert open_session(server, "second", place=place, own="first") == first, "it has the session"
        other = next(
            own for number in range(99) if (own := open_session(server, f"n{number}", place=place, own="gone")) != first
        )
        assert owners(server, "second", place) == ({first}, {"True"})
        assert owners(server, "first", place) == ({first}, {"True"})
        assert other != first


def test_cookies_that_are_deleted_and_those_of_other_names_issue_nothing():
    with served("cookie:sid") as server:
        for number, cookie in enumerate(("sid={}; Max-Age=0", "Sid={}", "x=sid={}", "sid=; x={}")):
            open_session(server, f"no-{number}", cookie=cookie)
            assert len(owners(server, f"no-{number}", "cookie:sid", 40)[0]) > 1, cookie
        own = open_session(server, "a/b=c", cookie='sid="{}"; Max-Age=60; HttpOnly')
        for sent in ('{}; sid="{}"', "{}; sid={}", ";;=; {}; sid={};", "\xff; {}; sid={}; sid"):
            fields = {"Cookie": sent.format("sid=old", "a/b=c").encode("latin-1")}
            assert {int(requests.get(server.url, headers=fields, timeout=30).headers["X-Pid"]) for _ in range(12)} == {
                own
            }


def test_repeated_fields_are_no_key():
    status = free_address()
    with served("header:X-Session", status=status) as server:
        open_session(server, "a")
        request = b"GET / HTTP/1.1\r\nHost: a\r\nX-Session: a\r\nx-session: a\r\nConnection: close\r\n\r\n"
        for _ in range(24):
            with socket.create_connection((server.address.host, server.address.port), timeout=30) as made:
                made.sendall(request)
                assert b"X-Known: False" in b"".join(iter(lambda made=made: made.recv(4096), b""))
        assert passed(status) == 0


@PLACES
def test_sessions_end_with_their_worker_and_those_of_others_live_on(place):
    with served(place) as server:
        opened = {f"key-{number}": open_session(server, f"key-{number}") for number in range(12)}
        victim = opened["key-0"]
        stop, statuses = threading.Event(), set()

        def hammer(key):
            while not stop.is_set():
                with contextlib.suppress(requests.ConnectionError):
                    statuses.add(ask(server.url, key, place).status_code)

        with ThreadPoolExecutor(4) as pool:
            for key in list(opened)[:4]:
                pool.submit(hammer, key)
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: server.log.count("ready in") == WORKERS + 1, "its successor")
            stop.set()
        assert statuses == {200}
        for key, own in opened.items():
            pids, known = owners(server, key, place)
            assert (victim not in pids and "False" in known) if own == victim else (pids, known) == ({own}, {"True"})
    assert "panicked" not in server.log


def guide(tmp_path):
    for name, source in re.findall(r'```python title="([^"]+)"\n(.*?)```', GUIDE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(source)
    return {app: flags.split() for app, flags in re.findall(r"\$ tailrace (\w+:app) (.*)\n", GUIDE.read_text())}


def call(url, method, session=None, **params):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    fields = {"Mcp-Session-Id": session} if session else {}
    return requests.post(f"{url}/mcp", json=message, headers=fields, timeout=30)


def test_the_mcp_server_of_the_guide_keeps_the_notes_of_each_session(tmp_path):
    flags = guide(tmp_path)["notes:app"]
    with Server("notes:app", *flags, directory=tmp_path) as server:
        opened = [call(server.url, "initialize", protocolVersion="2025-06-18") for _ in range(6)]
        sessions = [each.headers["Mcp-Session-Id"] for each in opened]
        assert len(set(sessions)) == 6
        for number in range(4):
            for session in sessions:
                found = call(server.url, "tools/call", session, name="note", arguments={"text": f"{session}-{number}"})
                notes = found.json()["result"]["content"][0]["text"].split(", ")
                assert notes == [f"{session}-{each}" for each in range(number + 1)]
        assert call(server.url, "tools/list", "unknown").status_code == 404
        server.send_signal(signal.SIGHUP)
        assert server.logged("reload complete", deadline=60)
        eventually(lambda: call(server.url, "tools/list", sessions[0]).status_code == 404, "the end of the sessions")


def test_the_counter_of_the_guide_counts(tmp_path):
    flags = guide(tmp_path)["counter:app"]
    with Server("counter:app", *flags, directory=tmp_path) as server:
        for _ in range(3):
            cookies = {}
            for number in range(1, 13):
                answer = requests.get(server.url, cookies=cookies, timeout=30)
                cookies = cookies or dict(answer.cookies)
                assert answer.text == str(number)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("body:sid", "must be query:, cookie: or header:, followed by a name, such as cookie:SESSION"),
        ("header:a;b", "the name of a header must not contain ';'"),
    ],
)
def test_a_place_that_has_no_keys_is_refused(place, said):
    command = [sys.executable, "-m", "tailrace", "echo:app", "--sticky", place]
    found = subprocess.run(command, cwd=APPS, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode != 0
    assert f"--sticky {place!r}: {said}" in found.stderr
