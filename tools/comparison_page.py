"""Writes docs/comparison.md and the README's chart from docs/comparison/results.json, and takes the directories of the
machine out of it; `--check` only checks whether they are up to date.

python tools/comparison_page.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tailrace.compare.report import readme_chart
from tailrace.compare.report.markdown import markdown
from tailrace.compare.report.run import Run

DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS = DOCS / "comparison" / "results.json"
CHART = "images/shapes.svg"


def main() -> int:
    """Returns the exit status: 1 where a file is not up to date."""
    document = json.loads(neutral(RESULTS.read_text("utf-8")))
    title, rest = markdown(Run.of(document), f"{RESULTS.parent.name}/{RESULTS.name}").split("\n", 1)
    image = f"\n![Time per response by shape and server]({CHART})\n"
    texts = {
        DOCS / "comparison.md": f"{title}\n{image}{rest}",
        DOCS / CHART: readme_chart(document),
        RESULTS: json.dumps(document, separators=(",", ":")) + "\n",
    }
    if "--check" not in sys.argv[1:]:
        for path, text in texts.items():
            path.write_text(text, "utf-8")
        return 0
    stale = [path.name for path, text in texts.items() if path.read_text("utf-8") != text]
    if stale:
        print(f"{', '.join(stale)}: out of date; run `python tools/comparison_page.py`", file=sys.stderr)
    return bool(stale)


def neutral(text: str) -> str:
    """The text without this machine's directories."""
    for directory, name in ((sys.prefix, ".venv"), (str(Path.home()), "~")):
        text = text.replace(directory, name)
    return text


if __name__ == "__main__":
    sys.exit(main())
