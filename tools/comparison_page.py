"""Writes the pages of docs/comparison/, the README's chart and the figures of the first screens from
docs/comparison/results.json, and takes the directories of the machine out of it; `--check` only checks whether they are
up to date.

python tools/comparison_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tailrace_compare.report import readme_chart
from tailrace_compare.report.headline import headline
from tailrace_compare.report.markdown import markdown
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
        **pages(markdown(Run.of(document), RESULTS.name)),
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


def pages(report: str) -> dict[Path, str]:
    """The report as pages: the summary, and one for each section."""
    summary, *sections = re.split(r"^## ", report, flags=re.MULTILINE)
    title, rest = summary.split("\n", 1)
    image = f"\n![Time per response by shape and server](../{CHART})\n"
    found = {}
    lines = []
    for section in sections:
        name, text = section.split("\n", 1)
        path = RESULTS.parent / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.md"
        found[path] = f"# {name}\n{text.rstrip()}\n"
        count = text.count("<summary>")
        lines.append(f"- [{name}]({path.name})" + (f": {count} experiment{'s' * (count > 1)}" if count else ""))
    listed = "\n".join(lines)
    return {RESULTS.parent / "index.md": f"{title}\n{image}{rest.rstrip()}\n\n## Figures\n\n{listed}\n", **found}


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
