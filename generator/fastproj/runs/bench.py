"""`fastproj bench`: what each technique gives, in interleaved trials."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from .pairs import Compared, Measure
from .stages import Setting
from .techniques import Technique
from .trials import Trial

HEADINGS = ("technique", "samples/s without", "with", "times", "range", "peak memory, MB")


def bench(
    setting: Setting, chosen: dict[str, Technique], measure: Measure
) -> Iterator[tuple[str, Compared]]:
    """Measure each technique."""
    for name, technique in chosen.items():
        yield name, measure.compare(technique.without, {name: technique.with_it}, drop=False)[name]


def cells(name: str, found: Compared) -> list[str]:
    """Return a technique's line of the table."""
    if found.problem or not found.trials:
        return [name, found.problem or "not measured"]
    without, with_it = _speed(found.base), _speed(found.trials)
    memory = [median(peaks) for peaks in (_peaks(found.base), _peaks(found.trials)) if peaks]
    span = f"{found.ratios[0]:.2f} to {found.ratios[-1]:.2f}"
    shown = f"{memory[0]:,.0f} -> {memory[1]:,.0f}" if len(memory) > 1 else ""
    return [name, f"{without:,.0f}", f"{with_it:,.0f}", f"{found.ratio:.2f}", span, shown]


def table(lines: list[list[str]]) -> str:
    """Return the table for the terminal."""
    whole = [line for line in lines if len(line) == len(HEADINGS)]
    widths = [
        max(len(line[place]) for line in [[*HEADINGS], *whole]) for place in range(len(HEADINGS))
    ]
    widths[0] = max(len(line[0]) for line in [[*HEADINGS], *lines])
    shown = []
    for line in [[*HEADINGS], *lines]:
        first = f"{line[0]:{widths[0]}}"
        rest = (
            line[1:]
            if len(line) == 2
            else [f"{it:>{size}}" for it, size in zip(line[1:], widths[1:], strict=True)]
        )
        shown.append("  ".join([first, *rest]).rstrip())
    return "\n".join(shown)


def as_record(
    setting: Setting, chosen: dict[str, Technique], found: dict[str, Compared]
) -> dict[str, Any]:
    """Return all that was measured."""
    return {
        "machine": setting.machine.text(),
        "framework": setting.project.framework,
        "processes": setting.processes,
        "techniques": {
            name: {
                "about": chosen[name].about,
                "without": chosen[name].without,
                "with": chosen[name].with_it,
                "samples_per_second": {
                    "without": [trial.samples_per_second for trial in it.base],
                    "with": [trial.samples_per_second for trial in it.trials],
                },
                "peak_mb": {"without": _peaks(it.base), "with": _peaks(it.trials)},
                "ratios": it.ratios,
                "problem": it.problem,
            }
            for name, it in found.items()
        },
    }


def write_json(file: Path, record: dict[str, Any]) -> None:
    """Write what was measured."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def draw(file: Path, ratios: dict[str, list[float]]) -> None:
    """Draw the ratios with their ranges; needs matplotlib."""
    from . import charts

    charts.ratio_bars(ratios).savefig(file)


def _speed(trials: list[Trial]) -> float:
    return median(trial.samples_per_second for trial in trials)


def _peaks(trials: list[Trial]) -> list[float]:
    return [trial.peak_mb for trial in trials if trial.peak_mb is not None]
