"""The manual's web site: its navigation, and tools/check_site.py, which finds what a page loads from other hosts."""

import re

import pytest
from harness.pages import DOCS, ROOT
from harness.programs import module_of


def navigation():
    """The pages that mkdocs.yml names, in their order."""
    text = (ROOT / "mkdocs.yml").read_text()
    return re.findall(r"^ +- (?:.+: )?(\S+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)


def test_every_page_is_in_the_navigation_once_but_those_for_contributors():
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    left_out = [page for page in pages if page == "architecture.md" or page.startswith("internals/")]
    assert len(left_out) > 3
    assert sorted([*navigation(), *left_out]) == sorted(pages)


INSTALLING = [DOCS / "index.md", DOCS / "tutorial.md", *sorted((DOCS / "coming-from").glob("*.md"))]


@pytest.mark.parametrize("page", INSTALLING, ids=lambda page: page.name)
def test_a_page_that_begins_with_an_installation_says_how_until_the_first_release(page):
    text = page.read_text()
    assert text.index("install.md#from-source") < text.index("pip install") + 1000


check_site = module_of("tools/check_site.py")


@pytest.mark.parametrize(
    ("text", "suffix", "found"),
    [
        ('<script src="https://cdn.example/a.js"></script>', ".html", ["https://cdn.example/a.js"]),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', ".html", ["//fonts.example/a.css"]),
        ('<link rel="preconnect" href="https://fonts.example">', ".html", ["https://fonts.example"]),
        ('<link rel="canonical" href="https://tailrace.example/">', ".html", []),
        ('<img src="images/a.svg"><script src="../assets/a.js"></script>', ".html", []),
        ('<a href="https://peps.python.org/">PEP</a>', ".html", []),
        ("@font-face{src:url(https://fonts.example/a.woff2)}", ".css", ["https://fonts.example/a.woff2"]),
        ("body{background:url(../images/a.png)}", ".css", []),
    ],
)
def test_what_a_page_loads_from_other_hosts_is_found(check_site, text, suffix, found):
    assert check_site.external(text, suffix) == found


def test_a_site_without_pages_is_a_failure(check_site, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check_site, "SITE", tmp_path)
    assert check_site.main() == 1
    (tmp_path / "index.html").write_text('<img src="a.png">')
    (tmp_path / "index.md").write_text("# Tailrace\n")
    (tmp_path / "llms.txt").write_text("- [Tailrace](index.md): a server\n")
    assert check_site.main() == 0
    (tmp_path / "llms.txt").write_text("- [Tailrace](index.md): a server\n- [Gone](gone.md): no page\n")
    assert check_site.main() == 1
    assert "gone.md: a page that llms.txt lacks" in capsys.readouterr().out
    (tmp_path / "llms.txt").write_text("- [Tailrace](index.md): a server\n")
    (tmp_path / "other.html").write_text('<img src="http://host.example/a.png">')
    assert check_site.main() == 1
    assert "other.html: loads http://host.example/a.png" in capsys.readouterr().out
