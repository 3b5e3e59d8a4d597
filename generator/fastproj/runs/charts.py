"""What the charts of a page show; page.html.jinja draws them."""

import math
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

from .run import Row, Run

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
POINTS = 500
"""Of a line with more points, the lowest and the highest in each stretch are drawn."""
TINY = 1e-100
HUGE = 1e100
"""Values beyond these are not drawn."""
WIDTH = 500
HEIGHT = 280
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
        return round(self.first + share * (self.last - self.first), 1)

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


def axis(
    values: list[float],
    first: float,
    last: float,
) -> Axis:
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


class Line(NamedTuple):
    """A line with gaps; it has a dot where a point has no neighbor, or at each point."""

    color: str
    stretches: list[list[str]]
    """The places of the points, such as 12.5,40.0, between two gaps."""
    has_dots: bool


class Chart(NamedTuple):
    """A number over the steps; what is not finite is a gap."""

    title: str
    x: Axis
    y: Axis
    lines: list[Line]


def curves(runs: list[Run]) -> list[Chart]:
    """Return a chart for each metric and each number about the training."""
    return [_chart(runs, name) for name in names(runs)]


def _chart(runs: list[Run], name: str) -> Chart:
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
    lines = []
    for place, points in enumerate(trained):
        lines.append(Line(color(place), _stretches(points, x, y), has_dots=False))
    for place, points in enumerate(validated):
        other = color(place) if len(runs) > 1 else COLORS[1]
        lines.append(Line(other, _stretches(points, x, y), has_dots=len(points) < 60))
    return Chart(TITLES.get(name, name), x, y, lines)


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


def _stretches(
    points: list[Point],
    x: Axis,
    y: Axis,
) -> list[list[str]]:
    """Return the places of the points, without those that are not drawn."""
    stretches = []
    for is_drawn, group in groupby(points, key=lambda point: _is_drawn(point[1])):
        if is_drawn:
            stretches.append([f"{x.place(step)},{y.place(value)}" for step, value in group])
    return stretches
