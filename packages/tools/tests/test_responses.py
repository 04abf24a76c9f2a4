"""The texts of `tailrace top` about endpoints, and slow and broken responses."""

import re

import pytest
from package.in_status import ended, endpoint
from tailrace_tools.live import responses as texts

from tailrace.status import responses


def test_the_texts_for_a_terminal_have_a_line_for_each_with_what_to_fix():
    found = {
        **responses.endpoints([[endpoint("GET /worst", delivery_ns=10**9, paths={"direct": 1})]], "shop:app"),
        **responses.recent([{"slow": [ended(ago=1.0)], "broken": []}], "shop:app"),
    }
    head, worst, finding = texts.endpoint_text(found, 400).splitlines()
    assert worst.split() == ["1.000", "1", "1.00", "1.01", "0.00", "1.0", "direct", "GET", "/worst"]
    assert all(title in head for title in ("cost, s", "mean, ms", "p95, ms", "app, ms"))
    assert (head.split(",")[0].strip(), finding.strip().partition(":")[0]) == ("cost", "starving")
    assert "starving: After its first block, a response occupied a thread for 1,000 ms" in finding
    slow = texts.recent_text(found, 158)
    assert "  GET /report?x=1\n" in slow
    assert "worker 1: 200 complete; queued 1.00 ms, application 2.50 s, iterating 250.00 ms" in slow
    said = "before-first-block: The application took 2,500 ms until its first block. Find out where it spends the "
    assert said in slow
    assert "no response was broken" in slow
    assert texts.endpoint_text({"endpoints": []}, 78) == "the application has not sent any response yet"


LONG = "POST /warehouse/inventory/reports/quarterly-summary-of-deliveries/*/lines/*/attachments/*.pdf"


def shown(width):
    """The endpoints: one with a long path, one whose figures are long, one with something to fix."""
    made = [
        endpoint(LONG, responses=3),
        endpoint("GET /", responses=12_345_678, application_ns=10**17, delivery_ns=10**17, total_ns=10**17),
        endpoint("GET /worst", delivery_ns=10**9, paths={"direct": 1}),
    ]
    return texts.endpoint_text(responses.endpoints([made], "shop:app"), width).splitlines()


@pytest.mark.parametrize("width", [78, 98, 158, 238])
def test_the_endpoints_fit_the_terminal_with_whole_paths_and_aligned_columns(width):
    lines = shown(width)
    assert max(map(len, lines)) <= width
    assert LONG.replace(" ", "") in "".join(lines).replace(" ", "")
    # Each figure ends where its title ends.
    (head,) = (line for line in lines if "cost, s" in line)
    rows = [line for line in lines if re.match(r" *[\d,]+\.\d{3} ", line)]
    assert len(rows) == 3
    for title in ("cost, s", "responses", "mean, ms", "p95, ms", "app, ms", "calls"):
        end = head.index(title) + len(title)
        assert all(re.match(r"\S( |$)", row[end - 1 : end + 1]) for row in rows), (title, lines)


def test_a_path_stands_beside_the_figures_where_there_is_room_and_else_above_them():
    for width, is_beside in ((78, False), (158, True)):
        assert any(re.match(r" *[\d,]+\.\d{3} .* GET /worst$", line) for line in shown(width)) == is_beside
        assert ("GET /worst" in shown(width)) != is_beside
