"""Writes tools/distribution/description.md from README.md; `--check` only says whether it is up to date.

    python tools/description.py [--check]

An index has none of our files: links go to the addresses in pyproject.toml. What README.md marks as `only in the
repository` is left out, and commands install from the index.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "tools/distribution/description.md"
_LEFT_OUT: Final = re.compile(r"<!-- only in the repository -->\n.*?<!-- end -->\n\n?", re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->\n", re.DOTALL)
_LINK: Final = re.compile(r"\]\((?!https?://)([^)#]*)(#[^)]*)?\)")
# Its name there is that of the page.
_PAGE: Final = re.compile(r"\[docs/([\w-]+)[.]md(?=\]\()")
_INSTALL: Final = re.compile(r"(pip install )('?)\.(?=[\[\s`]|$)", re.MULTILINE)


def addresses(project: str) -> dict[str, str]:
    """[project.urls] of pyproject.toml."""
    table = project.partition("[project.urls]\n")[2].partition("\n\n")[0]
    return dict(re.findall(r'^(\w+) = "(.*)"', table, re.MULTILINE))


def address(path: str, urls: dict[str, str]) -> str:
    """Where a file of the repository is on the web."""
    if path.startswith("docs/"):
        return f"{urls['Documentation']}/{re.sub(r'[.]md$', '.html', path.removeprefix('docs/'))}"
    return urls["Changelog" if path == "CHANGELOG.md" else "Source"]


def description(readme: str, urls: dict[str, str]) -> str:
    """The text for an index."""
    text = _COMMENT.sub("", _LEFT_OUT.sub("", readme))
    text = _LINK.sub(lambda found: f"]({address(found[1], urls)}{found[2] or ''})", _PAGE.sub(r"[\1", text))
    return _INSTALL.sub(r"\1\2tailrace", text)


def fresh() -> str:
    """The text that the file should have."""
    return description((ROOT / "README.md").read_text(), addresses((ROOT / "pyproject.toml").read_text()))


def main() -> int:
    """Writes or checks."""
    if "--check" not in sys.argv[1:]:
        FILE.write_text(fresh())
        return 0
    if FILE.is_file() and FILE.read_text() == fresh():
        return 0
    print(f"{FILE.name} does not follow README.md; run `.venv/bin/python tools/description.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
