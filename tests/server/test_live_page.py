"""The live page of the status process, in Chromium: what it shows of a given state, and of a real server."""

import contextlib
import itertools
import json
import math
import re
import time

import pytest
from harness.addresses import free_address
from harness.browser import contrast
from harness.server import Server
from harness.status import is_ready
from harness.wire import Client
from package.in_status import DELIVERIES, Board, ended, endpoint, shared, worker
from server.probes import eventually, request, waiting

from tailrace.status import feed, held, state
from tailrace.status.pages import Pages

APP = "srv_processes:app"
REQUEST = {
    "id": 7,
    "method": "GET",
    "target": "/slow?x=1",
    "client": "192.0.2.7:4711",
    "seconds": 1.25,
    "thread": 42,
    "request_id": "01999999-1234-7abc-8def-0123456789ab",
    "phase": "running",
}
STACK = [
    {"function": "read", "file": "/app/store.py", "line": 12},
    {"function": "view", "file": "/app/web.py", "line": 3},
]
THREAD = {"thread": 42, "name": "worker-1", "request": REQUEST, "state": "running", "holds_interpreter": True}
PATHS = tuple(DELIVERIES["paths"])
IDLE = {**THREAD, "thread": 43, "name": "worker-2", "request": None, "state": "idle", "holds_interpreter": False}
STACKS = {"workers": [{"number": 1, "pid": 101, "error": None, "threads": [{**THREAD, "frames": STACK}]}]}
SMALL_BLOCKS = endpoint(
    "GET /export/*.csv",
    responses=2,
    blocks=20_000,
    body_bytes=400_000,
    writes=8,
    application_ns=3_000_000_000,
    delivery_ns=12_000_000,
    paths={"coalesced": 2},
)
ENDPOINTS = (SMALL_BLOCKS, endpoint("GET /", responses=30))
RECENT = {"slow": [ended()], "broken": [ended(target="/pay", ending="broken", application=0.01, total=0.02)]}
ROWS = "Array.from(document.querySelectorAll('#flights tr.row'), row => row.innerText)"


READINESS = "byId('readiness').className.trim()"


def text(selector):
    return f"(document.querySelector({json.dumps(selector)})?.textContent ?? '')"


def watching(browser, script, what, deadline=20.0):
    return eventually(lambda: browser.value(script), what, deadline)


def opened(browser, address):
    browser.open(f"{address.url}/")
    watching(browser, "byId('link').textContent === 'live'", "the page is live")


class Shown:
    """The pages of a server whose state a test gives; `stacks` is what `/stacks` answers: a status and a body."""

    def __init__(
        self,
        *workers,
        requests=(REQUEST,),
        stacks=("200 OK", STACKS),
        places=({"requests": 3},),
        endpoints=ENDPOINTS,
        recent=RECENT,
        delivered=None,
        **told,
    ):
        self.board = Board(*places, requests=requests, deliveries=delivered, endpoints=endpoints, recent=recent)
        self.pages = Pages(shared(*(workers or [worker()]), **told), self.board)
        self.stacks = stacks
        self.asked = []
        self.pages.feed.start()

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"] != "/stacks":
            return self.pages(environ, start_response)
        self.asked.append(environ["QUERY_STRING"])
        status, body = self.stacks
        start_response(status, [("Content-Type", "text/plain")])
        return [body.encode() if isinstance(body, str) else json.dumps(body).encode()]


@pytest.fixture
def show(serve):
    with contextlib.ExitStack() as stack:

        def start(*workers, **given):
            shown = Shown(*workers, **given)
            stack.callback(shown.pages.feed.stop)
            return shown, serve(shown, threads=6)

        yield start


@pytest.fixture
def page(browser, show):
    """Opens the pages of such a server in the browser, which must find no problem: `Shown`."""

    def start(*workers, width=None, **given):
        shown, address = show(*workers, **given)
        if width:
            browser.emulate(width=width)
        opened(browser, address)
        return shown

    yield start
    assert browser.problems == []


def test_the_page_shows_the_server_its_workers_and_the_requests_in_flight(browser, page):
    page(
        *(worker(1), worker(2, state.DRAINING)),
        places=({"requests": 1234, "running": 1, "connections": 5, "refused": 2}, {"queued": 3}),
        restarts={"crash": 1, "reload": 2},
        width=1280,
    )
    assert browser.value(text("#application")) == "shop:app"
    assert browser.value(text("#readiness")) == "ready"
    server = browser.value("document.querySelector('#server').innerText").split()
    assert "http://127.0.0.1:8000" in server
    assert "99" in server
    rows = browser.value("Array.from(document.querySelectorAll('#workers tr.row'), row => row.innerText)")
    first, second = (re.split(r"\s+", row.strip()) for row in rows)
    assert (first[:3], second[:3]) == (["1", "101", "serving"], ["2", "102", "draining"])
    assert "1,234" in first
    (row,) = browser.value(ROWS)
    assert re.split(r"\s*[\t\n]\s*", row) == ["running", "1.25 s", "GET /slow?x=1", "1", "42", "192.0.2.7:4711"]
    counters = browser.value("document.querySelector('#counters').innerText.replaceAll('\\n', ' ')")
    assert re.search(r"refused 2\b", counters)
    assert "3 (crash 1, reload 2)" in counters
    assert "passed" not in counters
    assert browser.value("document.title") == "shop:app · Tailrace"


