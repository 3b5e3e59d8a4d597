"""The loop: learning, stopping, resuming to the same end, two ranks, a GPU."""

import os
import signal
from pathlib import Path

import pytest
import torch

from .. import distributed
from ..errors import Stopped
from ..evaluate import evaluate_run
from . import support
from .support import (
    CPU,
    ask_to_stop,
    at_step,
    equal,
    few_samples,
    rows,
    state,
    train_here,
)

RANKS = ("--train.global_batch_size=8", "--optim.eps=1e-4", "--log.every=1")


def test_loss_falls_and_evaluate_agrees(tmp_path: Path) -> None:
    results = train_here(
        tmp_path,
        "--train.steps=40",
        "--train.eval_every=40",
        "--optim.lr=0.003",
        "--log.every=1",
    )
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert sum(losses[-10:]) < sum(losses[:10])
    assert max(row["lr"] for row in rows(tmp_path, "train")) == pytest.approx(0.003)
    with few_samples():
        assert evaluate_run(tmp_path / "first", CPU) == results


def test_killed_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    whole = tmp_path / "whole"
    assert support.run_group(train_until_killed, killed) == [-signal.SIGKILL]
    assert state(killed)["step"] == 4
    train_here(killed)
    train_here(whole)
    assert equal(state(killed), state(whole))
    assert rows(killed, "val") == rows(whole, "val")


def train_until_killed(folder: Path, world: distributed.World) -> None:
    with at_step(6, kill):
        train_here(folder, world=world)


def kill(_: object) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_two_ranks_that_stop_together_and_resume_equal_one_that_accumulates(
    tmp_path: Path,
) -> None:
    train_here(tmp_path / "one", *RANKS)
    assert support.run_group(train_on_ranks, tmp_path, ranks=2) == [0, 0]
    stopped = [(tmp_path / f"stopped-{rank}").read_text() for rank in (0, 1)]
    assert stopped == ["stopped at step 5"] * 2
    one = support.parameters(state(tmp_path / "one")["model"])
    two = support.parameters(state(tmp_path / "two")["model"])
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-5)
    losses_of_one = [row["loss"] for row in rows(tmp_path / "one", "train")]
    losses_of_two = [row["loss"] for row in rows(tmp_path / "two", "train")]
    assert losses_of_two == pytest.approx(losses_of_one, rel=1e-3, abs=1e-4)


def train_on_ranks(folder: Path, world: distributed.World) -> None:
    """Train until rank 1 alone gets a signal, and resume."""
    try:
        with at_step(4, ask_to_stop if world.rank == 1 else lambda _: None):
            train_here(folder / "two", *RANKS, world=world)
    except Stopped as stopped:
        (folder / f"stopped-{world.rank}").write_text(str(stopped).split(":")[0])
    train_here(folder / "two", *RANKS, world=world)


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.accelerator.is_available() or os.environ.get("REQUIRE_GPU")),
    reason="needs a GPU",
)
def test_training_on_a_gpu(tmp_path: Path) -> None:
    world = distributed.World(0, 1, distributed.find_device("accelerator"))
    options = (
        "--run.device=accelerator",
        "--speed.precision=auto",
        "--log.every=3",
    )
    train_here(tmp_path, *options, world=world)
    assert [row["step"] for row in rows(tmp_path, "train")] == [
        3,
        4,
        6,
        8,
        9,
        12,
    ]
