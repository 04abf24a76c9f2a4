"""`--static-listing`: a page with the files of a folder, over a socket and in a browser."""

import base64
import hashlib
import html
import os
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from harness.browser import contrast
from harness.server import Server

NAMES = [
    "a b.txt",
    "<script>document.title='taken'",
    "<img src=x onerror=document.title='taken'>",
    "javascript:alert(1)",
    "\"quoted' &amp; name",
    "100%.txt",
    "q?x=1#y",
    "~tilde;v=1",
    "\u00e4\u65e5\u672c.txt",
    "evil\u202egpj.exe",
    "l" * 250 + ".txt",
]


@pytest.fixture
def folder(tmp_path):
    for name in ("sub", "sub/deep", "with index", ".well-known"):
        (tmp_path / name).mkdir()
    (tmp_path / "with index" / "index.html").write_text("the index")
    (tmp_path / "sub" / "inner.txt").write_text("inner")
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_text("x" * (number + 1) * 700)
        os.utime(tmp_path / name, (1_700_000_000 - number, 1_700_000_000 - number))
    return tmp_path


def server(folder, *arguments, prefix="/files"):
    return Server("echo:app", "--static", f"{prefix}={folder}", "--static-listing", *arguments)


def links(page):
    """The links of the rows."""
    return [html.unescape(href) for href in re.findall(r'<tr><td><a href="([^"]*)"', page)]


