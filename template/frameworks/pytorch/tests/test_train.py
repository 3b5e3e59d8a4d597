"""The loop: learning, stopping, resuming to the same end, two ranks, a GPU."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from .. import distributed
from .. import train as program
from ..data import DataConfig
from ..errors import Stopped
from ..evaluate import evaluate_run
from . import support
from .support import (
    CPU,
    SMALL,
    ask_to_stop,
    at_step,
    equal,
    few_samples,
    rows,
    state,
    train_here,
)

RANKS = ("--train.global_batch_size=8", "--optim.eps=1e-4", "--log.every=1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train_here(folder)
    return folder


def check_end(folder: Path, whole: Path) -> None:
    """Resume a run; its end is that of the uninterrupted one."""
    train_here(folder)
    assert equal(state(folder), state(whole))
    assert rows(folder, "val") == rows(whole, "val")


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


def test_killed_run_resumes_to_the_same_end(tmp_path: Path, whole: Path) -> None:
    support.run_program("test_train", *SMALL, f"--run.dir={tmp_path}")
    assert state(tmp_path)["step"] == 4
    check_end(tmp_path, whole)


def kill(_: object) -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed() -> None:
    """Train in a process of its own, which is killed in the seventh step."""
    process = os.fork()
    if process == 0:
        with at_step(6, kill):
            program.main()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


def test_sigterm_saves_and_exits_with_status_75(
    tmp_path: Path,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *SMALL, f"--run.dir={tmp_path}"])
    with (
        few_samples(),
        at_step(6, ask_to_stop),
        pytest.raises(SystemExit) as exited,
    ):
        program.main()
    assert exited.value.code == 75
    assert capsys.readouterr().err == "stopped at step 7: resume with --run.name first\n"
    assert state(tmp_path)["step"] == 7
    check_end(tmp_path, whole)


def test_two_ranks_that_stop_together_and_resume_equal_one_that_accumulates(
    tmp_path: Path,
) -> None:
    train_here(tmp_path / "one", *RANKS)
    support.run_program("test_train", tmp_path, ranks=2)
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


if __name__ == "__main__":
    if "RANK" in os.environ:
        with distributed.init("cpu") as joined:
            train_on_ranks(Path(sys.argv[1]), joined)
    else:
        support.load_all(DataConfig())
        with few_samples():
            train_until_killed()
