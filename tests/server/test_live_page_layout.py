"""The layout of the live page under load, in Chromium: no text is cut, printed over another one, or outside the window,
at any width and in both schemes."""

import pytest
from package.in_status import ended, endpoint, worker
from server.test_live_page import PATHS, opened, show, watching  # noqa: F401 - `show` is a fixture

from tailrace.status import state

SCHEMES = ["light", "dark"]
LONG = (
    "/warehouse/inventory/reports/quarterly-summary-of-deliveries?from=2026-01-01&to=2026-03-31&group=supplier&page=12"
)
TARGETS = [LONG, "/", "/products/1483", f"/{'a' * 100}", "/search?q=garden+chair"]

# Every piece of text that is seen, as [description, left, top, right, bottom], one for each line of a text node; and
# what is wrong with it.
MEASURE = """
(() => {
  const wrong = [];
  const pieces = [];
  const seen = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const what = (node) => {
    const near = node.closest("section, header, figure, nav, footer");
    const within = near?.id || near?.className || near?.localName || "";
    return `${within}: ${node.localName}.${node.className?.baseVal ?? node.className}`;
  };
  const silent = ".hidden, .skip, noscript, script, style, option, [hidden], title, .tip, [role=tooltip]";
  const skipped = (node) => node.closest(silent);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    const parent = text.parentElement;
    if (!text.data.trim() || skipped(parent) || !seen(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const rect of range.getClientRects()) {
      if (rect.width < 1) continue;
      const name = `${what(parent)} "${text.data.trim().slice(0, 30)}"`;
      pieces.push([name, rect.left, rect.top, rect.right, rect.bottom]);
      if (rect.left < -1 || rect.right > innerWidth + 1) wrong.push(`outside the window: ${name}`);
      for (let at = parent; at && at !== document.body; at = at.parentElement) {
        if (!/hidden|clip|auto|scroll/.test(getComputedStyle(at).overflow)) continue;
        const box = at.getBoundingClientRect();
        const isWide = rect.left < box.left - 1 || rect.right > box.right + 1;
        if (isWide || rect.top < box.top - 3 || rect.bottom > box.bottom + 3) wrong.push(`cut by ${what(at)}: ${name}`);
      }
    }
  }
  const texts = "td, th, dt, dd, dfn, p, h1, h2, h3, button, label, a, li, summary, span";
  for (const node of document.querySelectorAll(texts)) {
    if (skipped(node) || !seen(node) || !node.textContent.trim() || !node.clientWidth) continue;
    const text = node.textContent.trim().slice(0, 30);
    if (node.scrollWidth > node.clientWidth + 1) wrong.push(`cut: ${what(node)} "${text}"`);
  }
  pieces.forEach(([one, left, top, right, bottom], place) => {
    for (const [other, from, above, to, below] of pieces.slice(place + 1)) {
      if (Math.min(right, to) - Math.max(left, from) > 1.5 && Math.min(bottom, below) - Math.max(top, above) > 3) {
        wrong.push(`overprinted: ${one} and ${other}`);
      }
    }
  });
  for (const table of document.querySelectorAll("tr, dl")) {
    const boxes = Array.from(table.children).filter(seen).map((cell) => cell.getBoundingClientRect());
    boxes.forEach((one, place) => {
      for (const other of boxes.slice(place + 1)) {
        const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (wide > 1 && high > 1) wrong.push(`cells overlap: ${what(table)}`);
      }
    });
  }
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page is wider than the window");
  return [pieces.length, [...new Set(wrong)]];
})()
"""


def counters(number):
    """The counters of a busy worker."""
    return {
        "requests": 1_234_567 + 900 * number,
        "accepted": 45_678 + number,
        "running": 4,
        "queued": 12,
        "connections": 1_234,
        "client_memory": 123_456_789,
        "heads": 1_234_567,
        "buffered": 98_765_432,
        "bodies": 12_345_678,
        "refused": 123_456,
        "timed_out": 1_234,
        "given_up": 12_345,
        "stuck": 2,
    }


def delivered(number):
    """What has been delivered after so many seconds."""
    return {
        "total": {"0.001007080078125": 800 * number, "3.0625": 100 * number, "sum_ns": 310 * 10**9 * number},
        "queued": {"0.001007080078125": 900 * number, "sum_ns": 10**9 * number},
        "application": {"2.5": 900 * number, "sum_ns": 10**11 * number},
        "classes": {"2xx": 890 * number, "5xx": 10 * number},
        "paths": dict.fromkeys(PATHS, 150 * number),
    }


