"""docs/gpu.md, from the results of a run on a GPU, which are kept in the repository."""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .bundle import ROOT
from .results import Result, read, show

KEPT = ROOT / "benchmarks" / "gpu-smoke.jsonl"
PAGE = ROOT / "docs" / "gpu.md"
INTRODUCTION = """# GPU results

`make gpu-smoke` checks rendered projects on a machine with a GPU, in minutes and without a network; this page is
generated from its results. `make gpu-bundle` collects beforehand, on another machine, what the GPU machine lacks.
"""
NO_RUN = "No GPU run is available yet.\n"
UNITS = {"s": "s", "us": "µs", "mb": "MB", "gb": "GB"}


def page(kept: Path) -> str:
    """Return the page for a file of results, which may not exist yet."""
    if not kept.exists():
        return f"{INTRODUCTION}\n{NO_RUN}"
    about, results = read(kept)
    machine = ", ".join(f"{name} {value}" for name, value in about.items())
    failed = [f"- {result.name}: {result.message}" for result in results if result.status in ("failed", "not run")]
    counts = f"{sum(result.status == 'ok' for result in results)} of {len(results)} checks passed."
    groups = dict.fromkeys(result.group for result in results)
    tables = [_table(group, [result for result in results if result.group == group]) for group in groups]
    parts = [INTRODUCTION, f"Machine: {machine}. {counts}\n", *["\n".join(["Failed:\n", *failed, ""])] * bool(failed)]
    return "\n".join([*parts, *tables])


def _table(group: str, results: list[Result]) -> str:
    columns = list(dict.fromkeys(name for result in results for name in result.figures))
    head = ["check", "status", "s", *map(_title, columns)]
    rows = [
        [result.name, _status(result), f"{result.seconds:.1f}", *(_cell(result.figures, name) for name in columns)]
        for result in results
    ]
    lines = [_row(head), f"|{'---|' * len(head)}", *map(_row, rows)]
    return "\n".join([f"## {group[0].upper()}{group[1:]}\n", *lines, ""])


def _title(column: str) -> str:
    """The name of a figure, with its unit, which is its last word, in parentheses."""
    name, _, unit = column.rpartition("_")
    return f"{name.replace('_', ' ')} ({UNITS[unit]})" if name and unit in UNITS else column.replace("_", " ")


def _status(result: Result) -> str:
    return f"{result.status}: {result.message}" if result.status == "skipped" else result.status


def _cell(figures: dict[str, Any], name: str) -> str:
    return show(figures[name]) if name in figures else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def keep(file: Path) -> None:
    """Copy the results of a run into the repository, and write the page."""
    if not file.exists() or read(file)[0]["gpus"] == 0:
        sys.exit(f"error: {file} has no results of a GPU: run `make gpu-smoke` on one first")
    shutil.copy(file, KEPT)
    PAGE.write_text(page(KEPT), encoding="utf-8")
