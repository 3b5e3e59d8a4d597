"""The charts of a report, as SVG that takes the colors of the page.

matplotlib is imported here only.
"""

import io
import math
import re
from statistics import median
from typing import Any

from ..errors import FastprojError
from .run import Row, Run
from .times import intervals

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError as error:
    raise FastprojError(
        "the charts need matplotlib: install it beside fastproj with `pip install matplotlib`, "
        "or install fastproj with its extra `report`"
    ) from error

COLORS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#ca8a04", "#06b6d4", "#84cc16")
"""Of the runs; of one run, the first two are training and validation."""
TEXT = "#010203"
"""Replaced by the text color of the page, which is light or dark."""
TITLES = {
    "lr": "learning rate",
    "grad_norm": "gradient norm, before clipping",
    "samples_per_second": "samples per second",
    "data_wait": "share of the time waiting for data",
}
STYLE: dict[Any, Any] = {
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "svg.fonttype": "none",
    "svg.hashsalt": "fastproj",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#94a3b8",
    "grid.alpha": 0.3,
    "axes.formatter.limits": (-4, 5),
}
matplotlib.rcdefaults()  # not the user's matplotlibrc
matplotlib.rcParams.update(STYLE)


def color(place: int) -> str:
    """Return the color of a run."""
    return COLORS[place % len(COLORS)]


def curves(runs: list[Run]) -> list[tuple[str, str]]:
    """Return a title and a chart for each metric and each number about the training."""
    names: set[str] = set()
    for run in runs:
        names.update(*run.rows)
    metrics = names - {"split", "step", "seconds", "skipped", "loss", *TITLES}
    charts = []
    for name in ["loss", *sorted(metrics), *TITLES]:
        if name in names:
            charts.append((TITLES.get(name, name), _curve(runs, name)))
    return charts


def _curve(runs: list[Run], name: str) -> str:
    figure = Figure(figsize=(5, 2.8), layout="constrained")
    axes = figure.add_subplot()
    for place, run in enumerate(runs):
        mine = color(place)
        validated = mine if len(runs) > 1 else COLORS[1]
        _plot(axes, run.of("train", name), name, color=mine)
        _plot(axes, run.of("val", name), name, color=validated, marker=".")
        for part in intervals(run)[1:]:
            if part.starts:
                axes.axvline(part.before, color=mine, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("step")
    return _svg(figure)


def _plot(axes: Any, rows: list[Row], name: str, **style: Any) -> None:
    """Draw a number over the steps; what is too large to be drawn is a gap."""
    steps = [row["step"] for row in rows]
    numbers = [row[name] if abs(row[name]) < 1e100 else math.nan for row in rows]
    axes.plot(steps, numbers, linewidth=1.4, **style)


def ratio_bars(ratios: dict[str, list[float]]) -> Any:
    """Return a figure of the ratio of each technique, with the range of the rounds."""
    figure = Figure(figsize=(7, 0.9 + 0.32 * len(ratios)), layout="constrained")
    axes = figure.add_subplot()
    for place, rounds in enumerate(ratios.values()):
        gain = median(rounds) - 1
        bar = COLORS[0] if gain >= 0 else COLORS[4]
        axes.barh(-place, gain, left=1, color=bar, height=0.6)
        axes.hlines(-place, rounds[0], rounds[-1], color="#475569")
    axes.axvline(1, color="#475569", linewidth=1)
    axes.set_yticks([-place for place in range(len(ratios))], list(ratios))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("times as fast as without the technique; lines: range of the rounds")
    return figure


def _svg(figure: Any) -> str:
    """Return a figure as SVG inside of HTML: without a header, metadata, and a size of its own."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True)
    text = drawn.getvalue()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' (xmlns|xmlns:xlink|width|height|version)="[^"]*"', "", text, count=5)
    return text.replace(TEXT, "currentColor")
