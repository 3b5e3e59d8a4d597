"""What a fault has changed in a run is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ..config import CheckpointConfig
from ..distributed import World
from ..faults import saving
from ..tools.fault_runs import differences


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run with two rows of metrics and a checkpoint."""
    run = tmp_path / "whole"
    write(run, 1.0)
    logged = [{"split": split, "step": 2, "loss": 0.5, "seconds": 0.1} for split in ("train", "val")]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in logged))
    return run


def write(run: Path, weight: float) -> None:
    state = {
        "model": {"w": torch.tensor(weight), "norm.running_mean": torch.tensor(weight)},
        "optimizer": {},
        "step": 2,
    }
    about: dict[str, Any] = {"fixed": {}, "config": {}, "metrics": {}}
    saving.save(run / "checkpoints", state, about, CheckpointConfig(), 0, World(0, 1, torch.device("cpu")))


def edit(run: Path, old: str, new: str) -> None:
    file = run / "metrics.jsonl"
    file.write_text(file.read_text().replace(old, new))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda run: None, ""),
    "seconds": (lambda run: edit(run, '"seconds": 0.1', '"seconds": 7'), ""),
    "row twice": (lambda run: edit(run, "}\n", "}\n" + '{"split": "val", "step": 2}\n'), "has rows"),
    "loss": (lambda run: edit(run, "0.5", "0.50000001"), "values in metrics.jsonl differ"),
    "weight": (lambda run: write(run, 1.0000002), "weights or the optimizer differ"),
    "file": (lambda run: (run / "checkpoints/.step-00000009.partial").mkdir(), r".step.partial is left"),
    "set aside": (lambda run: (run / "checkpoints/abandoned-step-00000009").mkdir(), ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_difference_is_found(whole: Path, tmp_path: Path, change: str) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    CHANGES[change][0](run)
    found = differences(run, whole)
    assert len(found) == bool(CHANGES[change][1])
    assert CHANGES[change][1] in "".join(found)


def test_other_number_of_ranks_may_differ_by_rounding(whole: Path, tmp_path: Path) -> None:
    """Also by more in the statistics of BatchNorm, and so in validation."""
    run = shutil.copytree(whole, tmp_path / "run")
    edit(run, '"loss": 0.5', '"loss": 0.500001')
    write(run, 1.00001)
    assert differences(run, whole, 1e-4) == []
    write(run, 1.001)
    assert differences(run, whole, 1e-4) == ["the weights or the optimizer differ"]
