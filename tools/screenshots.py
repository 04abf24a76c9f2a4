"""Takes screenshots of what people look at: the live page of a server under load, and pages of the manual's site.

python tools/screenshots.py FOLDER [--seconds 20] [--only status|site]

The live page is taken whole, in light and dark colors and three widths; the site's pages are those that `make site`
has built, as wide as a phone and as a desk. Look at each. Needs Chromium and the tests' harness.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from status_screenshots import ROOT, Browser, Chromium, under_load, until

WIDTHS: Final = (390, 768, 1280)
SCHEMES: Final = ("light", "dark")
# Pages of the site: a start, a guide, wide tables, long code, a chart.
PAGES: Final = ("index", "tutorial", "options", "status", "comparison/figures")
SITE_WIDTHS: Final = (390, 1280)
# Pixels of a page beyond which no more is seen.
TALLEST: Final = 4000


def capture(browser: Browser, path: Path) -> None:
    """Writes the whole page, not only what fits the window, and prints its size."""
    size = browser.call("Page.getLayoutMetrics")["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], TALLEST), "scale": 1}
    path.write_bytes(browser.screenshot(format="png", captureBeyondViewport=True, clip=clip))
    print(f"{path}: {size['width']:g} x {size['height']:g} px")


def take_status(browser: Browser, folder: Path, seconds: float) -> None:
    """The live page of a server that has been under load for this long."""
    with under_load() as url:
        time.sleep(seconds)
        for scheme in SCHEMES:
            for width in WIDTHS:
                browser.emulate(width=width, height=900, scheme=scheme)
                browser.open(url)
                until(browser, "latest && samples.list.length > 2 && workers.before.size === latest.workers.length")
                # The second state makes every rate known.
                time.sleep(1.5)
                capture(browser, folder / f"status-{width}-{scheme}.png")


def take_site(browser: Browser, folder: Path, site: Path) -> None:
    """Pages of the manual, as a web server sends them: its search does not work in files."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        take_pages(browser, folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing of it."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


def take_pages(browser: Browser, folder: Path, url: str) -> None:
    """Each page, at each width, in both schemes."""
    for page in PAGES:
        for width in SITE_WIDTHS:
            for scheme in SCHEMES:
                browser.emulate(width=width, height=900, scheme=scheme)
                browser.open(f"{url}/{page}.html")
                # The pages remember the colors of the first one.
                browser.value("localStorage.clear()")
                browser.open(f"{url}/{page}.html")
                # Their script sets the height of the menu.
                time.sleep(0.3)
                capture(browser, folder / f"site-{page.replace('/', '-')}-{width}-{scheme}.png")


def main() -> int:
    """Takes them."""
    parser = argparse.ArgumentParser(description="Takes screenshots of the live page and of the manual's site.")
    parser.add_argument("folder", type=Path, help="where the images are written")
    parser.add_argument("--seconds", type=float, default=20, help="how long the load lasts before (default: 20)")
    parser.add_argument("--only", choices=("status", "site"), help="take only these")
    chosen = parser.parse_args()
    site = ROOT / "site"
    if chosen.only != "status" and not (site / "index.html").exists():
        print(f"{site} has no page: run `make site`", file=sys.stderr)
        return 1
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, Chromium(Path(profile)) as chromium:
        browser = Browser(chromium)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        if chosen.only != "site":
            take_status(browser, chosen.folder, chosen.seconds)
        if chosen.only != "status":
            take_site(browser, chosen.folder, site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
