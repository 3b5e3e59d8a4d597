"""The loop: learning, stopping, resuming to the same end, two processes."""

import os
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from .. import train as program
from ..errors import Stopped, UserError
from ..evaluate import evaluate_run
from . import run_ranks
from .support import (
    SMALL,
    ask_to_stop,
    at_batch,
    check_close,
    equal,
    few_samples,
    rows,
    state,
    train_here,
)

RANKS = ("--optim.eps=1e-4", "--log.every=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train_here(folder)
    return folder


def check_end(folder: Path, whole: Path) -> None:
    """Resume a run; its end is that of the uninterrupted one."""
    train_here(folder)
    assert equal(state(folder), state(whole))
    for split in ("train", "val"):
        assert rows(folder, split) == rows(whole, split)


def test_loss_falls_and_evaluate_agrees(tmp_path: Path) -> None:
    length = ("--train.steps=40", "--train.eval_every=40", "--log.every=1")
    results = train_here(tmp_path, *length, "--optim.lr=0.003")
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert sum(losses[-10:]) < sum(losses[:10])
    assert max(row["lr"] for row in rows(tmp_path, "train")) == pytest.approx(0.003)
    with few_samples():
        assert evaluate_run(tmp_path / "first", "cpu") == results


def test_run_that_is_killed_resumes_to_the_same_end(tmp_path: Path, whole: Path) -> None:
    for before, step in ((4, 8), (8, 12)):
        killed = run_ranks(train_until_killed, tmp_path, f"step-{step:08d}", ranks=1)
        assert killed == [-signal.SIGKILL]
        assert state(tmp_path)["step"] == before
    check_end(tmp_path, whole)


def train_until_killed(folder: Path, checkpoint: str) -> None:
    """Train until a checkpoint is written but not renamed, and kill this process."""
    rename = os.rename

    def kill_or_rename(old: Path, new: Path) -> None:
        if new.name == checkpoint:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)

    with mock.patch.object(os, "rename", kill_or_rename):
        train_here(folder)


def test_sigterm_saves_and_exits_75(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *SMALL, f"--run.dir={tmp_path}"])
    with few_samples(), at_batch(4, ask_to_stop), pytest.raises(SystemExit) as exited:
        program.main()
    assert exited.value.code == 75
    assert capsys.readouterr().err == "stopped at step 6: resume with --run.name first\n"
    assert state(tmp_path)["step"] == 6
    check_end(tmp_path, whole)


def test_loss_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    with (
        mock.patch.object(program, "clip", return_value=torch.tensor(torch.nan)),
        pytest.raises(UserError, match="the gradient norm nan at step 2: lower optim.lr"),
    ):
        train_here(tmp_path)
    assert not list(tmp_path.glob("first/checkpoints/*"))


def test_two_processes_that_stop_and_resume_equal_one_that_accumulates(tmp_path: Path) -> None:
    """But for BatchNorm in validation: with two processes, it has the statistics of one."""
    train_here(tmp_path / "one", *RANKS, "--train.gradient_accumulation_steps=2")
    assert run_ranks(train_on_ranks, tmp_path, ranks=2) == [0, 0]
    assert run_ranks(train_here, tmp_path / "two", *RANKS, ranks=2) == [0, 0]
    for rank in (0, 1):
        assert (tmp_path / f"stopped-{rank}").read_text().startswith("stopped at step 5")
    names = state(tmp_path / "one")["model"]
    has_batch_norm = any(name.endswith("running_mean") for name in names)
    splits = ["train"] if has_batch_norm else ["train", "val"]
    check_close(tmp_path / "two", tmp_path / "one", *splits)


def train_on_ranks(folder: Path) -> None:
    """Train until process 1 alone gets a signal."""
    rank = os.environ["RANK"]
    batch = 4 if rank == "1" else -1
    with at_batch(batch, ask_to_stop), pytest.raises(Stopped) as stopped:
        train_here(folder / "two", *RANKS)
    (folder / f"stopped-{rank}").write_text(str(stopped.value))
