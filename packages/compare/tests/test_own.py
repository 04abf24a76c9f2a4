"""The user's application: what is the same answer, and real servers that give it."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tailrace_compare import own, peers
from tailrace_compare.launch import NotServing, Server
from tailrace_compare.own import Page, Reference
from tailrace_compare.scenarios.scenario import Ask

from tailrace.errors import ConfigError

APP = """
import itertools
import random
import time

def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (time.sleep(0.01) or b"more" for _ in itertools.count())
    if path == "/short":
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "9")])
        return iter([b"four"])
    status = "404 Not Found" if path == "/missing" else "200 OK"
    body = random.randbytes(1000) if path == "/random" else path.encode() * 100
    if path == "/clock":
        body = time.strftime("%H:%M:%S").encode()
    if path == "/server":
        body = (environ["SERVER_SOFTWARE"][:3] + environ.get("SERVER_PROTOCOL", "")).encode()
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""
HELLO = Page(200, 5, "a")
SERVERS = peers.by_name(["wsgiref"]) + tuple(peer for peer in peers.PEERS if peer.name == peers.TAILRACE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def steady(**pages: Page) -> dict[str, tuple[Page, Page]]:
    return {name: (page, page) for name, page in pages.items()}


def test_the_answer_of_most_servers_is_the_reference() -> None:
    found = own.agree(steady(bjoern=Page(200, 3, "b"), tailrace=HELLO, granian=HELLO, waitress=Page(500, 5, "c")))
    assert found.reference == Reference(HELLO, varies=False)
    assert found.faults == {"bjoern": "3 bytes instead of 5", "waitress": "status 500 instead of 200"}


def test_the_same_length_is_not_the_same_answer() -> None:
    found = own.agree(steady(tailrace=HELLO, granian=HELLO, bjoern=Page(200, 5, "b")))
    assert found.faults == {"bjoern": "the body differs from that of the other servers"}


def test_of_two_answers_the_first_counts() -> None:
    assert own.agree(steady(tailrace=HELLO, bjoern=Page(200, 3, "b"))).reference.page == HELLO


def test_a_page_that_differs_each_time_is_compared_by_status_and_about_its_length() -> None:
    answers = {
        "tailrace": (Page(200, 1000, "a"), Page(200, 1010, "b")),
        "granian": (Page(200, 1005, "c"), Page(200, 990, "d")),
        "bjoern": (Page(200, 400, "e"), Page(200, 1000, "f")),
        "waitress": (Page(503, 1000, "g"), Page(503, 1000, "h")),
    }
    found = own.agree(answers)
    assert found.reference.varies
    assert found.faults == {
        "bjoern": "400 bytes, but about 1,000 from the other servers",
        "waitress": "status 503 instead of 200",
    }
    assert "differs each time: only status and approximate length" in found.told("/random")


def test_one_server_that_varies_is_at_fault_and_not_the_page() -> None:
    answers = steady(tailrace=HELLO, granian=HELLO) | {"bjoern": (HELLO, Page(200, 2, "b"))}
    found = own.agree(answers)
    assert not found.reference.varies
    assert found.faults == {"bjoern": "2 bytes instead of 5"}


@pytest.mark.parametrize("given", ["shop:create()", "shop", "./shop.py", "shop:", "a b:c", "shop:app.wsgi"])
def test_an_application_that_other_servers_cannot_load_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="MODULE:CALLABLE"):
        own.application(given)


@pytest.mark.parametrize("given", ["report", "http://localhost/", "//host/", "/a#b"])
def test_a_url_is_a_path_and_a_query(given: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        own.target(given)


def test_a_path_is_sent_as_clients_send_it() -> None:
    assert own.target("/a b?c=ä&d=%20") == "/a%20b?c=%C3%A4&d=%20"


def test_real_servers_are_asked_and_agree(directory: Path) -> None:
    found = own.survey("shop:application", directory, ("/report", "/random", "/clock"), SERVERS)
    assert found["/report"].reference.page.length == 700
    assert not found["/report"].reference.varies
    assert found["/random"].reference.varies
    assert found["/random"].faults == {}
    # Two answers within a second are the same, and a later one is no fault.
    assert found["/clock"].reference.varies


def test_a_stream_without_end_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "SECONDS", 0.2)
    monkeypatch.setattr(own, "APART_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"no server responds to /stream .*the response does not end within 0.2 s"):
        own.survey("shop:application", directory, ("/stream",), SERVERS[:1])


def test_a_body_that_is_shorter_than_it_says_is_no_answer(directory: Path) -> None:
    with (
        serving(directory, "/report") as server,
        pytest.raises(OSError, match=r"4 bytes instead of the Content-Length of 9"),
    ):
        own.fetch(server, "/short")


def test_where_the_first_servers_are_silent_no_other_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(server: Server, target: str) -> tuple[Page, float, float]:
        asked.append(server.peer.name)
        raise TimeoutError("timed out")

    monkeypatch.setattr(own, "fetch", fetch)
    servers = [cast("Server", SimpleNamespace(peer=peer)) for peer in peers.PEERS]
    silent: dict[str, str] = {}
    assert own.answers(servers, "/", silent) == {}
    assert len(asked) == own.MAX_SILENT
    assert silent == dict.fromkeys(asked, "timed out")


def test_a_page_that_is_missing_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="/missing responds with status 404; choose another path"):
        own.survey("shop:application", directory, ("/missing",), SERVERS[:1])


def test_an_application_that_no_server_can_load_is_an_error_with_its_reason(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"no server responds to / of nowhere:application: wsgiref .*nowhere"):
        own.survey("nowhere:application", directory, ("/",), SERVERS[:1])


@contextmanager
def serving(directory: Path, target: str) -> Iterator[Server]:
    server = Server(SERVERS[0], "shop:application", place=own.place(directory, target))
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def test_a_fetch_has_its_first_byte_before_its_last(directory: Path) -> None:
    surveys = own.survey("shop:application", directory, ("/report",), SERVERS)
    fetching = own.experiments("shop:application", directory, surveys)[-1]
    with serving(directory, "/report") as server:
        sample = fetching.measure(server, Ask(0.05, quick=True))
    assert 0 < sample.values["url1_first"] <= sample.values["url1_whole"]


def test_a_server_with_another_answer_is_not_measured(directory: Path) -> None:
    survey = own.Survey(Reference(Page(200, 4, "x"), varies=False), {})
    with serving(directory, "/report") as server:
        for experiment in own.experiments("shop:application", directory, {"/report": survey}):
            with pytest.raises(NotServing, match="disqualified: 700 bytes instead of 4"):
                experiment.check(server)


def test_the_module_beside_the_program_that_starts_servers_is_the_users(directory: Path) -> None:
    # `files` and `shapes` are names beside it in the package.
    (directory / "files.py").write_text("NAME = b'mine'\n")
    (directory / "uses.py").write_text(
        "import files\ndef app(environ, start_response):\n"
        "    start_response('200 OK', [('Content-Length', '4')])\n    return [files.NAME]\n"
    )
    server = Server(SERVERS[0], "uses:app", place=own.place(directory, "/"))
    try:
        server.wait_until_ready()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"mine"
        connection.close()
    finally:
        server.stop()
