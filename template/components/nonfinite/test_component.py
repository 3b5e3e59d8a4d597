"""Steps that are not finite change no weight; a run without such steps is the same."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..contracts import Metrics
from ..errors import UserError
from ..loss import compute_loss
from .support import equal, rows, train_here

ON = ("--nonfinite.enabled=true", "--train.eval_every=3", "--run.keep=20", "--log.every=3")


def train_with(
    folder: Path,
    bad: range,
    *options: str,
) -> None:
    """Train with a loss of NaN in some steps, counted from 0."""
    calls: list[None] = []

    def faulty(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
        loss, metrics = compute_loss(net, batch)
        if torch.is_grad_enabled():
            calls.append(None)
            if len(calls) - 1 in bad:
                loss = loss * float("nan")
                metrics = {**metrics, "loss": (loss, 1)}
        return loss, metrics

    with mock.patch.object(program, "compute_loss", faulty):
        train_here(folder, *ON, *options)


def model_after(folder: Path, step: int) -> Any:
    file = folder / f"first/checkpoints/step-{step:08d}/state.pt"
    return torch.load(file, weights_only=True)["model"]


def test_run_without_such_steps_is_the_same(tmp_path: Path) -> None:
    train_here(tmp_path / "on", *ON)
    train_here(tmp_path / "off", *ON, "--nonfinite.enabled=false")
    with_it = model_after(tmp_path / "on", 12)
    without = model_after(tmp_path / "off", 12)
    assert equal(with_it, without)


def test_skipped_step_changes_no_weight_and_is_in_no_metric(tmp_path: Path) -> None:
    options = ["--train.eval_every=1", "--log.every=1", "--train.steps=8"]
    train_with(tmp_path, range(4, 5), *options)
    before = model_after(tmp_path, 4)
    assert equal(before, model_after(tmp_path, 5))
    assert not equal(before, model_after(tmp_path, 6))
    found = rows(tmp_path, "train")
    assert [row["skipped"] for row in found] == [0] * 4 + [1] * 4
    assert found[4]["loss"] == pytest.approx(found[3]["loss"]), "the loss before"
    assert found[4]["lr"] == found[5]["lr"], "the schedule does not count it"


def test_many_in_succession_end_the_run(tmp_path: Path) -> None:
    message = "4 steps in succession were skipped until step 6: lower optim.lr"
    with pytest.raises(UserError, match=message):
        train_with(tmp_path, range(2, 99), "--nonfinite.limit=2")


def test_fp16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nonfinite.enabled is true: fp16 skips such steps itself"):
        train_here(tmp_path, *ON, "--speed.precision=fp16")
