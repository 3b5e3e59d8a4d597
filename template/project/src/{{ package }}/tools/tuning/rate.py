"""The learning rate: the median of several range tests, or none without a clear valley."""

import json
import statistics
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import trial
from .found import Finding, Options, as_options
from .trials import BudgetError, Trials

SEEDS = 3
STEPS = 200
SCATTER = 3.0
"""Largest ratio between the learning rates of two seeds at which the loss is lowest."""


def tune(trials: Trials, config: dict[str, Any], current: Options) -> list[list[list[float]]]:
    """Suggest `optim.lr`; return each test's learning rates and smoothed losses.

    Raises:
        BudgetError: the budget is used up.
    """
    first, tests = config["run"]["seed"], []
    for seed in range(first, first + SEEDS):
        tests.append(_test(trials, {**current, "run.seed": seed}))
        trials.tell(f"range test with seed {seed}: {tests[-1]['reason'] or tests[-1]['found']['optim.lr']}")
        if not tests[-1]["found"]:
            break
    trials.findings.append(_judged(tests, config["optim"]["lr"]))
    return [it["curve"] for it in tests]


def _judged(tests: list[dict[str, Any]], today: float) -> Finding:
    """Return the median, if all tests agree."""
    if not tests[-1]["found"]:
        return Finding("lr", "optim.lr", "refused", tests[-1]["reason"])
    lowest = [it["found"]["lowest"] for it in tests]
    rates = [it["found"]["optim.lr"] for it in tests]
    shown = ", ".join(f"{it:.2g}" for it in sorted(rates))
    if max(lowest) > SCATTER * min(lowest):
        why = f"no clear valley: {SEEDS} seeds suggest {shown}, which differ by more than a factor of {SCATTER:g}"
        return Finding("lr", "optim.lr", "refused", why)
    rate = float(f"{statistics.median(rates):.2g}")
    why = f"median of {SEEDS} range tests, which suggest {shown}, a tenth of where the loss is lowest"
    if min(rates) <= today <= max(rates):
        return Finding("lr", f"optim.lr={today:g}", "no proven gain", f"as it is; {why}")
    return Finding("lr", f"optim.lr={rate:g}", "kept", f"{why}; it was {today:g}", {"optim.lr": rate})


def _test(trials: Trials, values: Options) -> dict[str, Any]:
    """Run one range test to its end."""
    fixed = {"run.name": trial.NAME, "run.resume": None, "optim.schedule": "range", "train.steps": STEPS}
    fixed |= {"train.patience": None, "train.unfreeze_step": None, "log.progress": False, "log.tracker": "none"}
    options = as_options({**values, **fixed})

    def make() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="trial-") as temporary:
            folder, errors = Path(temporary, trial.NAME), Path(temporary, "errors")
            with trial.started(trial.PROGRAM, [*trials.base, *options, f"--run.dir={temporary}"], errors) as child:
                try:
                    child.wait(max(trials.left(), 1.0))
                except subprocess.TimeoutExpired:
                    raise BudgetError from None
            found: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                found = json.loads((folder / "lr_range.json").read_text(encoding="utf-8"))
            lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = "" if found else (lines or ["it has left no lr_range.json"])[-1].removeprefix("error: ")
            rows = trial.read_rows(folder)
            curve = [[row["lr"], row["smoothed_loss"]] for row in rows if "smoothed_loss" in row]
            return {"found": found, "reason": reason, "curve": curve}

    return trials.remember({"range test": options}, make, trials.needs)