def test_requests_that_were_passed_to_other_workers_are_shown(browser, page):
    page(worker(1), worker(2), places=({"passed": 1200}, {"passed": 34}), width=1280)
    counters = browser.value("document.querySelector('#counters').innerText.replaceAll('\\n', ' ')")
    assert "passed to another worker 1,234" in counters
    assert "--sticky" in browser.value("EXPLANATIONS.passed")


def test_held_connections_are_shown_while_a_process_holds_them(browser, page, monkeypatch):
    said = {"pid": 7, "published": 10, "delivered": 40, "connections": 1200, "channels": 7, "age_seconds": 0.0}
    names = ["orders", "<b>news", "a", "b", "c", "d"]
    said["largest"] = [{"channel": name, "connections": 9 - place} for place, name in enumerate(names)]
    shown = [None]
    monkeypatch.setattr(held.Reader, "read", lambda reader, state: shown[0])
    page(width=1280)
    line = "document.querySelector('#held-section').innerText.replaceAll('\\n', ' ')"
    assert browser.value("document.querySelector('#held-section').hidden")
    shown[0] = said
    watching(browser, f"{line}.includes('connections 1,200')", "the connections")
    assert "channels 7 published" in browser.value(line)
    assert browser.value(line).endswith("largest orders 9, <b>news 8, a 7, b 6, c 5, …")
    # A channel may have stored events alone.
    shown[0] = {**said, "largest": [*said["largest"][:2], {"channel": "old", "connections": 0}]}
    watching(browser, f"{line}.endsWith('largest orders 9, <b>news 8')", "the channels with connections")
    shown[0] = {**said, "largest": [{"channel": "old", "connections": 0}]}
    watching(browser, f"!{line}.includes('largest')", "no channel without connections")
    shown[0] = said
    watching(browser, f"{line}.includes('published 0/s delivered 0/s')", "how many per second")
    began = time.monotonic()

    def growing(reader, state):
        return {**said, "published": said["published"] + int(100 * (time.monotonic() - began))}

    monkeypatch.setattr(held.Reader, "read", growing)
    watching(browser, f"/published [1-9][0-9]+\\/s delivered 0\\/s/.test({line})", "more per second")
    monkeypatch.setattr(held.Reader, "read", lambda reader, state: shown[0])
    shown[0] = {**said, "age_seconds": 65.0}
    watching(browser, f"{line}.includes('no answer for 1 min 05 s')", "that it does not answer")
    shown[0] = None
    watching(browser, "document.querySelector('#held-section').hidden", "there is none")


def test_a_server_that_is_not_ready_says_why_and_a_request_of_a_worker_that_drains_is_draining(browser, page):
    shown = page(worker(1, state.DRAINING), stopping=True)
    assert browser.value(text("#readiness")).startswith("not ready: draining: the server is finishing its requests")
    assert browser.value("document.title").startswith("not ready: ")
    assert browser.value(ROWS)[0].split()[0] == "draining"
    assert browser.value("phaseOf({phase: 'sending'}, {state: 'draining'}).name") == "sending"
    assert browser.value("phaseOf({phase: 'running'}, {state: 'hung'}).name") == "running"
    shown.board.requests = []
    watching(browser, f"{text('#no-requests')} === 'No request is in flight.'", "no request")


def test_a_click_opens_the_python_stack_of_a_request(browser, page):
    shown = page()
    browser.click("#flights tr.row td:nth-child(2)", loads=False)
    watching(browser, "document.querySelectorAll('.frames li').length === 2", "the stack")
    assert shown.asked == ["pid=101"]
    frames = browser.value("Array.from(document.querySelectorAll('.frames li'), each => each.textContent)")
    assert frames == ["read /app/store.py:12", "view /app/web.py:3"]
    assert "holds the interpreter" in browser.value(text(".stacks"))
    assert browser.value("document.querySelector('#flights .open').ariaExpanded") == "true"
    # What somebody reads stays when the request ends.
    shown.board.requests = []
    watching(browser, f"{text('#flights .chip')} === 'ended'", "the end of the request")
    assert browser.value("document.querySelectorAll('.frames li').length") == 2
    browser.click("#flights tr.row td:nth-child(2)", loads=False)
    watching(browser, "!document.querySelector('#flights tr.row')", "nothing is left")


