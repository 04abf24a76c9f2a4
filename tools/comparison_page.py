"""Writes the two pages of docs/comparison/, the README's chart and the figures of the first screens from
docs/comparison/results.json, and takes the directories of the machine out of it; `--check` only checks whether they are
up to date.

python tools/comparison_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tailrace_compare.peers import is_ours
from tailrace_compare.report import readme_chart
from tailrace_compare.report.headline import headline
from tailrace_compare.report.markdown import figures, summary
from tailrace_compare.report.run import Run

DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS = DOCS / "comparison" / "results.json"
CHART = "images/shapes.svg"
FIRST_SCREENS = (DOCS.parent / "README.md", DOCS / "index.md")
FIGURES = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def main() -> int:
    """Returns the exit status: 1 where a file is not up to date."""
    document = json.loads(neutral(RESULTS.read_text("utf-8")))
    texts = {
        **pages(document),
        DOCS / CHART: readme_chart(document),
        **{path: with_figures(path.read_text("utf-8"), headline(document)) for path in FIRST_SCREENS},
        RESULTS: json.dumps(document, separators=(",", ":")) + "\n",
    }
    if "--check" not in sys.argv[1:]:
        for path, text in texts.items():
            path.write_text(text, "utf-8")
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    stale += sorted(set(RESULTS.parent.glob("*.md")) - set(texts))
    if stale:
        names = ", ".join(str(path.relative_to(DOCS.parent)) for path in stale)
        print(f"{names}: out of date; run `python tools/comparison_page.py`, and delete what it does not write")
    return bool(stale)


def pages(document: dict[str, Any]) -> dict[Path, str]:
    """The summary, and the figures."""
    run = Run.of({**document, "versions": described(document["versions"])})
    links = f"""
[All figures](figures.md) lists every experiment, the goals of Tailrace, and the version and command of each server.
[How servers are compared](../benchmarks.md) explains the method and its limits, and how to measure your own
application. The figures of every round are in [{RESULTS.name}]({RESULTS.name}).
"""
    return {
        RESULTS.parent / "index.md": summary(run, f"../{CHART}") + links,
        RESULTS.parent / "figures.md": f"# All figures of the comparison\n\n{figures(run, RESULTS.name)}",
    }


def described(versions: dict[str, str]) -> dict[str, str]:
    """The versions; one of Tailrace that was never released is called so."""
    released = re.findall(r"^## \[(\d\S*)\]", (DOCS.parent / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    unknown = {name: text for name, text in versions.items() if is_ours(name) and text not in released}
    return {
        **versions,
        **{name: f"{text}, a development version before the first release" for name, text in unknown.items()},
    }


def with_figures(text: str, figures: str) -> str:
    """The text of a page with these figures in their place."""
    if not FIGURES.search(text):
        raise ValueError("a page has no place for its figures")
    return FIGURES.sub(lambda place: f"{place[1]}{figures}\n\n{place[2]}", text)


def neutral(text: str) -> str:
    """The text without this machine's directories."""
    for directory, name in ((sys.prefix, ".venv"), (str(Path.home()), "~")):
        text = text.replace(directory, name)
    return text


if __name__ == "__main__":
    sys.exit(main())
