"""The texts of `tailrace top` about endpoints, and slow and broken responses."""

from package.in_status import ended, endpoint
from tailrace_tools.live import responses as texts

from tailrace.status import responses


def test_the_texts_for_a_terminal_have_a_line_for_each_with_what_to_fix():
    found = {
        **responses.endpoints([[endpoint("GET /worst", delivery_ns=10**9, paths={"direct": 1})]], "shop:app"),
        **responses.recent([{"slow": [ended(ago=1.0)], "broken": []}], "shop:app"),
    }
    head, worst, finding = texts.endpoint_text(found).splitlines()
    assert worst.split() == ["1.000", "1", "1.00", "1.01", "0.00", "1.0", "direct", "GET", "/worst"]
    assert all(f" {title}" in head for title in ("cost, s", "mean, ms", "p95, ms", "app, ms"))
    assert (head.split(",")[0].strip(), finding.strip().partition(":")[0]) == ("cost", "starving")
    assert "starving: After its first block, a response occupied a thread for 1,000 ms" in finding
    slow = texts.recent_text(found)
    assert "  GET /report?x=1\n" in slow
    assert "worker 1: 200 complete; queued 1.00 ms, application 2.50 s, iterating 250.00 ms" in slow
    said = "before-first-block: The application took 2,500 ms until its first block. Find out where it spends the "
    assert said in slow
    assert "no response was broken" in slow
    assert texts.endpoint_text({"endpoints": []}) == "the application has not sent any response yet"
