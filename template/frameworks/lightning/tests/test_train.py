"""Training: learning, accumulation, resuming to the same end, two ranks, the other commands."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torch import nn

from .. import data, module
from ..model import build
from ..module import Model
from .support import equal, newest, rows, run_ranks, train_here

RANKS = ("--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train_here(folder)
    return folder


def check_end(folder: Path, whole: Path) -> None:
    """Compare two runs to the bit."""
    found, expected = newest(folder), newest(whole)
    assert found["global_step"] == expected["global_step"] == 12
    assert equal(found, expected)
    assert rows(folder, "val") == rows(whole, "val")
    assert rows(folder, "train")[-1]["loss"] == rows(whole, "train")[-1]["loss"]


def test_loss_falls_and_validate_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(
        tmp_path, "--trainer.max_steps=40", "--trainer.val_check_interval=40", "--model.lr=0.003"
    )
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert sum(losses[-5:]) < sum(losses[:5])
    (last,) = rows(tmp_path, "val")
    best = f"--ckpt_path={tmp_path}/first/checkpoints/best.ckpt"
    train_here(tmp_path, best, "--trainer.logger=false", command="validate")
    printed = map(float, re.findall(r"\d+\.\d+", capsys.readouterr().out))
    assert any(number == pytest.approx(last["loss"], rel=1e-4) for number in printed)
    assert (
        json.loads((tmp_path / "first/config.json").read_text())["config"]["model"]["lr"] == 0.003
    )


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
def test_accumulated_micro_batches_equal_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode: BatchNorm, dropout, noise and augmentation differ from micro-batch to micro-batch."""
    prepare, set_mode = data.Prepare.forward, nn.Module.train
    monkeypatch.setattr(nn.Module, "train", lambda net, mode=True: set_mode(net, False))
    monkeypatch.setattr(module, "build", lambda *sections: build(*sections).train())
    monkeypatch.setattr(
        data.Prepare,
        "forward",
        lambda own, batch, _, generator: prepare(own, batch, False, generator),
    )
    for name, size, accumulate in (("small", 3, 3), ("large", 9, 1)):
        sizes = (f"--data.batch_size={size}", f"--trainer.accumulate_grad_batches={accumulate}")
        train_here(tmp_path / name, *sizes, "--trainer.val_check_interval=36")
    found, expected = (rows(tmp_path / name, "train") for name in ("small", "large"))
    for key in ("loss", "lr", "grad_norm"):
        assert [row[key] for row in found] == pytest.approx(
            [row[key] for row in expected], rel=1e-3, abs=1e-4
        )


def test_killed_run_resumes_to_the_same_end(tmp_path: Path, whole: Path) -> None:
    run_ranks("test_train", tmp_path, ranks=1, expect=1)
    assert newest(tmp_path)["global_step"] == 6, "within the first epoch, which has 9 batches"
    train_here(tmp_path, "--ckpt_path=last")
    check_end(tmp_path, whole)


def test_killed_run_of_two_ranks_resumes_to_the_same_end(tmp_path: Path) -> None:
    run_ranks("test_train", tmp_path / "killed", tmp_path / "whole", ranks=2, expect=1)
    run_ranks("test_train", tmp_path / "killed", "resumed", ranks=2)
    check_end(tmp_path / "killed", tmp_path / "whole")


def kill(model: Model, *_: Any) -> None:
    """Kill this process in the eighth step."""
    if model.global_step == 7:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder, *more = map(Path, sys.argv[1:])
    options = RANKS if os.environ["WORLD_SIZE"] == "2" else ()
    if more == [Path("resumed")]:
        train_here(folder, *options, "--ckpt_path=last")
    else:
        for other in more:
            train_here(other, *options)
        with mock.patch.object(Model, "on_train_batch_start", kill):
            train_here(folder, *options)
