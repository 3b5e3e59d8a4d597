"""Training: learning, resuming to the same end on one rank and on two, the other commands."""

import os
import re
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ..module import Model
from . import run_ranks
from .support import equal, newest, rows, train_here

RANKS = [
    "--trainer.devices=2",
    "--trainer.strategy=ddp",
    "--data.batch_size=2",
]


def check_end(folder: Path, whole: Path) -> None:
    """Compare two runs to the bit."""
    end = newest(folder)
    assert end["global_step"] == 12
    assert equal(end, newest(whole))
    assert rows(folder, "val") == rows(whole, "val")
    assert rows(folder, "train")[-1]["loss"] == rows(whole, "train")[-1]["loss"]


def test_loss_falls_and_validate_agrees(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_here(
        tmp_path,
        "--trainer.max_steps=40",
        "--trainer.val_check_interval=40",
        "--model.lr=0.003",
    )
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert sum(losses[-5:]) < sum(losses[:5])
    (last,) = rows(tmp_path, "val")

    best = tmp_path / "first/checkpoints/best.ckpt"
    train_here(
        tmp_path,
        f"--ckpt_path={best}",
        "--trainer.logger=false",
        command="validate",
    )
    shown = re.search(r"val/loss +│ +([\d.]+)", capsys.readouterr().out)
    assert shown
    assert float(shown[1]) == pytest.approx(last["loss"], rel=1e-4)


def test_killed_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    assert run_ranks(train_until_killed, tmp_path, ranks=1) == [-signal.SIGKILL]
    assert newest(tmp_path)["global_step"] == 6, "within the first epoch, which has 9 batches"
    train_here(tmp_path, "--ckpt_path=last")
    train_here(tmp_path / "whole")
    check_end(tmp_path, tmp_path / "whole")


def test_killed_run_of_two_ranks_resumes_to_the_same_end(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert run_ranks(train_here, whole, *RANKS, ranks=2) == [0, 0]
    assert -signal.SIGKILL in run_ranks(train_until_killed, tmp_path, *RANKS, ranks=2)
    assert newest(tmp_path)["global_step"] == 6
    assert run_ranks(train_here, tmp_path, *RANKS, "--ckpt_path=last", ranks=2) == [0, 0]
    check_end(tmp_path, whole)


def train_until_killed(folder: Path, *options: str) -> None:
    """Train, and kill this process in the eighth step."""
    with mock.patch.object(Model, "on_train_batch_start", kill):
        train_here(folder, *options)


def kill(model: Model, *_: Any) -> None:
    """Kill this process in the eighth step."""
    if model.global_step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
