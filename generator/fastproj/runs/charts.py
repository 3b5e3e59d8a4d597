"""Charts as SVG, in the colors of the page around them."""

import math
from dataclasses import dataclass
from html import escape
from itertools import chain, groupby

from .run import Row, Run
from .times import intervals

COLORS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#ca8a04", "#06b6d4", "#84cc16")
"""Of the runs; of one run, the first two are training and validation."""
TITLES = {
    "lr": "learning rate",
    "grad_norm": "gradient norm, before clipping",
    "samples_per_second": "samples per second",
    "data_wait": "share of the time waiting for data",
}
FROM_ZERO = ("samples_per_second", "data_wait")
"""Numbers whose scale begins at 0, so that heights can be compared."""
NOT_DRAWN = {"step", "seconds", "skipped"}
MOST = 40
"""Charts on a page."""
POINTS = 500
"""Of a line with more points, the lowest and the highest in each stretch are drawn."""
TINY = 1e-100
HUGE = 1e100
"""Values beyond these are not drawn."""
WIDTH = 500
HEIGHT = 280
STYLE = """svg { font: 12px system-ui, sans-serif; fill: currentColor; }
@media (max-width: 600px) { figure svg { font-size: 15px; } }
svg .grid { stroke: #94a3b8; stroke-opacity: .3; }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .resume { stroke-dasharray: 2 3; }
"""
Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """A linear scale from two numbers to two positions in the chart."""

    low: float
    high: float
    first: float
    last: float

    def place(self, value: float) -> float:
        """Return the position of a number."""
        share = (value - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Return about five round numbers."""
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = power
        for factor in (2, 5, 10):
            if step < 0.999 * rough:
                step = factor * power
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]


def axis(values: list[float], first: float, last: float) -> Axis:
    """Return the axis that has all values."""
    low = min(values, default=0.0)
    high = max(values, default=0.0)
    largest = max(abs(low), abs(high))
    if high - low <= max(1e-9 * largest, TINY):
        margin = largest / 10 if largest > 20 * TINY else 1.0
        low -= margin
        high += margin
    return Axis(low, high, first, last)


def color(place: int) -> str:
    """Return the color of a run."""
    return COLORS[place % len(COLORS)]


def names(runs: list[Run]) -> list[str]:
    """Return the numbers of the rows that have a chart: metrics first."""
    known = set[str]()
    for run in runs:
        known.update(run.columns["train"], run.columns["val"])
    metrics = sorted(known - NOT_DRAWN - {"loss", *TITLES})
    return [name for name in ("loss", *metrics, *TITLES) if name in known]


def curves(runs: list[Run]) -> list[tuple[str, str]]:
    """Return a title and a chart for each metric and each number about the training."""
    charts = []
    for name in names(runs)[:MOST]:
        title = TITLES.get(name, name)
        charts.append((title, _svg(title, _curve(runs, name))))
    return charts


def _curve(runs: list[Run], name: str) -> list[str]:
    """Return the parts of the chart of one number over the steps; what is not finite is a gap."""
    trained = [_points(run.of("train", name), name) for run in runs]
    validated = [_points(run.of("val", name), name) for run in runs]
    steps: list[float] = []
    values = [0.0] if name in FROM_ZERO else []
    for step, value in chain.from_iterable([*trained, *validated]):
        if _is_drawn(value):
            steps.append(step)
            values.append(value)
    x = axis(steps, 64, WIDTH - 30)
    y = axis(values, HEIGHT - 44, 10)
    parts = _grid(x, y)
    for place, run in enumerate(runs):
        mine = color(place)
        starts = [part.before for part in intervals(run)[1:] if part.starts]
        for step in starts[:: len(starts) // MOST + 1]:
            at = f"{x.place(step):.1f}"
            line = f'<line class="resume" x1="{at}" x2="{at}" y1="10" y2="{y.first}"'
            parts.append(f'{line} stroke="{mine}"/>')
        parts.append(_line(trained[place], x, y, mine))
        other = mine if len(runs) > 1 else COLORS[1]
        has_dots = len(validated[place]) < 60
        parts.append(_line(validated[place], x, y, other, has_dots))
    return parts


def _points(rows: list[Row], name: str) -> list[Point]:
    """Return the points of a line: of each stretch the lowest and the highest."""
    points = [(float(row["step"]), row[name]) for row in rows]
    if len(points) <= POINTS:
        return points
    length = math.ceil(2 * len(points) / POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), length):
        stretch = points[start : start + length]
        finite = [point for point in stretch if _is_drawn(point[1])] or stretch
        extremes = {min(finite, key=_value), max(finite, key=_value)}
        kept += sorted(extremes)
    return kept


def _value(point: Point) -> float:
    return point[1]


def _is_drawn(value: float) -> bool:
    return abs(value) < HUGE  # not if it is NaN


def _line(
    points: list[Point],
    x: Axis,
    y: Axis,
    stroke: str,
    dots: bool = False,
) -> str:
    """Return a line with gaps, and a dot at each point or where a point has no neighbor."""
    parts = []
    for is_drawn, group in groupby(points, key=lambda point: _is_drawn(point[1])):
        places = [f"{x.place(step):.1f},{y.place(value):.1f}" for step, value in group if is_drawn]
        if len(places) > 1:
            parts.append(f'<polyline class="line" stroke="{stroke}" points="{" ".join(places)}"/>')
        for place in places if dots or len(places) == 1 else []:
            left, top = place.split(",")
            parts.append(f'<circle cx="{left}" cy="{top}" r="2.5" fill="{stroke}"/>')
    return "".join(parts)


def _grid(x: Axis, y: Axis) -> list[str]:
    """Return the lines of the scales, and their numbers."""
    middle = (x.first + x.last) / 2
    parts = [_text(middle, HEIGHT - 6, "step", "middle")]
    for tick in y.ticks():
        top = y.place(tick)
        parts.append(f'<path class="grid" d="M{x.first:.1f} {top:.1f}H{x.last:.1f}"/>')
        parts.append(_text(x.first - 6, top + 4, f"{tick:,.6g}", "end"))
    for tick in x.ticks():
        if tick == int(tick):
            label = f"{tick:,.0f}" if tick < 1e7 else f"{tick:.3g}"
            parts.append(_text(x.place(tick), HEIGHT - 24, label, "middle"))
    return parts


def _text(
    left: float,
    top: float,
    text: str,
    anchor: str,
) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, parts: list[str]) -> str:
    begin = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return f"{begin}<title>{escape(title)}</title>{''.join(parts)}</svg>"
