"""Runs to report on: real trainings, and folders with rows that a test writes."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warm import Started, start_python

SLOW = """

import time

_load = load


class _Slow:
    def __init__(self, rows, seconds):
        self.rows, self.seconds = rows, seconds

    def __len__(self):
        return len(self.rows)

    def __getitems__(self, indices):
        time.sleep(self.seconds)
        return self.rows.__getitems__(indices)


def load(cfg):
    train, val, spec = _load(cfg)
    return _Slow(train, {train}), _Slow(val, {val}), spec
"""
"""Added to data.py: each batch takes some seconds."""


def slow_project(
    project: Path,
    folder: Path,
    train: float,
    val: float,
) -> Path:
    """Copy a project, and plant a bottleneck in its data.py."""
    copy = shutil.copytree(project, folder / "proj", symlinks=True)
    data = copy / "src/proj/data.py"
    data.write_text(
        data.read_text() + SLOW.replace("{train}", f"{train}").replace("{val}", f"{val}")
    )
    return copy


def start_training(
    project: Path, framework: str, name: str, steps: int, *options: str, every: int = 10
) -> Started:
    """Start a training that validates every few steps, with the options of its framework."""
    config = ["--config", "configs/default.yaml"]
    if framework == "lightning":
        given = {
            "max_steps": steps,
            "val_check_interval": every,
            "logger.version": name,
            "enable_progress_bar": "false",
        }
        words = ["fit", *config, *(f"--trainer.{key}={value}" for key, value in given.items())]
    else:
        words = [
            *config,
            f"--train.steps={steps}",
            f"--train.eval_every={every}",
            f"--run.name={name}",
        ]
    return start_python(project, "-m", "proj.train", *words, *options)


def train(
    project: Path, framework: str, name: str, steps: int, *options: str, every: int = 10
) -> Path:
    """Train to the end, and return the folder of the run."""
    done = start_training(project, framework, name, steps, *options, every=every).finish()
    assert done.returncode == 0, done.stderr
    return project / "runs" / name


def write_run(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    config: dict[str, Any] | None = None,
    **record: Any,
) -> Path:
    """Write the files of a run."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "config.json").write_text(
        json.dumps({"config": config or {}, "versions": {"torch": "2.13"}} | record)
    )
    return folder


def train_row(
    step: int,
    seconds: float,
    loss: float = 1.0,
    **values: Any,
) -> dict[str, Any]:
    """Return a row of ten steps with a global batch of 64, which took a second."""
    speed = {"samples_per_second": 640.0, "data_wait": 0.01}
    return {
        "split": "train",
        "step": step,
        "loss": loss,
        "lr": 0.1,
        **speed,
        "seconds": seconds,
        **values,
    }


def val_row(
    step: int,
    seconds: float,
    loss: float,
) -> dict[str, Any]:
    """Return a row of a validation."""
    return {
        "split": "val",
        "step": step,
        "loss": loss,
        "accuracy": 0.5,
        "seconds": seconds,
    }
