"""Bar charts as SVG, legible at the width of a page and of a phone: one font size, no scripts, nothing loaded."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, MARGIN = 480, 16
BAR_WIDTH = 270
CHARACTERS = 56
"""Characters of the font that fit into the width."""
GREY, BLUE = "#9aa5b1", "#3d6fb4"
STYLE = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1f2933}.t{font-weight:600}"
)


@dataclass(frozen=True)
class Bar:
    """One bar: a value and the lowest and highest measured one, in the unit of its group."""

    label: str
    value: float
    low: float
    high: float
    shown: str
    """The value as text."""
    strong: bool = False
    """Whether it has the color that stands out."""


@dataclass(frozen=True)
class Group:
    """Bars of one scale, which starts at 0, under a title."""

    title: str
    bars: Sequence[Bar]


def draw(groups: Sequence[Group]) -> str:
    """Return the chart as the text of an SVG file: a bar per value, a line from the lowest to the highest."""
    parts: list[str] = []
    y = 14
    for group in groups:
        for line in textwrap.wrap(group.title, CHARACTERS):
            y += 16
            parts.append(_text(MARGIN, y, line, "t"))
        y += 8
        scale = BAR_WIDTH / max(bar.high for bar in group.bars)
        for bar in group.bars:
            parts += _bar(bar, y, scale)
            y += 24
        y += 10
    size = f'viewBox="0 0 {WIDTH} {y + 6}" width="{WIDTH}" height="{y + 6}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    card = f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{y + 5}" rx="6" fill="#fff" stroke="#d5dbe1"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", card, *parts, "</svg>"]) + "\n"


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    color = BLUE if bar.strong else GREY
    start, end = MARGIN + bar.low * scale, MARGIN + bar.high * scale
    shape = f'<rect x="{MARGIN}" y="{y}" width="{bar.value * scale:.1f}" height="18" rx="2" fill="{color}"/>'
    spread = f'<path d="M{start:.1f} {y + 9}H{end:.1f}" stroke="#52606d" stroke-width="1.5"/>'
    return [shape, spread, _text(round(end) + 8, y + 14, f"{bar.label} {bar.shown}")]


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{attribute}>{escape(text)}</text>'
