"""A hook of MkDocs: the manual for language models, as llmstxt.org proposes it.

Writes llms.txt, which lists the pages by section with the first paragraph of each, and the source of each page beside
its HTML.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_first: dict[str, str] = {}
_items: list[Any] = []


def on_page_markdown(markdown: str, page: Any, **_: object) -> None:
    """Keeps the first paragraph of a page."""
    paragraphs = [text for text in re.split(r"\n\s*\n", markdown) if re.match(r"[\w\[`*]", text)]
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraphs[0]) if paragraphs else ""
    _first[page.file.src_uri] = " ".join(text.split())


def on_nav(nav: Any, **_: object) -> None:
    """Keeps the navigation, whose pages get their titles later."""
    _items[:] = nav.items


def on_post_build(config: Any, **_: object) -> None:
    """Writes the files."""
    site, docs = Path(config["site_dir"]), Path(config["docs_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]

    def add(items: Any) -> None:
        for item in items:
            if item.is_section:
                if any(child.is_page for child in item.children):
                    lines.extend(["", f"## {item.title}", ""])
                add(item.children)
            elif item.is_page:
                uri = item.file.src_uri
                (site / uri).write_text((docs / uri).read_text("utf-8"), "utf-8")
                lines.append(f"- [{item.title}]({uri}): {_first[uri]}")

    add(_items)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