def test_the_keyboard_opens_and_closes_a_request(browser, page):
    page()
    for _ in range(100):
        browser.press("Tab", 9)
        if browser.value("document.activeElement.closest('#flights td')?.className === 'target'"):
            break
    browser.press("Enter", 13)
    watching(browser, "document.querySelectorAll('.frames li').length === 2", "the stack")
    # The next seconds leave the focus where it is.
    heard = browser.value("heard")
    watching(browser, f"heard > {heard} + 1500", "further states")
    assert browser.value("document.activeElement.closest('#flights td').className") == "target"
    browser.press("Escape", 27)
    assert browser.value("document.querySelectorAll('#flights .details').length") == 0
    assert browser.value("document.activeElement.closest('#flights td').className") == "target"


def test_a_worker_opens_to_its_threads(browser, page):
    threads = [{**THREAD, "frames": STACK}, {**IDLE, "frames": []}]
    page(stacks=("200 OK", {"workers": [{**STACKS["workers"][0], "threads": threads}]}))
    browser.click("#workers .open", loads=False)
    watching(browser, "document.querySelectorAll('#workers summary').length === 2", "the threads")
    first, second = browser.value("Array.from(document.querySelectorAll('#workers summary'), each => each.innerText)")
    assert all(
        part in first for part in ("worker-1", "42", "running", "holds the interpreter", "GET /slow?x=1", "read")
    )
    assert all(part in second for part in ("worker-2", "43", "idle"))


@pytest.mark.parametrize(
    ("stacks", "said"),
    [
        (("404 Not Found", "/, /health\n"), "This server does not read stacks."),
        (("404 Not Found", "pid must be the process id of a worker: 5\n"), "The worker has ended."),
        (
            ("501 Not Implemented", "stacks need py-spy\nmore"),
            "The stacks cannot be read: stacks need py-spy (501)",
        ),
        (("200 OK", "<html>"), "The stacks cannot be read: the answer is not JSON."),
        (
            ("200 OK", {"workers": [{**STACKS["workers"][0], "error": "no permission"}]}),
            "The stacks of worker 1 cannot be read: no permission",
        ),
        (("200 OK", {"workers": []}), "The worker has ended."),
        (
            (
                "200 OK",
                {"workers": [{**STACKS["workers"][0], "threads": [{**THREAD, "request": {"id": 8}, "frames": []}]}]},
            ),
            "The request has ended; its thread runs another one.",
        ),
    ],
)
def test_where_there_is_no_stack_one_line_says_why(browser, show, stacks, said):
    _, address = show(stacks=stacks)
    opened(browser, address)
    browser.click("#flights .open", loads=False)
    watching(browser, f"{text('.details .note')} === {json.dumps(said)}", said)
    assert browser.value("document.querySelectorAll('.frames').length") == 0


def rows_of(browser, table):
    """The texts of the rows of a table, cell by cell."""
    cells = "Array.from(row.cells, cell => cell.textContent)"
    return browser.value(f"Array.from(document.querySelectorAll('#{table} tr.row'), row => {cells})")


def test_endpoints_are_shown_by_what_they_cost_and_open_to_what_to_fix(browser, page):
    shown = page()
    worst, well = rows_of(browser, "endpoints")
    assert worst[:6] == ["GET /export/*.csv", "2", "1.00 ms", "1.01 ms", "3.00 s", "1.50 s"]
    assert worst[6:9] == ["0", "4", "10,000"]
    assert worst[11:] == ["coalesced", "small blocks, before first block"]
    assert (well[0], well[4], well[-1]) == ("GET /", "0", "nothing")
    browser.click("#endpoints .open", loads=False)
    found = browser.value(
        "Array.from(document.querySelectorAll('#endpoints .findings section > *'), e => e.textContent)"
    )
    assert found[0] == "10,000 blocks of 20 bytes on average."
    assert "After the first block, the thread was occupied for 6.00 ms, and 4 system calls" in found[1]
    assert 'return [b"".join(blocks)]' in found[3].splitlines()
    # What is open follows the figures.
    shown.board.counted = [{**SMALL_BLOCKS, "responses": 4, "blocks": 80_000, "body_bytes": 1_600_000}]
    blocks = text("#endpoints .findings h3")
    watching(browser, f"{blocks} === '20,000 blocks of 20 bytes on average.'", "the next figures")


def test_growth_of_memory_has_a_column_and_a_slow_endpoint_says_where_its_time_went(browser, page):
    grown = {"grown_bytes": 21 << 20, "grown_responses": 3000, "responses": 3000}
    page(
        endpoints=[
            endpoint("GET /report", application_ns=285_000_000, cpu_ns=2_000_000),
            endpoint("GET /cart", **grown, grown_variance=1024**2),
            endpoint("GET /movie", **grown, grown_variance=(8 * 1024) ** 2),
        ]
    )
    cells = {row[0]: (row[9], row[-1]) for row in rows_of(browser, "endpoints")}
    assert cells == {
        "GET /report": ("\N{EN DASH}", "before first block"),
        "GET /cart": ("+21.0 MiB", "memory growth"),
        # It is uncertain whether this endpoint causes the growth.
        "GET /movie": ("\N{EN DASH}", "nothing"),
    }
    browser.click("#endpoints .open", loads=False)
    hint = "document.querySelector('#endpoints .findings section').textContent"
    assert "It waited for 283 ms of 285 ms" in watching(browser, hint, "what is said")


