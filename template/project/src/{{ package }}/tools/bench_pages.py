"""The comparisons of a page of documentation, as `bench --pages` measures them.

DIR/comparisons.json is a list of what to compare: `what` says it; `without` and `with` are options of the training
command, and `changes` those of `bench_run` for each side; `value` is what to compare, `steps` and `warmup` the length
of a run, `rounds` their number. The values are written to DIR/measured.json.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError
from . import bench_run
from .atomic_file import atomic_write
from .bench_measure import LIMIT, PROGRAM, Case, Progress, run, speed
from .bench_report import machine, versions

DEFAULT = "samples_per_second"
OUTCOME = "val:"
"""Before the name of a metric: that of the last validation of a complete run."""
MEMORY_GB = 2**30 / 1e9
"""What the processes of a run may take, for `largest_batch`: a multiple of 8, found by doubling and bisection."""
VALUES = (
    "largest_batch",
    "samples_per_second",
    "memory_mb",
    "validation_memory_mb",
    "validation_seconds",
    "first_seconds",
    OUTCOME,
)


def fill(folder: Path, base: Sequence[str]) -> None:
    """Measure all comparisons, and keep each as soon as it is done.

    Raises:
        UserError: the file cannot be read, or a run fails.
    """
    comparisons, file = _read(folder / "comparisons.json"), folder / "measured.json"
    found: list[dict[str, Any]] = []
    gpu = torch.accelerator.current_accelerator(check_available=True)
    device = gpu if gpu is not None and "--run.device=cpu" not in base else torch.device("cpu")
    place = {"machine": machine(device), "versions": versions()}
    said = Progress(sum(2 * comparison.get("rounds", 3) for comparison in comparisons))
    for comparison in comparisons:
        sides = _measure(comparison, base, said)
        found.append({"what": comparison["what"], **place, "without": sides[0], "with_it": sides[1]})
        with atomic_write(file, "free some space") as partial:
            partial.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    said.close()


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        comparisons: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        wrong = [it["what"] for it in comparisons if not str(it.get("value", DEFAULT)).startswith(VALUES)]
        missing = [it["what"] for it in comparisons if not {"without", "with"} <= it.keys()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot read {file} ({error}): it is a list of comparisons, see bench_pages.py") from error
    if wrong or missing:
        raise UserError(f"{file}: {(wrong or missing)[0]}: it needs `without`, `with`, and a value of {VALUES}")
    return comparisons


def _measure(comparison: dict[str, Any], base: Sequence[str], said: Progress) -> tuple[list[float], list[float]]:
    """Return the values of all rounds, without and with."""
    values: tuple[list[float], list[float]] = ([], [])
    changes = comparison.get("changes", ["", ""])
    for number in range(comparison.get("rounds", 3)):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            options = [*comparison[("without", "with")[side]], f"--run.seed={number}"]
            pairs = [option.removeprefix("--").partition("=") for option in options]
            added = [change for change in changes[side].split("+") if change]
            case = Case(comparison["what"], {key: value for key, _, value in pairs}, added)
            values[side].append(float(f"{_value(comparison, case, base):.5g}"))
            said.add(f"{comparison['what'][:50]}: {values[side][-1]:,.5g}")
    return values


def _value(comparison: dict[str, Any], case: Case, base: Sequence[str]) -> float:
    wanted = comparison.get("value", DEFAULT)
    if wanted.startswith(OUTCOME):
        return _outcome(case, base, wanted.removeprefix(OUTCOME))
    if wanted == "largest_batch":
        return _largest(case, base)
    steps, warmup = comparison.get("steps", 30), comparison.get("warmup", 10)
    found = run(case, base, steps, warmup, LIMIT, validate=wanted.startswith("validation"))
    if found.outcome != "ok":
        raise UserError(f"{case.name}: {found.outcome}: {found.reason}")
    if wanted == DEFAULT:
        return speed(found.rows)
    if wanted.endswith("memory_mb"):
        return 1000 * (found.memory_gb or 0)
    return float(found.validation_seconds or 0 if wanted == "validation_seconds" else found.rows[-1]["seconds"])


def _largest(case: Case, base: Sequence[str]) -> float:
    """Return the largest micro-batch of two steps within the memory, to an eighth."""
    fits, fails = 0, 0
    while not fails or fails - fits > max(8, fits // 8):
        size = (fits + fails) // 16 * 8 if fails else max(8, 2 * fits)
        tried = Case(case.name, {**case.options, "train.micro_batch": str(size)}, case.changes)
        found = run(tried, base, 1, 1, LIMIT, memory_gb=MEMORY_GB)
        if found.outcome == "ok":
            fits = size
        elif found.outcome == "out of memory":
            fails = size
        else:
            raise UserError(f"{case.name}, train.micro_batch={size}: {found.outcome}: {found.reason}")
    return fits


def _outcome(case: Case, base: Sequence[str], metric: str) -> float:
    """Return a metric of the last validation of a complete run."""
    with tempfile.TemporaryDirectory(prefix="outcome-") as runs:
        options = [f"--{key}={value}" for key, value in case.options.items()]
        kept = ["--log.tracker=none", f"--run.dir={runs}", "--run.name=a"]
        command = [sys.executable, "-m", PROGRAM, *base, *options, *kept]
        environment = os.environ | {bench_run.VARIABLE: "+".join(case.changes)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"{case.name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        lines = Path(runs, "a", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["split"] == "val"]
    return float(rows[-1][metric])
