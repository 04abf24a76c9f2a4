"""The live page at `/`: one document with its style and its scripts, from the files in `page/`.

It asks for nothing from elsewhere, and its policy (Content Security Policy Level 3) allows nothing else. Texts reach
the document as text only: with `require-trusted-types-for` the browser refuses to make markup of strings.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Final

from tailrace import _tailrace
from tailrace.status.counts import PARTS
from tailrace.status.table import FIGURES

_FOLDER: Final = Path(__file__).resolve().parent / "page"
STYLE: Final = "page.css"
# Joined in this order.
SCRIPTS: Final = (
    *("explanations.js", "elements.js", "format.js", "charts.js", "table.js"),
    *("figures.js", "stacks.js", "responses.js", "page.js"),
)


class Html:
    """The document, and the fields of its response."""

    def __init__(self) -> None:
        style = "\n" + _read(STYLE)
        script = f'\n"use strict";\n{_explanations()}\n' + "\n".join(_read(name) for name in SCRIPTS)
        page = _read("index.html").replace("<style></style>", f"<style>{style}</style>")
        self.body = page.replace("<script></script>", f"<script>{script}</script>").encode()
        policy = (
            "default-src 'none'",
            f"style-src {_digest(style)}",
            f"script-src {_digest(script)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
        self.fields = [("Content-Security-Policy", "; ".join(policy)), ("Referrer-Policy", "no-referrer")]


def _explanations() -> str:
    """Those of the figures in `counters` and `totals`, and of the phases, from their tables; the phases that are
    parts of the application's time."""
    texts = {metric.key: f"{metric.help} {metric.details}".strip() for metric in FIGURES}
    texts |= {f"latency-{name}": f"{help_[:1].upper()}{help_[1:]}." for name, _, help_ in _tailrace.PHASES}
    plain = {key: text.replace("`", "") for key, text in texts.items()}
    return f"const EXPLAINED = {json.dumps(plain)};\nconst PARTS = {json.dumps(PARTS)};"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
