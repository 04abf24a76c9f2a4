"""Checks that the built manual loads nothing from other hosts, so that it can be read offline, and lists its pages.

python tools/check_site.py
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

SITE: Final = Path(__file__).resolve().parent.parent / "site"
# Attributes with which an element loads a resource. A link that the reader follows (`a href`) loads nothing.
_LOADS: Final = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
}
# Relations of a `link` that load nothing.
_LOADS_NOTHING: Final = {"canonical", "next", "prev", "alternate"}
_STYLE_URL: Final = re.compile(r"(?:url\(|@import)\s*[\"']?(?P<url>(?:https?:)?//[^\"')\s]+)")


class _Resources(HTMLParser):
    """Collects the addresses of what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element of the page."""
        given = {name: value for name, value in attrs if value}
        if tag == "link" and not _LOADS_NOTHING & set(given.get("rel", "").split()):
            self.found.append(given.get("href", ""))
        self.found += [given[name] for name in _LOADS.get(tag, ()) if name in given]


def external(text: str, suffix: str) -> list[str]:
    """What a page or a style sheet loads from other hosts."""
    if suffix == ".css":
        return [found["url"] for found in _STYLE_URL.finditer(text)]
    resources = _Resources()
    resources.feed(text)
    return [address for address in resources.found if urlsplit(address.strip()).netloc]


def main() -> int:
    """Prints a line for each; 1 when there is any."""
    pages = [path for path in sorted(SITE.rglob("*")) if path.suffix in (".html", ".css")]
    if not pages:
        print(f"{SITE} has no page: run `make site`")
        return 1
    found = [(path, each) for path in pages for each in external(path.read_text(), path.suffix)]
    for path, address in found:
        print(f"{path.relative_to(SITE)}: loads {address}")
    listed = re.findall(r"^- \[.*?\]\((\S+?)\)", (SITE / "llms.txt").read_text(), re.MULTILINE)
    unlisted = sorted({str(path.relative_to(SITE)) for path in SITE.rglob("*.md")} ^ set(listed))
    for name in unlisted:
        print(f"{name}: a page that llms.txt lacks, or lists in vain")
    return 1 if found or unlisted or not listed else 0


if __name__ == "__main__":
    sys.exit(main())
