"""A drawing for the manual as SVG: boxes, arrows and lines of text on a card, in light and dark colors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

# Pixels. A phone of 390 pixels shows the card at 358, and text of 13 at 11.
WIDTH: Final = 420
EDGE: Final = 16
LINE: Final = 17
STYLE: Final = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; fill: #1b2026 }
.b { font-weight: 700 } .s { font-size: 12px } .card { fill: #fff; stroke: #d9dee4 }
.box { fill: #eef2f6; stroke: #66717d } .on { fill: #0a58a8; stroke: #0a58a8 } .half { fill: #9cc4ec; stroke: #0a58a8 }
.none { fill: none; stroke: #66717d; stroke-dasharray: 3 3 } .dash { stroke-dasharray: 4 3 }
path { fill: none; stroke: #66717d; stroke-width: 1.3 } .tip { fill: #66717d }
@media (prefers-color-scheme: dark) {
text { fill: #e3e8ee } .card { fill: #0f1317; stroke: #303943 } .box { fill: #1d252d }
.box, .none, path { stroke: #a3afbb } .on { fill: #6db5ff; stroke: #6db5ff } .half { fill: #254a70; stroke: #6db5ff }
.tip { fill: #a3afbb } }
"""


class Drawing:
    """Shapes from the top to the bottom; `bottom` is where the last one ends."""

    def __init__(self, title: str) -> None:
        self.title, self.bottom = title, 0.0
        self._parts: list[str] = []
        self.text(EDGE, 28, f"*{title}*")

    def text(self, x: float, y: float, text: str, *, small: bool = False, anchor: str = "", room: float = 0) -> None:
        """A line of text on its baseline, with `*bold*` parts. room: its width (pixels), by default up to the edge of
        the card. Raises ValueError if the text needs more."""
        beside = {"": WIDTH - 10 - x, "end": x - 10, "middle": 2 * min(x, WIDTH - x) - 20}[anchor]
        needed = len(text.replace("*", "")) * (12 if small else 13) * 0.54
        if needed > (room or beside):
            raise ValueError(f"{self.title}: {text!r} needs {needed:.0f} pixels and has {room or beside:.0f}")
        shown = re.sub(r"\*(.+?)\*", r'<tspan class="b">\1</tspan>', escape(text, quote=False))
        marks = ' class="s"' * small + f' text-anchor="{anchor}"' * bool(anchor)
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{marks}>{shown}</text>')
        self.bottom = max(self.bottom, y + 2)

    def lines(self, x: float, y: float, *texts: str, anchor: str = "", room: float = 0) -> float:
        """Small lines of text. Returns the baseline of the next one."""
        for place, text in enumerate(texts):
            self.text(x, y + LINE * place, text, small=True, anchor=anchor, room=room)
        return y + LINE * len(texts)

    def rect(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """A rectangle of a kind of `STYLE`."""
        self._parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')
        self.bottom = max(self.bottom, y + height)

    def box(self, x: float, y: float, width: float, height: float, title: str, *texts: str, kind: str = "box") -> None:
        """A rectangle with centered lines, a bold one and small ones."""
        self.rect(x, y, width, height, kind)
        middle, first = x + width / 2, y + height / 2 + 5 - LINE / 2 * len(texts)
        self.text(middle, first, f"*{title}*", anchor="middle", room=width - 4)
        self.lines(middle, first + LINE, *texts, anchor="middle", room=width - 4)

    def arrow(self, x: float, y: float, to_x: float, to_y: float, kind: str = "") -> None:
        """A horizontal or vertical arrow. kind: `dash` or nothing."""
        dx, dy = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
        self.line(x, y, to_x, to_y, kind)
        ends = f"l{-7 * dx - 4 * dy:g} {-7 * dy - 4 * dx:g}l{8 * dy:g} {8 * dx:g}z"
        self._parts.append(f'<path class="tip" d="M{to_x:g} {to_y:g}{ends}"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "") -> None:
        """A line. kind: `dash` or nothing."""
        marks = f' class="{kind}"' * bool(kind)
        self._parts.append(f'<path{marks} d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>')
        self.bottom = max(self.bottom, y, to_y)

    def svg(self) -> str:
        """The file."""
        height = round(self.bottom) + EDGE
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        )
        card = f'<rect class="card" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
        return (
            f'{head} role="img"><title>{escape(self.title)}</title><style>{STYLE}</style>\n'
            + "\n".join([card, *self._parts])
            + "\n</svg>\n"
        )


def same(what: str, drawn: Iterable[str], known: Iterable[str]) -> None:
    """Raises ValueError if a drawing lacks one of the known names, or has one that is not known."""
    if differing := set(drawn) ^ set(known):
        raise ValueError(f"{what}: not both in the drawing and in the sources: {', '.join(sorted(differing))}")