def test_a_folder_without_an_index_file_has_a_page(folder):
    with server(folder) as serving:
        response = serving.get("/files/")
        assert response.status == 200
        assert response["Content-Type"] == "text/html; charset=utf-8"
        assert response["Cache-Control"] == "no-cache"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert serving.get("/files/with%20index/").body == b"the index"
        redirect = serving.get("/files/sub")
        assert (redirect.status, redirect["Location"]) == (301, "/files/sub/")
        with serving.client() as client:
            client.send(b"HEAD /files/ HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            head = client.response("HEAD")
            assert head["Content-Length"] == response["Content-Length"]
            client.at_end()


def test_every_shown_file_is_served_under_its_link(folder):
    with server(folder) as serving:
        found = links(serving.get("/files/").body.decode())
        assert len(found) == len(NAMES) + 3
        for href in found:
            assert href.startswith("./")
            path = urljoin("http://test/files/", href).removeprefix("http://test")
            assert path.startswith("/files/")
            # An empty folder has a page, too.
            assert serving.get(path).status == 200, path


def test_what_would_be_refused_is_not_shown(folder):
    (folder / ".env").write_text("secret")
    (folder / "line\nfeed").write_text("x")
    (folder / "back\\slash").write_text("x")
    (folder / os.fsdecode(b"\xff\xfe")).write_text("x")
    (folder / "away").symlink_to("/etc/hostname")
    (folder / "gone").symlink_to("absent")
    (folder / "near").symlink_to("a b.txt")
    os.mkfifo(folder / "pipe")
    with server(folder) as serving:
        page = serving.get("/files/").body
        shown = links(page.decode())
        assert "./near" in shown
        assert "./.well-known/" in shown
        assert len(shown) == len(NAMES) + 4
        for name in (b".env", b"feed", b"slash", b"away", b"gone", b"pipe"):
            assert name not in page
    with server(folder, "--static-symlinks", "never", "--static-dotfiles", "all") as serving:
        shown = links(serving.get("/files/").body.decode())
        assert "./near" not in shown
        assert "./.env" in shown


def test_names_are_text(folder):
    with server(folder) as serving:
        page = serving.get("/files/").body.decode()
        assert "<script" not in page
        assert "<img" not in page
        assert "\u202e" not in page
        assert "evil[U+202E]gpj.exe" in page
        assert "./javascript:alert(1)" in links(page)


def test_the_page_may_use_its_own_style_and_nothing_else(folder):
    with server(folder) as serving:
        response = serving.get("/files/")
        style = re.search(rb"<style>(.*?)</style>", response.body, re.DOTALL)
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(style[1]).digest()).decode()
        policy = [each.strip() for each in response["Content-Security-Policy"].split(";")]
        assert policy == [
            "default-src 'none'",
            f"style-src 'sha256-{digest}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]


def test_links_sort_and_lead_up_to_the_top(folder):
    for name, size in {"b": 3, "a": 2, "c": 1}.items():
        (folder / "sub" / name).write_text("x" * size)
    with server(folder) as serving:

        def order(query=""):
            return links(serving.get(f"/files/sub/{query}").body.decode())

        assert order() == ["../", "./deep/", "./a", "./b", "./c", "./inner.txt"]
        assert order("?sort=name&order=desc") == ["../", "./deep/", "./inner.txt", "./c", "./b", "./a"]
        assert order("?sort=size") == ["../", "./deep/", "./c", "./a", "./b", "./inner.txt"]
        assert order("?sort=size&order=desc") == ["../", "./deep/", "./inner.txt", "./b", "./a", "./c"]
        assert order("?sort=x%22%3E") == order()
        assert "../" not in links(serving.get("/files/").body.decode())


def test_a_folder_with_too_many_files_says_so(tmp_path):
    for number in range(10_001):
        (tmp_path / f"{number:05}").touch()
    with server(tmp_path, prefix="/") as serving:
        page = serving.get("/").body.decode()
        assert len(links(page)) == 10_000
        assert "10,000 files. More entries are not shown." in page
        (tmp_path / "00000").unlink()
        page = serving.get("/").body.decode()
        assert len(links(page)) == 10_000
        assert "More entries" not in page


def test_overlays_and_servers_without_the_option_list_nothing(folder):
    with Server("echo:app", "--static", f"/files={folder}") as serving:
        assert serving.get("/files/").status == 404
    with Server("echo:app", "--overlay", str(folder), "--static-listing") as serving:
        response = serving.get("/sub/")
        assert response["Content-Type"] == "application/json"


# In a browser.

ROWS = "Array.from(document.querySelectorAll('tbody a'), link => link.textContent)"


def test_a_click_sorts_and_another_one_opens_a_folder(folder, browser):
    with server(folder) as serving:
        browser.open(f"{serving.url}/files/")
        assert len(browser.value(ROWS)) == len(NAMES) + 3
        assert browser.value("document.title") == "/files/"
        assert browser.value("document.scripts.length") == 0
        browser.click("th:nth-child(2) a")
        assert browser.value("location.search") == "?sort=size&order=asc"
        assert browser.value(ROWS)[3:] == [name.replace("\u202e", "[U+202E]") for name in NAMES]
        browser.click("th:nth-child(2) a")
        assert browser.value("location.search") == "?sort=size&order=desc"
        assert browser.value("document.querySelector('[aria-sort]').ariaSort") == "descending"
        browser.click("a[href='./sub/']")
        assert browser.value("location.pathname") == "/files/sub/"
        assert browser.value(ROWS) == ["../", "deep/", "inner.txt"]
        browser.click("tbody a")
        assert browser.value("location.pathname") == "/files/"
        # The style is not refused, and nothing else was asked for.
        assert browser.value("getComputedStyle(document.querySelector('table')).borderCollapse") == "collapse"
        assert browser.problems == []


def test_the_keyboard_reaches_every_link(folder, browser):
    with server(folder) as serving:
        browser.open(f"{serving.url}/files/sub/")
        reached = []
        for _ in range(5):
            browser.press("Tab", 9)
            reached.append(browser.value("document.activeElement.textContent.trim()"))
        assert [text.split()[0] for text in reached] == ["Name", "Size", "Modified", "../", "deep/"]
        browser.enter()
        assert browser.value("location.pathname") == "/files/sub/deep/"


@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (1000, "dark"), (360, "light"), (360, "dark")])
def test_the_page_fits_the_window_and_its_text_is_readable(folder, browser, width, scheme):
    with server(folder) as serving:
        browser.emulate(width=width, scheme=scheme)
        browser.open(f"{serving.url}/files/")
        assert browser.value("document.documentElement.scrollWidth") <= width
        colors = {
            element: tuple(map(int, re.findall(r"\d+", browser.value(f"getComputedStyle({element}).color"))))
            for element in ("document.body", "document.querySelector('a')", "document.querySelector('td+td')")
        }
        back = tuple(map(int, re.findall(r"\d+", browser.value("getComputedStyle(document.body).backgroundColor"))))
        assert (sum(back) > 600) == (scheme == "light")
        for element, color in colors.items():
            assert contrast(color, back) >= 4.5, (element, color, back)
        if chosen := os.environ.get("LISTING_SCREENSHOTS"):
            Path(chosen, f"{width}-{scheme}.png").write_bytes(browser.screenshot())
