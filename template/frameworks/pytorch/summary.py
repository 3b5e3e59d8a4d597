"""What a run came to: summary.json, from its rows of metrics."""

import json
import math
import resource
import sys
from operator import itemgetter
from pathlib import Path
from statistics import median

import torch

from .errors import Stopped

SUMMARY = "summary.json"
ASKED = (Stopped, KeyboardInterrupt, SystemExit)
"""What ends a run that was asked to stop; Lightning raises the latter two."""


def summary(
    folder: Path,
    total_steps: float = 0,
    monitor: str = "loss",
    mode: str | None = None,
) -> str:
    """Return the content of summary.json at the end of a run, from its rows of metrics."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    steps = rows[-1]["step"] if rows else 0
    validations = [row for row in rows if row["split"] == "val"]
    usable = [row for row in validations if math.isfinite(row.get(monitor, math.nan))]
    best = max if mode == "max" else min
    speeds = [row["samples_per_second"] for row in rows if row["split"] == "train"]
    values = {
        "exit": _exit_reason(steps < total_steps),
        "steps": steps,
        "best": best(usable, key=itemgetter(monitor), default=None),
        "last": validations[-1] if validations else None,
        "seconds": rows[-1]["seconds"] if rows else 0.0,
        "samples_per_second": median(speeds) if speeds else None,
        "peak_memory_mb": _peak_memory_mb(),
    }
    return json.dumps(values, indent=2) + "\n"


def _exit_reason(is_incomplete: bool) -> str:
    """Return how a run ends, from the exception that is being handled."""
    error = sys.exception()
    if isinstance(error, ASKED) or (error is None and is_incomplete):
        return "stopped"
    return "error" if error else "finished"


def _peak_memory_mb() -> float:
    """Return the largest memory of this rank's GPU, or without one, of its process."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = torch.cuda.max_memory_allocated()
    return (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 1e6
