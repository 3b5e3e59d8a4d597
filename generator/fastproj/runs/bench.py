"""The results of `fastproj bench`: a table and a record."""

import math
from statistics import median
from typing import Any

from .paired import Comparison, Trial, log_speed
from .stages import Setting
from .techniques import Technique

HEADINGS = ["technique", "samples/s without", "with", "times", "95% interval", "peak memory, MB"]


def table(comparisons: dict[str, Comparison]) -> str:
    """Return the table for the terminal."""
    lines = [_line(HEADINGS)]
    for name, comparison in comparisons.items():
        if comparison.problem or not comparison.trials:
            lines.append(f"{name:24}  {comparison.text()}")
        else:
            lines.append(_line(_cells(name, comparison)))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    """Return a line of cells, which are at least as wide as their headings."""
    line = f"{cells[0]:24}"
    for cell, heading in zip(cells[1:], HEADINGS[1:], strict=True):
        line += f"  {cell:>{max(len(heading), 12)}}"
    return line.rstrip()


def _cells(name: str, comparison: Comparison) -> list[str]:
    """Return a technique's line of the table."""
    speed = comparison.estimate()
    interval = f"{math.exp(speed.low):.2f} to {math.exp(speed.high):.2f}"
    if speed.pairs < 2:
        interval = "no evidence"
    before = _peaks(comparison.base)
    after = _peaks(comparison.trials)
    return [
        name,
        f"{median(_speeds(comparison.base)):,.0f}",
        f"{median(_speeds(comparison.trials)):,.0f}",
        f"{math.exp(speed.mean):.2f}" if speed.is_clear else "not shown",
        interval,
        f"{median(before):,.0f} -> {median(after):,.0f}" if before and after else "",
    ]


def as_record(
    setting: Setting,
    techniques: dict[str, Technique],
    comparisons: dict[str, Comparison],
) -> dict[str, Any]:
    """Return all that was measured."""
    entries = {}
    for name, comparison in comparisons.items():
        base = comparison.base
        trials = comparison.trials
        pairs = zip(trials, base, strict=True)
        ratios = [math.exp(log_speed(mine, other)) for mine, other in pairs]
        speed = comparison.estimate()
        interval = [math.exp(speed.low), math.exp(speed.high)]
        entries[name] = {
            "about": techniques[name].about,
            "without": techniques[name].without,
            "with": techniques[name].enabled,
            "samples_per_second": {"without": _speeds(base), "with": _speeds(trials)},
            "peak_mb": {"without": _peaks(base), "with": _peaks(trials)},
            "ratios": ratios,
            "interval": interval if speed.pairs > 1 else None,
            "problem": comparison.problem,
        }
    return {
        "machine": setting.machine.text(),
        "framework": setting.project.framework,
        "processes": setting.processes,
        "techniques": entries,
    }


def _speeds(trials: list[Trial]) -> list[float]:
    return [trial.samples_per_second for trial in trials]


def _peaks(trials: list[Trial]) -> list[float]:
    return [trial.peak_mb for trial in trials if trial.peak_mb is not None]
