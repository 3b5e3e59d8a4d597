"""Steps that are not finite change no weight, or the weights go back; a run without such steps is the same."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from .. import train as program
from ..contracts import Metrics
from ..errors import Stopped, UserError
from ..metrics import compute_loss
from .support import ask_to_stop, equal, rows, state, train_here

ON = ("--nonfinite.enabled=true", "--train.eval_every=3", "--run.keep=20", "--log.every=3")


class Faulty:
    """Multiplies the loss of some forward passes in training, counted from 0."""

    def __init__(self, factors: dict[int, float]) -> None:
        self.factors, self.calls = factors, 0

    def __call__(self, net: nn.Module, batch: Any) -> tuple[torch.Tensor, Metrics]:
        loss, metrics = compute_loss(net, batch)
        if torch.is_grad_enabled():
            factor = self.factors.get(self.calls, 1.0)
            self.calls += 1
            loss, metrics = (
                loss * factor,
                dict(metrics) | {"loss": (metrics["loss"][0] * factor, metrics["loss"][1])},
            )
        return loss, metrics


def train_with(folder: Path, factors: dict[int, float], *options: str) -> None:
    with mock.patch.object(program, "compute_loss", Faulty(factors)):
        train_here(folder, *ON, *options)


def after(folder: Path, step: int) -> dict[str, Any]:
    """Return weights and optimizer after a step."""
    saved = torch.load(folder / f"first/checkpoints/step-{step:08d}/state.pt", weights_only=True)
    return {key: saved[key] for key in ("model", "optimizer")}


def moments(saved: dict[str, Any]) -> list[Any]:
    return list(saved["optimizer"]["state"].values())


def test_run_without_such_steps_is_the_same(tmp_path: Path) -> None:
    train_here(tmp_path / "on", *ON, "--nonfinite.spike=100", "--nonfinite.action=rollback")
    train_here(tmp_path / "off", *ON, "--nonfinite.enabled=false")
    assert equal(after(tmp_path / "on", 12), after(tmp_path / "off", 12))
    found = [
        {key: row[key] for key in row if key != "skipped"} for row in rows(tmp_path / "on", "train")
    ]
    assert found == rows(tmp_path / "off", "train")


def test_skipped_step_changes_no_weight_and_is_in_no_metric(tmp_path: Path) -> None:
    train_with(
        tmp_path, {4: float("nan")}, "--train.eval_every=1", "--log.every=1", "--train.steps=8"
    )
    before, skipped, later = (after(tmp_path, step) for step in (4, 5, 6))
    assert equal(before["model"], skipped["model"])
    assert equal(moments(before), moments(skipped))
    assert not equal(before["model"], later["model"])
    found = rows(tmp_path, "train")
    assert [row["skipped"] for row in found] == [0] * 4 + [1] * 4
    assert found[4]["loss"] == pytest.approx(found[3]["loss"]), (
        "a row without another step repeats the loss before"
    )
    assert found[4]["lr"] == found[5]["lr"], "the schedule does not count it"


def test_rollback_restores_the_last_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often = ("--nonfinite.action=rollback", "--log.every=1", "--train.steps=5")
    train_with(tmp_path, {4: float("inf")}, *often)
    assert "skipped steps before step 5: weights of step 3" in capsys.readouterr().err
    assert equal(after(tmp_path, 5)["model"], after(tmp_path, 3)["model"])
    assert equal(moments(after(tmp_path, 5)), moments(after(tmp_path, 3)))


def test_many_in_succession_end_the_run(tmp_path: Path) -> None:
    faults = dict.fromkeys(range(2, 99), float("nan"))
    with pytest.raises(
        UserError, match="4 steps in succession were skipped until step 6: lower optim.lr"
    ):
        train_with(tmp_path, faults, "--nonfinite.limit=2")
    with pytest.raises(UserError, match=r"nonfinite.limit is 0: it must be in \[1, inf\)"):
        train_here(tmp_path, *ON, "--nonfinite.limit=0")


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_stopped_run_resumes_to_the_same_end(tmp_path: Path, action: str) -> None:
    faults, option = {1: float("nan"), 7: float("nan")}, f"--nonfinite.action={action}"
    train_with(tmp_path / "whole", faults, option)

    class Stopping(Faulty):
        def __call__(self, net: nn.Module, batch: Any) -> Any:
            if torch.is_grad_enabled() and self.calls == 7:
                ask_to_stop()
            return super().__call__(net, batch)

    with mock.patch.object(program, "compute_loss", Stopping(faults)), pytest.raises(Stopped):
        train_here(tmp_path / "parts", *ON, option)
    assert state(tmp_path / "parts")["step"] == 8
    train_with(tmp_path / "parts", {}, option)
    assert equal(state(tmp_path / "parts"), state(tmp_path / "whole"))
    assert rows(tmp_path / "parts", "val") == rows(tmp_path / "whole", "val")


def test_fp16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nonfinite.enabled is true: fp16 skips such steps itself"):
        train_here(tmp_path, *ON, "--speed.precision=fp16")
