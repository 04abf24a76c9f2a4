"""`tailrace top` in a terminal of 80x24, as tmux shows it, on a real server."""

import asyncio
import os
import re
import shlex
import subprocess
import sys

import pytest
from harness.addresses import free_address
from harness.programs import tailrace
from harness.server import Server
from harness.status import answer, is_ready
from harness.tools import need_module, need_tool
from server.probes import asking, eventually
from tailrace_tools.live.ask import Asked, AskError

need_module("textual")

from tailrace_tools.live.top import Look, Top  # noqa: E402


class Terminal:
    """A command in a terminal of its own; without the settings of the user."""

    def __init__(self, directory, *command, size=(80, 24)):
        self._tmux = [need_tool("tmux"), "-S", str(directory / "tmux"), "-f", "/dev/null"]
        wide, high = map(str, size)
        line = shlex.join(command) + "; echo ended with $?; sleep 3600"
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        subprocess.run(
            [*self._tmux, "-u", "new-session", "-d", "-x", wide, "-y", high, line], env=environment, check=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        subprocess.run([*self._tmux, "kill-server"], check=False)

    def screen(self):
        return subprocess.run([*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    def press(self, *keys):
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def shows(self, *texts):
        """The screen once it has all of these."""
        eventually(lambda: all(text in self.screen() for text in texts), f"{texts} on\n{self.screen()}")
        return self.screen()

    def shows_no_more(self, text):
        eventually(lambda: text not in self.screen(), f"no {text} on\n{self.screen()}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a request that sleeps and one that keeps the interpreter: its status address."""
    directory, at = tmp_path_factory.mktemp("top"), free_address()
    server = Server("srv_waits:app", "--hang-timeout", "0", "--threads", "8", status=at)
    with server:
        eventually(lambda: is_ready(at), "it is ready")
        assert server.get("/nothing").status == 500
        # The client has its response before the thread has finished, for which it needs the GIL.
        eventually(lambda: answer(at, "/status.json")["totals"]["running"] == 0, "the end of the first request")
        clients = []
        for way in ("sleeps", "computes"):
            clients.append(asking(server, f"/{way}?entered={directory}/{way}"))
            eventually((directory / way).exists, f"the request that {way}")
        # Its interpreter does not answer any more.
        eventually(lambda: answer(at, "/status.json")["workers"][0]["state"] == "hung", "a worker that counts as hung")
        yield at
        for each in clients:
            each.sock.close()
        server.kill()


@pytest.fixture
def top(server, tmp_path):
    with Terminal(tmp_path, sys.executable, "-m", "tailrace", "top", "--status", server.bind) as terminal:
        terminal.shows("GET /sleeps", "GET /computes")
        yield terminal


def order(screen):
    return re.findall(r"GET /(\w+)", screen)


def test_each_request_has_a_line_with_its_state_and_place(top):
    screen = top.shows("running: GIL")
    assert re.search(r"1 +\d+ +waiting: sleep +\d+\.\d\d +GET /sleeps", screen), screen
    assert re.search(r"1 +\d+ +running: GIL +\d+\.\d\d +GET /computes", screen), screen
    assert "sleeps srv_wait" in screen
    assert "srv_waits:app  up " in screen
    assert "workers 0/1" in screen
    assert "Enter stack  e endpoints  s slow  ? help  1-6 sort  r reverse  i idle  q quit" in screen
    assert "running 2" in screen
    assert all(len(line) <= 80 for line in screen.splitlines())


def test_a_column_sorts_and_sorts_the_other_way_round(top):
    assert order(top.shows("time, s▼")) == ["sleeps", "computes"]
    top.press("r")
    assert order(top.shows("time, s▲")) == ["computes", "sleeps"]
    top.press("5")
    assert order(top.shows("request▲")) == ["computes", "sleeps"]
    top.press("5")
    assert order(top.shows("request▼")) == ["sleeps", "computes"]


def test_keys_show_figures_endpoints_responses_and_idle_threads(top):
    top.press("?")
    screen = top.shows("Figures")
    for figure in ("queued", "requests/s", "stuck"):
        assert re.search(rf"^ *{figure} +[a-z]", screen, re.MULTILINE), screen
    top.press("Escape")
    top.shows("GET /sleeps")
    top.press("e")
    screen = top.shows("GET /nothing", "exception: ")
    assert re.search(r"^ *GET /nothing *\n *\d\.\d{3} +1( +\d+\.\d\d){3} +1\.0 none\b", screen, re.MULTILINE), screen
    top.press("Escape")
    top.shows("GET /sleeps")
    top.press("s")
    assert "500 complete; queued " in top.shows("no response was slow", "the last broken responses", "GET /nothing")
    top.press("Escape")
    top.shows("GET /sleeps")
    # The line of the keys has the word, too.
    assert "  idle  " not in top.screen()
    top.press("i")
    top.shows("  idle  ")
    top.press("i")
    top.shows_no_more("  idle  ")


def test_a_key_shows_the_stack_of_a_thread(top, server):
    top.press("Enter")
    screen = top.shows("sleeps (", "app (")
    assert "the thread is waiting" in screen
    top.press("Escape")
    top.shows("GET /computes")
    top.press("Down")
    top.press("Enter")
    top.shows("holds the interpreter", "computes (")


def test_without_an_answer_it_says_what_to_do(tmp_path):
    with Terminal(
        tmp_path, sys.executable, "-m", "tailrace", "top", "--status", "127.0.0.1:1", size=(200, 24)
    ) as terminal:
        terminal.shows("was the server started with `--status 127.0.0.1:1`?", "ended with 1")


class Answering:
    """Asked of a process that answers these documents. times: how often it has been asked."""

    def __init__(self, status, stacks):
        self.answers = status, stacks
        asked = Asked("127.0.0.1:1")
        self.understood, self.address, self.times = asked.understood, asked.address, 0

    def status(self):
        self.times += 1
        return self.answers[0]

    def stacks(self):
        return self.answers[1]


def pressed(status, workers, *keys):
    """What the program shows of these documents, which it reads again and again, after some keys: the last text."""
    answering = Answering(status, workers)

    async def run():
        top = Top(answering, 0.001)
        async with top.run_test() as pilot:

            async def look_again():
                until = answering.times + 3
                while answering.times < until:
                    await pilot.pause(0.01)

            await look_again()
            for key in keys:
                await pilot.press(key)
                await look_again()
            return str(top.screen.query_one("#text" if keys else "#said").render())

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_what_it_shows_has_nothing_that_a_terminal_obeys(server):
    title = "\x1b]0;owned\x07"

    def texts(found):
        if isinstance(found, (dict, list)):
            return [text for each in (found.values() if isinstance(found, dict) else found) for text in texts(each)]
        return [found] if isinstance(found, str) else []

    status, workers = answer(server, "/status.json"), answer(server, "/stacks")["workers"]
    status["application"] = status["endpoints"][0]["endpoint"] = title
    workers[0]["threads"][0]["name"] = workers[0]["error"] = title
    look = Top(Answering(status, workers), 1.0)._read()
    shown = [*texts(look.status), *texts(look.workers)]
    assert sum(r"\x1b]0;owned\x07" in text for text in shown) == 4
    assert all(text.isprintable() for text in shown)


def test_a_document_of_another_form_is_named_and_does_not_end_it(server):
    status, workers = answer(server, "/status.json"), answer(server, "/stacks")["workers"]
    totals = status["totals"]
    without_requests = {key: value for key, value in totals.items() if key != "requests"}
    deep = []
    for _ in range(2000):
        deep = [deep]
    for wrong in (
        {**status, "totals": without_requests},
        {**status, "totals": {**totals, "requests": None}},
        {key: value for key, value in status.items() if key not in ("endpoints", "version")},
        {"workers": []},
        {**status, "totals": []},
        {**status, "application": 1},
        {**status, "endpoints": 1},
        {**status, "workers": deep},
        {**status, "uptime_seconds": 10**400},
        {**status, "endpoints": [{**status["endpoints"][0], "writes": 10**400}]},
    ):
        with pytest.raises(AskError, match="unexpected form"):
            Top(Answering(wrong, workers), 1.0)._read()
    (worker,) = workers
    thread = worker["threads"][0]
    for wrong in (
        [{}],
        deep,
        [{**worker, "error": 5}],
        [{**worker, "error": None, "note": 5}],
        [{**worker, "threads": [{**thread, "state": 5}]}],
        [{**worker, "threads": [{**thread, "state": None}]}],
    ):
        with pytest.raises(AskError, match="unexpected form"):
            Top(Answering(status, wrong), 1.0)._read()


def test_documents_of_another_form_do_not_end_the_program_while_it_draws(server):
    status, workers = answer(server, "/status.json"), answer(server, "/stacks")["workers"]
    wrong = {**status, "totals": {**status["totals"], "requests": None}}
    assert "unexpected form" in pressed(wrong, workers)
    assert "unexpected form" in pressed(status, [{**workers[0], "error": 5}])


def test_a_state_of_another_version_is_shown_without_an_explanation(server):
    status, (worker,) = answer(server, "/status.json"), answer(server, "/stacks")["workers"]
    thread = {**worker["threads"][0], "state": "yielding"}
    assert f"thread {thread['thread']} {thread['name']}: yielding" in pressed(
        status, [{**worker, "threads": [thread]}], "enter"
    )


def test_without_a_terminal_it_names_the_other_command(server):
    done = tailrace("top", "--status", server.bind, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "`tailrace threads` to print the threads once" in done.stderr


def test_a_server_that_ends_meanwhile_is_said(tmp_path):
    at = free_address()
    with Server("srv_waits:app", status=at) as server:
        eventually(lambda: is_ready(at), "it is ready")
        with Terminal(tmp_path, sys.executable, "-m", "tailrace", "top", "--status", at.bind) as terminal:
            terminal.shows("workers 1/1")
            assert answer(at, "/status.json")["ready"]
            server.stop()
            terminal.shows("no response from")
            terminal.press("q")
            terminal.shows("ended with 0")


def test_held_connections_are_figures_while_a_process_holds_them():
    status = {"totals": {"requests": 0}, "workers": [], "uptime_seconds": 1.0, "ready": True, "workers_wanted": 0}

    def figures(held, held_before):
        before = Look(1.0, {**status, **held_before}, [])
        found = Look(3.0, {**status, **held}, []).figures(before)
        return found["held"], found["published/s"]

    first = {"held": {"pid": 7, "connections": 1200, "published": 10}}
    assert figures({"held": {**first["held"], "published": 50}}, first) == ("1200", "20")
    assert figures(first, {"held": None}) == ("1200", "")
    # Another process, which counts from 0.
    assert figures({"held": {"pid": 8, "connections": 3, "published": 0}}, first) == ("3", "")
    assert figures({"held": None}, first) == figures({}, {}) == ("", "")


def test_passed_requests_are_a_figure_once_there_are_any():
    status = {"workers": [], "uptime_seconds": 1.0, "ready": True, "workers_wanted": 0, "application": "shop:app"}

    def heading(**totals):
        return Look(1.0, {**status, "totals": {"requests": 0, **totals}}, []).heading(None)

    assert "  passed 7  " in heading(passed=7)
    # A server of an earlier version does not count them.
    assert "passed" not in heading(passed=0) + heading()