def test_slow_and_broken_responses_are_grouped_by_endpoint_with_where_their_time_went(browser, page):
    kept = [ended(), ended("/report?x=2", total=9.0, ago=4.0), ended("/other", ago=5.0)]
    shown = page(
        endpoints=[endpoint("GET /report", slow=70), endpoint("GET /pay", failed=3), endpoint("GET /gone", slow=1)],
        recent={**RECENT, "slow": kept},
    )
    report, *others = rows_of(browser, "slow")
    assert (report[:2], report[3:]) == (["GET /report", "70"], ["9.00 s", "200", "before first block"])
    # Of one that the kept ones have displaced the number is known, and of one without a count the kept ones are.
    assert sorted((each[0], each[1], each[3]) for each in others) == [
        ("GET /gone", "1", "\u2013"),
        ("GET /other", "1", "2.75 s"),
    ]
    assert browser.value(text("#slow-count")) == "72, from 3 endpoints"
    (broken,) = rows_of(browser, "broken")
    assert (broken[:2], broken[-1]) == (["GET /pay", "3"], "exception")
    browser.click("#slow .open", loads=False)
    # A table: all names begin at one place and all values at another one, in each of its columns.
    places = "Array.from(document.querySelectorAll('#slow .details dl:first-of-type > div'), row => ROW)"
    row = "Array.from(row.children, cell => Math.round(cell.getBoundingClientRect().left))"
    columns = {tuple(each) for each in browser.value(places.replace("ROW", row))}
    assert 1 <= len(columns) <= 3, columns
    assert len({value - name for name, value in columns}) == 1, columns
    first, second = browser.value("Array.from(document.querySelectorAll('#slow .details dl'), each => each.innerText)")
    facts = re.split(r"\s*\n\s*", first)
    named = dict(zip(facts[::2], facts[1::2], strict=True))
    assert (named["queued"], named["application"], named["iterating"]) == ("1.00 ms", "2.50 s", "250 ms")
    assert (named["client"], named["worker"]) == ("192.0.2.7:4711", "1, process 101")
    assert "GET /report?x=2" in second
    said = text("#slow .findings h3")
    assert browser.value(said) == "The application took 2,500 ms until its first block."
    # What is open stays open, though the time of its end is estimated anew for each state.
    at = browser.value("latest.slow[0].time")
    watching(browser, f"latest.slow[0].time !== {json.dumps(at)}", "another state")
    assert browser.value(said) == "The application took 2,500 ms until its first block."
    shown.board.ended, shown.board.counted = {}, []
    watching(browser, f"{text('#slow-count')} === '0'", "none is left")
    assert browser.value(text("#no-slow:not([hidden])")) == "No response was slow."
    assert browser.value(text("#no-broken:not([hidden])")) == "No response has failed."


def test_a_response_that_broke_after_its_head_says_so_beside_its_status(browser, page):
    outcomes = [
        ended("/broken", ending="broken"),
        ended("/broken", ending="broken", total=3.0),
        ended("/broken", status=500),
        ended("/late", ending="timed-out"),
        ended("/never", ending="timed-out", status=0),
    ]
    page(endpoints=[], recent={"slow": [], "broken": outcomes})
    assert {row[0]: row[4] for row in rows_of(browser, "broken")} == {
        "GET /broken": "2 \u00d7 200, then broken off; 1 \u00d7 500",
        "GET /late": "200, then timed out",
        "GET /never": "timed out",
    }
    browser.click("#broken .open", loads=False)
    assert "200, then broken off" in browser.value("document.querySelector('#broken .details dl').innerText")