def loaded(show):  # noqa: F811
    """A server under load: what `show` gives of it."""
    clients = ("192.0.2.17:51432", "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535")
    requests = [
        {
            "id": number,
            "thread": 4_000_000 + number,
            "method": "DELETE" if number % 5 == 4 else "GET",
            "target": TARGETS[number % len(TARGETS)],
            "client": clients[number % 2],
            "request_id": f"01999999-1234-7abc-8def-{number:012}",
            "phase": "sending" if number % 4 == 3 else "running",
            "seconds": 1234.5 / (number + 1),
        }
        for number in range(40)
    ]
    endpoints = [
        endpoint(
            f"GET {TARGETS[number % len(TARGETS)].partition('?')[0]}{number}",
            responses=10**9 // (number + 1),
            application_ns=10**15,
            delivery_ns=10**13,
            total_ns=10**15,
            times={"3.0625": 10**6},
            failed=10**4 * (number % 2),
            slow=123_456,
            writes=10**10,
            body_bytes=10**13,
            blocks=10**12,
            paths={PATHS[number % len(PATHS)]: 10**9 // (number + 1)},
        )
        for number in range(25)
    ]
    slow = [ended(LONG if number % 2 else "/report/monthly", total=4.5, ago=float(number)) for number in range(9)]
    broken = [
        ended("/checkout", ending="broken", application=0.01, total=0.02),
        ended("/checkout/confirm", status=500, application=0.01, total=0.02),
        ended(LONG, ending="timed-out", status=0),
    ]
    return show(
        *(worker(number, pid=4_000_000 + number) for number in range(1, 4)),
        worker(4, state.DRAINING, pid=4_000_004),
        places=[counters(0)] * 4,
        requests=requests,
        endpoints=endpoints,
        recent={"slow": slow, "broken": broken},
        delivered=delivered(1),
        application="a_package_with_a_long_name.and_a_module:application",
        restarts={"crash": 12, "max_requests": 345, "stuck_thread": 2},
    )


@pytest.fixture
def under_load(browser, show):  # noqa: F811
    """Opens the page of a server under load at a width, once its rates are known; gives what was measured."""

    def measured(width, scheme):
        shown, address = loaded(show)
        browser.emulate(width=width, height=900, scheme=scheme)
        opened(browser, address)
        for number in range(1, 4):
            shown.board.places = [counters(number)] * 4
            shown.board.delivered = delivered(10 * number)
            heard = browser.value("heard")
            watching(browser, f"heard > {heard}", "the next state")
        watching(browser, "document.querySelectorAll('#flights tr.row').length > 9", "the requests in flight")
        return shown

    return measured


@pytest.mark.parametrize("width", [390, 1280, 1920, 2560])
def test_the_head_of_the_page_begins_and_ends_where_the_content_does(browser, show, width):  # noqa: F811
    _, address = loaded(show)
    browser.emulate(width=width, height=900)
    opened(browser, address)
    watching(browser, "document.querySelectorAll('#flights tr.row').length > 9", "the requests in flight")
    box = "document.querySelector('SELECTOR').getBoundingClientRect()"
    edges = f"[Math.round({box}.left), Math.round({box}.right)]"
    content = browser.value(edges.replace("SELECTOR", "#endpoints-section"))
    for selector in (".bar", "#server", ".sections", "footer p"):
        assert browser.value(edges.replace("SELECTOR", selector)) == content, selector


@pytest.mark.nightly(gate=4)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("width", "height"), [(360, 7300), (390, 6800), (768, 5400), (1280, 3100)])
def test_no_text_is_cut_overprinted_or_outside_the_window(browser, under_load, width, height, scheme):
    under_load(width, scheme)
    assert browser.value("document.documentElement.scrollHeight") < height
    number, wrong = browser.value(MEASURE)
    # What is measured is there: the names and values of ten requests and of the other tables.
    assert number > 300
    assert wrong == []
    # Ten rows of each table are shown until all are asked for.
    rows = "['endpoints', 'flights'].map(id => document.querySelectorAll(`#${id} tr.row`).length)"
    assert browser.value(rows) == [10, 10]
    browser.click("#endpoints-section .more", loads=False)
    browser.click("#requests .more", loads=False)
    assert browser.value(rows) == [20, 40]
    for table in ("endpoints", "slow", "broken"):
        browser.click(f"#{table} .open", loads=False)
    assert browser.value("document.querySelectorAll('.findings').length") == 3
    # The head of the page stays over what is scrolled.
    browser.value("scrollTo(0, 0)")
    assert browser.value(MEASURE)[1] == []
    assert browser.problems == []
