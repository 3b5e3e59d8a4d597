"""What a run came to: rows of metrics in metrics.jsonl, and summary.json."""

import json
import math
import os
import resource
import sys
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import torch

from .errors import Stopped

SUMMARY = "summary.json"
ASKED = (Stopped, KeyboardInterrupt, SystemExit)
"""What ends a run that was asked to stop; Lightning raises the latter two."""


def describe_versions(old: dict[str, str], new: dict[str, str]) -> str:
    """Return what makes a resumed run differ from an uninterrupted one, or nothing."""
    changes = [
        f"{name} {new[name]}, before {old[name]}"
        for name in ("torch", "threads")
        if old.get(name, new[name]) != new[name]
    ]
    return f"{', '.join(changes)}: results differ by rounding" if changes else ""


def keep_rows(file: Path, step: int, validated: bool = False) -> float:
    """Drop the rows after a step, which a resumed run repeats; return the seconds until then.

    It repeats the validation of the step as well, unless the step is saved as `validated`.
    """
    kept = []
    seconds = 0.0
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):  # cut off by a crash
            row = json.loads(line)
            is_kept = validated or row["split"] == "train"
            if row["step"] < step + is_kept:
                kept.append(f"{line}\n")
                seconds = row["seconds"]
    write_text(file, "".join(kept))
    return seconds


def write_text(file: Path, text: str) -> None:
    """Replace a small file, so that it is either the old one or the new one even after a crash."""
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)


def write_summary(
    folder: Path,
    monitor: str,
    mode: str | None,
    total_steps: float = 0,
) -> None:
    """Write summary.json at the end of a run, unless the disk is full.

    A run that has ended before `total_steps` without an error was stopped.
    """
    with suppress(OSError, ValueError):
        text = json.dumps(_summary(folder, monitor, mode, total_steps), indent=2)
        write_text(folder / SUMMARY, f"{text}\n")


def _summary(
    folder: Path,
    monitor: str,
    mode: str | None,
    total_steps: float,
) -> dict[str, Any]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    steps = rows[-1]["step"] if rows else 0
    validations = [row for row in rows if row["split"] == "val"]
    usable = [row for row in validations if math.isfinite(row.get(monitor, math.nan))]
    best = max if mode == "max" else min
    speeds = [row["samples_per_second"] for row in rows if row["split"] == "train"]
    return {
        "exit": _exit_reason(steps < total_steps),
        "steps": steps,
        "best": best(usable, key=itemgetter(monitor), default=None),
        "last": validations[-1] if validations else None,
        "seconds": rows[-1]["seconds"] if rows else 0.0,
        "samples_per_second": median(speeds) if speeds else None,
        "peak_memory_mb": _peak_memory_mb(),
    }


def _exit_reason(is_incomplete: bool) -> str:
    """Return how a run ends, from the exception that is being handled."""
    error = sys.exception()
    if isinstance(error, ASKED) or (error is None and is_incomplete):
        return "stopped"
    return "error" if error else "finished"


def _peak_memory_mb() -> float:
    """Return the largest memory of this rank's GPU, or without one, of its process."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = getattr(torch.get_device_module(), "max_memory_allocated", int)()  # int: 0 without it
    return (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 1e6
