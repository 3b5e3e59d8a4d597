"""A line chart as SVG, drawn by hand: a few kilobytes, and in the colors of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 240, 52, 10, 8, 26
MARKED = 60
"""Points of a validation curve up to which each is marked."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A curve."""

    name: str
    color: int
    """Number of its color in the page's palette."""
    points: Points
    dashed: bool = False
    """Whether it is dashed, with its points marked."""


def draw_chart(title: str, lines: Sequence[Line], most_points: int) -> str:
    """Return a chart with a title; of a line with more than `most_points`, the extremes of each part are drawn."""
    finite = [point for line in lines for point in line.points if math.isfinite(point[1])]
    missing = sum(len(line.points) for line in lines) - len(finite)
    note = f" ({missing} value{'s are' if missing > 1 else ' is'} not finite)" if missing else ""
    caption = f"<figcaption>{escape(title)}<small>{note}</small></figcaption>"
    if not finite:
        return f"<figure>{caption}<p>no finite value</p></figure>"
    x_low, x_high = _limits([point[0] for point in finite], False)
    y_low, y_high = _limits([point[1] for point in finite], True)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = _share(point[0], x_low, x_high) * (WIDTH - LEFT - RIGHT)
        return LEFT + across, HEIGHT - BOTTOM - _share(point[1], y_low, y_high) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)} over the optimizer steps">']
    for value in ticks(y_low, y_high, 5):
        y = place((x_low, value))[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for value in ticks(x_low, x_high, 5):
        x = place((value, y_low))[0]
        anchor = "end" if x > WIDTH - 30 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{short(value)}</text>')
    for line in lines:
        parts += _draw_line(line, place, most_points)
    return f"<figure>{caption}{''.join(parts)}</svg></figure>"


def _draw_line(line: Line, place: object, most_points: int) -> list[str]:
    """Return a path with a gap at each value that is not finite, and marks for single points."""
    assert callable(place)
    pieces, marks, open_piece = [], [], False
    points = thin(line.points, most_points)
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if not math.isfinite(point[1]):
            open_piece = False
            continue
        x, y = place(point)
        pieces.append(f"{'L' if open_piece else 'M'}{x:.1f} {y:.1f}")
        open_piece = True
        alone = all(it is None or not math.isfinite(it[1]) for it in (before, after))
        if alone or (line.dashed and len(points) <= MARKED):
            told = f"{line.name}, step {point[0]:g}: {point[1]:g}"
            marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{escape(told)}</title></circle>')
    style = " dashed" if line.dashed else ""
    path = f'<path d="{"".join(pieces)}"><title>{escape(line.name)}</title></path>'
    return [f'<g class="line c{line.color}{style}">{path}{"".join(marks)}</g>']


def thin(points: Points, most: int) -> list[tuple[float, float]]:
    """Return at most that many points: of each part of the line the lowest and the highest, and both ends."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / max(1, most // 2 - 1))
    kept = {0, len(points) - 1}
    for first in range(0, len(points), size):
        part = range(first, min(first + size, len(points)))
        kept |= {min(part, key=lambda at: _ordered(points[at][1])), max(part, key=lambda at: _ordered(points[at][1]))}
    return [points[at] for at in sorted(kept)]


def _ordered(value: float) -> float:
    """Put NaN last, so that it is kept as an extreme."""
    return math.inf if math.isnan(value) else value


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about that many round numbers from low to high."""
    wanted = max(high / about - low / about, 1e-300)
    step = 10.0 ** math.floor(math.log10(wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if wanted <= step * factor * 1.0001)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def short(value: float) -> str:
    """Return a number in short, such as 1.5k or 2e-05."""
    if abs(value) >= 1e15 or 0 < abs(value) < 1e-3:
        return f"{value:.3g}"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.6g}{unit}"
    return f"{value:.6g}"


def _limits(values: Sequence[float], margin: bool) -> tuple[float, float]:
    """Return a range with these values in it; halves are added as a whole could overflow."""
    low, high = min(values), max(values)
    room = abs(low) / 2 or 0.5
    if low < high:
        room = (high / 2 - low / 2) / 20 if margin else 0.0
    return max(low - room, -1e308), min(high + room, 1e308)


def _share(value: float, low: float, high: float) -> float:
    return (value / 2 - low / 2) / (high / 2 - low / 2)
