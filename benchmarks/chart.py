"""Bar charts as SVG, legible at the width of a page and of a phone: one font size, no scripts, nothing loaded."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 480
BAR_WIDTH = 300
CHARACTERS = 64
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
    """Bars of one scale under a title. An outcome, such as an accuracy, has a point and a range, not a bar from 0."""

    title: str
    bars: Sequence[Bar]
    from_zero: bool = True


def draw(groups: Sequence[Group]) -> str:
    """Return the chart as the text of an SVG file."""
    parts: list[str] = []
    y = 14
    for group in groups:
        for line in textwrap.wrap(group.title, CHARACTERS):
            y += 16
            parts.append(_text(16, y, line, "t"))
        y += 8
        low, high = _scale(group)
        for bar in group.bars:
            parts += _bar(bar, y, low, high, group.from_zero)
            y += 24
        y += 10
    size = f'viewBox="0 0 {WIDTH} {y + 6}" width="{WIDTH}" height="{y + 6}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    card = f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{y + 5}" rx="6" fill="#fff" stroke="#d5dbe1"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", card, *parts, "</svg>"]) + "\n"


def _scale(group: Group) -> tuple[float, float]:
    """Return the values at the left and right end of the bars."""
    high = max(bar.high for bar in group.bars)
    if group.from_zero:
        return 0.0, high
    low = min(bar.low for bar in group.bars)
    margin = (high - low) * 0.1 or 1.0
    return low - margin, high + margin


def _bar(bar: Bar, y: int, low: float, high: float, from_zero: bool) -> list[str]:
    def at(value: float) -> float:
        return 16 + BAR_WIDTH * (value - low) / (high - low)

    color, middle = BLUE if bar.strong else GREY, y + 9
    start, end, value = at(bar.low), at(bar.high), at(bar.value)
    text = _text(round(end) + 8, y + 14, f"{bar.label} {bar.shown}")
    spread = f'<path d="M{start:.1f} {middle}H{end:.1f}" stroke="#52606d" stroke-width="1.5"/>'
    if from_zero:
        shape = f'<rect x="16" y="{y}" width="{value - 16:.1f}" height="18" rx="2" fill="{color}"/>'
        return [shape, spread, text]
    return [spread, f'<circle cx="{value:.1f}" cy="{middle}" r="6" fill="{color}"/>', text]


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{attribute}>{escape(text)}</text>'