def test_a_click_or_a_key_on_a_head_sorts_by_its_column_and_reverses_it(browser, page):
    times = {"GET /a": 2, "GET /b": 3, "GET /c": 1}
    page(
        endpoints=[
            endpoint(name, total_ns=mean * 10**6, application_ns=10**9 // mean, times={f"{mean}.0": 1})
            for name, mean in times.items()
        ]
        + [endpoint("GET /events", event_streams=1, times={}, total_ns=0)],
        width=1280,
    )

    def order():
        return "".join(row[0][5] for row in rows_of(browser, "endpoints"))

    def sorts():
        return browser.value(
            "Array.from(document.querySelectorAll('#endpoints th[aria-sort]'), each => [each.innerText, each.ariaSort])"
        )

    assert (order(), sorts()) == ("cabe", [["cost", "descending"]])
    browser.click("#endpoints th:nth-child(3) button", loads=False)
    # What is not known comes last, in both directions.
    assert (order(), sorts()) == ("bace", [["mean", "descending"]])
    browser.press("Enter", 13)
    assert (order(), sorts()) == ("cabe", [["mean", "ascending"]])
    browser.click("#endpoints th:nth-child(1) button", loads=False)
    assert (order(), sorts()) == ("abce", [["endpoint", "ascending"]])
    # The next state keeps the order.
    heard = browser.value("heard")
    watching(browser, f"heard > {heard}", "another state")
    assert order() == "abce"
    # Cards have no head: a list sorts them.
    browser.emulate(width=768)
    assert browser.value("getComputedStyle(document.querySelector('#endpoints thead')).display") == "none"
    browser.value(
        "(list => { list.value = 'p95'; list.dispatchEvent(new Event('change')); })"
        "(document.querySelector('#endpoints-section .sorter select'))"
    )
    assert order() == "bace"
    browser.click("#endpoints-section .sorter button", loads=False)
    assert order() == "cabe"


def test_a_row_that_is_moved_by_a_new_order_keeps_the_focus(browser, page):
    def counts(first, second):
        return [endpoint("GET /a", application_ns=first * 10**9), endpoint("GET /b", application_ns=second * 10**9)]

    shown = page(endpoints=counts(1, 2))
    browser.value("document.querySelector('#endpoints tbody:last-child .open').focus()")
    shown.board.counted = counts(3, 2)
    watching(browser, f"{text('#endpoints .open')} === 'GET /a'", "the next order")
    assert browser.value("document.activeElement.textContent") == "GET /a"


def test_texts_of_requests_are_text(browser, page):
    hostile = [
        "<script>document.title='taken'</script>",
        "<img src=x onerror=document.title='taken'>",
        "\"'&lt;b>\u202e</td></table>",
        "javascript:alert(1)",
        "/" + "x" * 170,
    ]
    requests = [
        {**REQUEST, "id": number, "target": each, "method": each[:16], "client": each}
        for number, each in enumerate(hostile)
    ]
    frames = [{"function": each, "file": each, "line": 1} for each in hostile]
    thread = {**THREAD, "name": hostile[0], "state": hostile[1], "request": {"id": 0}, "frames": frames}
    page(
        *(worker(),),
        requests=requests,
        stacks=("200 OK", {"workers": [{**STACKS["workers"][0], "note": hostile[1], "threads": [thread]}]}),
        application=hostile[0],
        listeners=[hostile[1]],
        restarts={hostile[0]: 1},
        endpoints=[endpoint(f"GET {each}", failed=1) for each in hostile],
        recent={"slow": [ended(target=each, client=each) for each in hostile], "broken": []},
    )
    shown = browser.value("Array.from(document.querySelectorAll('#flights td.target span'), each => each.textContent)")
    assert sorted(shown) == sorted(hostile)
    browser.click("#flights .open", loads=False)
    watching(browser, "document.querySelectorAll('.frames li').length > 0", "the stack")
    browser.click("#workers .open", loads=False)
    watching(browser, "document.querySelectorAll('#workers summary').length > 0", "the threads")
    browser.click("#endpoints .open", loads=False)
    browser.click("#slow .open", loads=False)
    assert browser.value("document.querySelectorAll('#endpoints .findings, #slow .findings').length") == 2
    assert browser.value("Array.from(document.querySelectorAll('#slow td.target'), each => each.textContent)") != []
    assert browser.value("document.scripts.length") == 1
    assert browser.value("document.querySelectorAll('img, b script, td script').length") == 0
    assert browser.value("document.title").startswith("<script>")


EXPLAINED = (
    "Array.from(document.querySelectorAll('[data-explain]')).filter(each => each.checkVisibility())"
    ".map(each => each.dataset.explain)"
)
UNEXPLAINED = """
Array.from(document.querySelectorAll('dd, dt, td, th'))
    .filter(each => !each.closest('.details td'))
    .filter(each => !each.closest('[data-explain]') && !each.querySelector('[data-explain]'))
    .map(each => each.outerHTML)
"""
SHOWN = "(byId('explanation').hidden ? '' : byId('explanation').textContent)"


def test_every_figure_has_an_explanation_for_the_pointer_and_the_keyboard(browser, page):
    shown = page(width=1280)
    browser.click("#flights .open", loads=False)
    watching(browser, "document.querySelectorAll('.frames li').length === 2", "the stack")
    assert browser.value(UNEXPLAINED) == []
    assert browser.value(f"{EXPLAINED}.filter(each => !EXPLANATIONS[each])") == []
    # One line each.
    assert (
        browser.value("Object.values(EXPLANATIONS).filter(each => each.includes('\\n') || !each.endsWith('.'))") == []
    )
    reached = set()
    for _ in range(300):
        browser.press("Tab", 9)
        # At one moment: the page is written anew each second.
        found, shown, expected = browser.value(
            "(found => [found, byId('explanation').hidden ? '' : byId('explanation').textContent, EXPLANATIONS[found]])"
            "(document.activeElement.dataset.explain ?? '')"
        )
        if found:
            assert shown == expected
        reached.add(found)
    assert reached >= set(browser.value(EXPLAINED)) - {"thread_state"}
    browser.press("Escape", 27)
    browser.value("document.activeElement.blur()")
    browser.point("#workers td:nth-child(3)")
    watching(browser, f"{SHOWN} === EXPLANATIONS.state", "the explanation of a state")


def test_what_comes_under_a_pointer_that_rests_leaves_the_explanation_of_the_focus(browser, page):
    page()
    # Low, so that there is something to scroll.
    browser.emulate(width=1280, height=300)
    browser.point("#workers td:nth-child(3)")
    watching(browser, f"{SHOWN} === EXPLANATIONS.state", "the explanation of a state")
    while not browser.value("document.activeElement.dataset.explain"):
        browser.press("Tab", 9)
    expected = browser.value("EXPLANATIONS[document.activeElement.dataset.explain]")
    browser.value(
        "over = []; addEventListener('pointerover', event => over.push("
        f"[EXPLANATIONS[event.target.closest('[data-explain]')?.dataset.explain] ?? '', {SHOWN}]))"
    )
    tops = itertools.cycle(range(0, 800, 40))

    def has_come_under_it():
        browser.value(f"scrollTo(0, {next(tops)})")
        return {under for under, _ in browser.value("over")} - {"", expected}

    eventually(has_come_under_it, "something else with an explanation under the pointer")
    assert {shown for _, shown in browser.value("over")} == {expected}


def colors(browser, selector):
    """The color of a text, and of the back behind it."""
    script = (
        f"(() => {{ let at = document.querySelector({json.dumps(selector)}), back;"
        " const color = getComputedStyle(at).color;"
        " do { back = getComputedStyle(at).backgroundColor; at = at.parentElement; }"
        " while (at && !back.startsWith('rgb(')); return [color, back]; })()"
    )
    return [tuple(map(int, re.findall(r"\d+", each))) for each in browser.value(script)]


TEXTS = [
    "#application",
    "#server dt",
    "#counters .zero dd",
    "#workers th",
    "#workers td",
    "#flights td.warn",
    "#endpoints td.zero",
    "#broken td.warn",
    "#link",
    "a",
    ".note",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable_in_both_schemes_and_the_switch_is_remembered(browser, show, scheme):
    _, address = show()
    browser.emulate(width=1280, scheme=scheme)
    opened(browser, address)
    browser.click("#flights .open", loads=False)
    watching(browser, "document.querySelectorAll('.frames li').length === 2", "the stack")
    back = "getComputedStyle(document.body).backgroundColor"

    def is_light():
        return sum(map(int, re.findall(r"\d+", browser.value(back)))) > 380

    assert is_light() == (scheme == "light")
    for selector in TEXTS:
        text_color, behind = colors(browser, selector)
        assert contrast(text_color, behind) >= 4.5, (selector, text_color, behind)
    other = "dark" if scheme == "light" else "light"
    browser.value(f"byId('theme').value = '{other}'; byId('theme').dispatchEvent(new Event('change'))")
    assert is_light() == (other == "light")
    opened(browser, address)
    assert is_light() == (other == "light")
    browser.value("byId('theme').value = ''; byId('theme').dispatchEvent(new Event('change'))")
    assert is_light() == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_delivery_has_a_color_that_can_be_told_from_the_others(browser, show, scheme):
    shown, address = show(delivered={"paths": dict.fromkeys(PATHS, 0)})
    browser.emulate(width=1280, scheme=scheme)
    opened(browser, address)
    watching(browser, "samples.list.length > 1", "a sample that stays")
    shown.board.delivered = {"paths": dict.fromkeys(PATHS, 100)}
    assert sorted(browser.value("PATHS")) == sorted(PATHS)
    areas = "Array.from(document.querySelectorAll('#chart-paths .fill'), each => getComputedStyle(each).fill)"
    watching(browser, f"{areas}.length === PATHS.length", "an area for each")
    marks = (
        "Array.from(document.querySelectorAll('#chart-paths dl .mark'), each => getComputedStyle(each).backgroundColor)"
    )
    legend = browser.value(marks)
    assert sorted(browser.value(areas)) == sorted(legend)
    found = [tuple(map(int, re.findall(r"\d+", each))) for each in legend]
    assert len(found) == len(PATHS)
    assert all(len(each) == 3 for each in found), legend
    _, behind = colors(browser, "#chart-paths dl")
    # WCAG 2.2, 1.4.11.
    assert all(contrast(each, behind) >= 3 for each in found), legend
    for one, other in itertools.combinations(found, 2):
        assert math.dist(one, other) >= 40, (one, other)


SHIFTS = """
var shifts = 0;
new PerformanceObserver(list => { for (const each of list.getEntries()) shifts += each.value; })
    .observe({type: 'layout-shift', buffered: true});
"""


def test_nothing_jumps_while_figures_change(browser, show):
    shown, address = show(places=({"requests": 9, "running": 1},))
    browser.emulate(width=1280, height=900)
    browser.open(f"{address.url}/")
    browser.value(SHIFTS)
    for number in (99, 12_345, 1_234_567):
        shown.board.places = [{"requests": number, "running": number % 100, "client_memory": number, "refused": number}]
        heard = browser.value("heard")
        watching(browser, f"heard > {heard}", "the next state")
    # Up to a tenth is good, says web.dev/articles/cls.
    assert browser.value("shifts") < 0.05


def test_charts_show_what_was_sampled_before_and_are_read_with_arrow_keys(browser, show):
    shown, address = show(places=({"requests": 0, "running": 2},))
    eventually(lambda: len(shown.pages.feed._samples) > 2, "samples without a viewer")
    shown.board.places = [{"requests": 100, "running": 4}]
    opened(browser, address)
    assert browser.value("samples.list.length") > 1
    curve = "document.querySelector('#chart-load .curve').getAttribute('d')"
    assert browser.value(curve).count("L") > 0
    browser.value("document.querySelector('#chart-load .plot').focus()")
    tip = "#chart-load .tip"

    def shows_the_newest():
        # On a busy machine it may be a second old.
        browser.press("End", 35)
        return browser.value(f"!document.querySelector('{tip}').hidden") and "now" in browser.value(text(tip))

    eventually(shows_the_newest, "the tip of the newest sample")
    browser.press("Home", 36)
    assert re.search(r"\d+ s ago.*running2queued0", browser.value(text(tip)))
    browser.press("Escape", 27)
    assert browser.value(f"document.querySelector('{tip}').hidden")
    browser.point("#chart-load .plot")
    watching(browser, f"!document.querySelector('{tip}').hidden", "the tip of the pointer")


def test_latency_and_delivery_are_of_the_last_seconds(browser, page):
    # Long ago all took a minute, and since then 80 took 1 ms, 15 took 100 ms, and 5 took 3.05 s.
    before = {"60.0": 1000, "sum_ns": 60 * 10**12}
    shown = page(delivered={"total": before, "paths": dict.fromkeys(PATHS, 0)})
    # The page replaces a sample by one that is taken less than half a second later: the first may be its only one.
    watching(browser, "samples.list.length > 1", "a sample that stays")
    buckets = {**before, "0.001007080078125": 80, "0.1015625": 15, "3.0625": 5, "sum_ns": 60 * 10**12 + 10**9}
    paths = {**dict.fromkeys(PATHS, 100), "sendfile": 500}
    shown.board.delivered = {"total": buckets, "paths": paths, "classes": {"5xx": 100}}
    total = "Array.from(document.querySelectorAll('.latencies tr')).find(row => row.cells[0].textContent === 'total')"
    watching(browser, f"{total}.cells[4].textContent === '10.0 ms'", "the mean")
    shown_as = [browser.value(f"{total}.cells[{place}].textContent") for place in (1, 2, 3)]
    assert shown_as == ["1.01 ms", "102 ms", "3.06 s"]
    assert browser.value("charts.find(each => each.kind.id === 'latency').read().map(curve => curve.at(-1))") == [
        *(0.001007080078125, 0.1015625, 3.0625)
    ]
    queued = total.replace("total", "queued")
    assert browser.value(f"{queued}.cells[1].textContent") == "\u2013"
    chart = "charts.find(each => each.kind.id === 'paths').read()[PATHS.indexOf('sendfile')]"
    assert browser.value(f"Math.max(...{chart})") > 100
    errors = "charts.find(each => each.kind.id === 'errors').read()[0]"
    assert browser.value(f"Math.max(...{errors})") > 20
    assert browser.value("charts.find(each => each.kind.id === 'throughput').kind.series.length") == 1
    # The highest area of the ways of delivery is the sum of all: what is below is drawn over it.
    fills = "Array.from(document.querySelectorAll('#chart-paths .fill'), each => Math.round(each.getBBox().y))"
    heights = browser.value(fills)
    assert heights == sorted(heights)
    assert len(set(heights)) == len(heights) == len(PATHS)
    assert browser.value("document.querySelectorAll('#chart-paths .curve').length") == 0
    # The axis of latency is logarithmic; what is shorter is at its begin.
    scale = "Array.from(document.querySelectorAll('#chart-latency .scale'), each => each.textContent)"
    assert browser.value(scale)[:5] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]
    part = browser.value("[0, 0.0001, 0.001, 0.01, 0.1, 1, 10].map(logarithmic([0.002, 3]).part)")
    assert part == [0, 0, 0, 0.25, 0.5, 0.75, 1]


def test_links_at_the_top_lead_to_each_section_and_a_pause_keeps_what_is_seen(browser, page):
    shown = page(width=1280)
    links = browser.value("Array.from(document.querySelectorAll('.sections a'), each => each.getAttribute('href'))")
    assert len(links) == 6
    tops = []
    for link in links:
        browser.click(f".sections a[href='{link}']", loads=False)
        assert browser.value("document.activeElement.id") == link[1:] or browser.value("location.hash") == link
        tops.append(browser.value(f"document.querySelector('{link}').getBoundingClientRect().top + scrollY"))
    assert tops == sorted(tops)
    # The endpoints come first of the tables.
    assert browser.value("document.querySelector('main table.grid').id") == "endpoints"
    browser.click("#pause", loads=False)
    assert browser.value(text("#link")) == "paused"
    shown.board.requests = []
    heard = browser.value("heard")
    watching(browser, f"heard > {heard} + 1500", "further states")
    assert len(browser.value(ROWS)) == 1
    browser.click("#pause", loads=False)
    assert browser.value(ROWS) == []


def test_the_filter_finds_requests_and_many_are_shown_on_demand(browser, page):
    requests = [{**REQUEST, "id": number, "target": f"/item/{number}"} for number in range(250)]
    page(requests=requests)
    more = "#requests .more"
    assert len(browser.value(ROWS)) == 10
    assert browser.value(text(more)) == "Show all 250"
    browser.click(more, loads=False)
    assert len(browser.value(ROWS)) == 250
    assert browser.value(text(more)) == "Show 10 only"
    browser.value("byId('filter').value = 'ITEM/24'; byId('filter').dispatchEvent(new Event('input'))")
    assert len(browser.value(ROWS)) == 11
    browser.value("byId('filter').value = 'absent'; byId('filter').dispatchEvent(new Event('input'))")
    assert browser.value(text("#no-requests")) == "No request in flight contains this text."
    browser.value("byId('filter').value = ''; byId('filter').dispatchEvent(new Event('input'))")
    browser.click(more, loads=False)
    assert len(browser.value(ROWS)) == 10


def test_a_viewer_too_many_says_so_until_a_place_is_free(browser, show):
    shown, address = show()
    others = [shown.pages.feed.viewer() for _ in range(feed.MAX_VIEWERS)]
    browser.open(f"{address.url}/")
    watching(browser, f"{text('#link')} === 'too many viewers, retrying'", "it says so")
    others[0].close()
    watching(browser, f"{text('#link')} === 'live'", "it is live")


# A real server.


def test_the_page_follows_a_server_that_ends_and_starts_again(browser, tmp_path):
    at, status = free_address(), free_address()
    with Server(APP, address=at, status=status) as server:
        with waiting(server, tmp_path) as client:
            opened(browser, status)
            watching(browser, f"{ROWS}.length === 1", "the request in flight")
            (row,) = browser.value(ROWS)
            assert "/wait?gate=" in row
            first = browser.value("latest.master")
            assert first == server.process.pid
            (tmp_path / "gate").touch()
            assert client.response().body == b"waited"
        watching(browser, f"{ROWS}.length === 0", "its end")
        assert browser.problems == []
        server.stop()
        watching(browser, f"{text('#link')}.startsWith('disconnected since ')", "it says that it is disconnected")
        assert browser.value("document.title").startswith("disconnected: ")
        # Nothing is green, also after a click that draws the page again.
        for _ in range(2):
            assert browser.value(text("#readiness")) == "last known: ready"
            assert browser.value(READINESS) == "chip"
            assert browser.value("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
            browser.click("#pause", loads=False)
        assert browser.value(text("#application")) == APP
    with Server(APP, address=at, status=status) as server:
        watching(browser, f"latest.master === {server.process.pid} && {text('#link')} === 'live'", "the new server")
        # Until its worker is ready, it says so.
        watching(browser, f"document.title === '{APP} · Tailrace'", "its title")
        assert browser.value(text("#readiness")) == "ready"
        assert browser.value(READINESS) == "chip good"


def event(client):
    """The next block of an event stream."""
    while True:
        chunk = client.chunk(client.head_of_events)
        if chunk:
            return chunk.decode()


def viewer(status):
    """A client of `/events`, its head read."""
    client = Client(status, 20.0)
    client.send(request("/events"))
    client.head_of_events = client.head()
    return client


def test_viewers_are_bounded_leave_their_places_and_end_with_the_server():
    status = free_address()
    with Server(APP, status=status) as server, contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(viewer(status)) for _ in range(feed.MAX_VIEWERS)]
        assert {each.head_of_events.status for each in viewers} == {200}
        for each in viewers:
            assert event(each).startswith("event: history\ndata: [")
        before = server.get("/")
        assert before.status == 200
        with viewer(status) as late:
            assert late.head_of_events.status == 503
        # A worker may serve before the master knows that.
        eventually(lambda: is_ready(status), "readiness")
        for target in ("/health", "/ready", "/status.json", "/"):
            with Client(status) as other:
                assert other.ask(request(target, "Connection: close")).status == 200
        viewers[0].close()

        def is_free():
            with viewer(status) as again:
                return again.head_of_events.status == 200

        eventually(is_free, "the place of one who has gone")
        # Its viewers do not keep it, and their responses are complete.
        assert server.stop() == 0
        for each in viewers[1:]:
            while each.chunk(each.head_of_events):
                pass
            each.at_end()
    assert "ERROR" not in server.log, server.log
