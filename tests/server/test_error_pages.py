"""The pages that Tailrace itself makes, in Chromium: on a phone and on a desk, in light and dark colors."""

import re

import pytest
from harness.addresses import free_address
from harness.server import Server

from tailrace.errors import LoadError
from tailrace.worker.broken import broken

APP = """
def app(environ, start_response):
    raise ValueError("a value that does not fit: " + "<b>" * 200)
"""
TRACE = 'Traceback (most recent call last):\n  File "shop.py", line 1\n    ' + "x" * 900 + "\nNameError: x\n"
MAX_REFUSAL = 500
STYLE = re.compile(r"<style>(.*)</style>")


@pytest.fixture(scope="module")
def debugged(tmp_path_factory):
    """A server with `--debug` whose application raises."""
    directory = tmp_path_factory.mktemp("debugged")
    (directory / "app.py").write_text(APP)
    with Server("app:app", "--debug", directory=directory, address=free_address()) as server:
        yield server


@pytest.fixture
def addresses(debugged, serve):
    """Of each page."""
    does_not_load = serve(broken(LoadError("importing 'shop' failed: NameError", TRACE)))
    long = f"{debugged.address.url}/{'a' * 9000}"
    return {"traceback": debugged.address.url, "refusal": long, "broken": does_not_load.url}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_no_page_is_wider_than_the_window_and_its_colors_are_those_of_the_reader(browser, addresses, width, scheme):
    browser.emulate(width=width, scheme=scheme)
    for name, url in addresses.items():
        browser.open(url)
        assert browser.value("document.querySelector('h1').textContent")
        assert browser.value("[innerWidth, document.documentElement.scrollWidth]") == [width, width], name
        # The canvas is black or nearly so only in the dark scheme.
        is_dark = browser.value("getComputedStyle(document.documentElement).color") == "rgb(255, 255, 255)"
        assert is_dark == (scheme == "dark"), name
        if name != "refusal":
            # A long line is read by scrolling its block.
            box = "(box => [box.scrollWidth > box.clientWidth, box.getBoundingClientRect().right <= innerWidth])"
            assert browser.value(f"{box}(document.querySelector('pre'))") == [True, True], name


def test_pages_share_a_style_load_nothing_and_a_refusal_is_small(debugged, addresses):
    refusal = debugged.get(f"/{'a' * 9000}").body.decode()
    traceback = debugged.get("/").body.decode()
    page = b"".join(broken(LoadError("no", TRACE))({"HTTP_ACCEPT": "text/html"}, lambda *_given: None)).decode()
    assert STYLE.findall(refusal) == STYLE.findall(traceback) == STYLE.findall(page) != []
    assert len(refusal) < MAX_REFUSAL
    assert "<b>" not in traceback
    for each in (refusal, traceback, page):
        assert not re.search(r"src=|href=|url\(|@import", each)
