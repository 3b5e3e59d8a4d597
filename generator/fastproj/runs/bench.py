"""`fastproj bench`: the techniques that it measures, and its table and record of them."""

import math
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import yaml

from ..template.clone import questions_in
from ..template.embedded import QUESTIONS
from .options import Options
from .paired import Comparison
from .stages import accumulated, convolves, samples_of_step
from .summary import in_columns
from .trials import Trainer

WIDEST = math.log(1.05)
"""An effect is shown if its interval does not contain 1, and is not wider than this."""
HEADINGS = ["technique", "samples/s without", "with", "times", "95% interval"]


class Technique(NamedTuple):
    """A technique, with the options that switch it off and on."""

    about: str
    without: Options
    enabled: Options


def in_the_core() -> dict[str, dict[str, Any]]:
    """Return the entries of techniques.yaml."""
    file = Path(__file__).with_name("techniques.yaml")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return entries


def applicable(trainer: Trainer) -> dict[str, Technique]:
    """Return the techniques that this project, framework and machine have."""
    techniques = {}
    for name, entry in in_the_core().items():
        if trainer.on_gpu or not entry.get("gpu"):
            techniques[name] = Technique(entry["about"], entry["without"], entry["with"])
    if not convolves(trainer):
        del techniques["channels-last"]

    batch = samples_of_step(trainer)
    if batch >= 8:
        techniques["batch"] = Technique(
            f"passes of {batch} instead of {batch // 4}",
            accumulated(trainer, batch // 4),
            accumulated(trainer, batch),
        )

    components = questions_in(QUESTIONS)["component_table"]["default"]
    for name in trainer.project.components:
        entry = components.get(name, {})
        if "bench" in entry:
            switch = f"{name.replace('-', '_')}.enabled"
            techniques[name] = Technique(entry["about"], {switch: False}, entry["bench"])

    names = trainer.project.names
    return {
        name: technique
        for name, technique in techniques.items()
        if names.translate(technique.without | technique.enabled) is not None
    }


def record(
    trainer: Trainer,
    techniques: dict[str, Technique],
    comparisons: dict[str, Comparison],
) -> dict[str, Any]:
    """Return all that was measured."""
    entries = {}
    for name, comparison in comparisons.items():
        speed = comparison.speed()
        entries[name] = {
            "about": techniques[name].about,
            "without": techniques[name].without,
            "with": techniques[name].enabled,
            "samples_per_second": {
                "without": [trial.samples_per_second for trial in comparison.base],
                "with": [trial.samples_per_second for trial in comparison.trials],
            },
            "ratios": [math.exp(difference) for difference in comparison.differences()],
            "interval": [speed.low, speed.high] if speed.pairs > 1 else None,
            "problem": comparison.problem,
        }
    return {
        "machine": trainer.machine.text,
        "framework": trainer.project.framework,
        "processes": trainer.project.processes,
        "techniques": entries,
    }


def table(record: dict[str, Any]) -> str:
    """Return the table for the terminal."""
    rows = [HEADINGS]
    problems = []
    for name, entry in record["techniques"].items():
        if entry["ratios"]:
            rows.append([name, *_cells(entry)])
        else:
            problems.append(f"{name}: {entry['problem']}")
    return "\n".join([*in_columns(rows), *problems])


def _cells(entry: dict[str, Any]) -> list[str]:
    """Return the cells of a technique."""
    speeds = [f"{median(speeds):,.0f}" for speeds in entry["samples_per_second"].values()]
    if entry["interval"] is None:
        return [*speeds, "not shown", "no evidence"]
    low, high = entry["interval"]
    is_shown = not low <= 1 <= high and math.log(high / low) <= WIDEST
    times = f"{geometric_mean(entry['ratios']):.3f}" if is_shown else "not shown"
    return [*speeds, times, f"{low:.3f} to {high:.3f}"]
