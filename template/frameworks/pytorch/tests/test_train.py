"""The loop: learning, stopping, resuming to the same end, two ranks."""

import itertools
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from .. import data, distributed
from .. import train as program
from ..data import DataConfig
from ..errors import Stopped, UserError
from ..evaluate import evaluate_run
from ..metrics import Meter
from ..model import build
from . import support
from .support import CPU, SMALL, ask_to_stop, at_step, equal, few_samples, rows, state, train_here

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
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


def test_loss_falls_and_evaluate_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = train_here(
        tmp_path, "--train.steps=40", "--train.eval_every=40", "--optim.lr=0.003", "--log.every=1"
    )
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert sum(losses[-10:]) < sum(losses[:10])
    assert rows(tmp_path, "val") == [{"split": "val", "step": 40, **results}]
    with few_samples():
        assert evaluate_run(tmp_path / "first", CPU) == results
    # The written rate is the one that is used.
    assert "peak learning rate 0.003" in capsys.readouterr().out
    assert max(row["lr"] for row in rows(tmp_path, "train")) == pytest.approx(0.003)


def test_accumulated_micro_batches_equal_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode: BatchNorm, dropout and augmentation differ between micro-batches."""
    prepare = data.Prepare.forward
    set_mode = nn.Module.train
    monkeypatch.setattr(
        nn.Module,
        "train",
        lambda net, mode=True: set_mode(net, False),
    )
    monkeypatch.setattr(
        program,
        "build",
        lambda *sections: build(*sections).train(),
    )
    monkeypatch.setattr(
        data.Prepare,
        "forward",
        lambda own, batch, _, generator: prepare(
            own,
            batch,
            False,
            generator,
        ),
    )
    for name, batch_size, micro_batches in (("small", 3, 3), ("large", 9, 1)):
        sizes = (
            f"--train.batch_size={batch_size}",
            f"--train.gradient_accumulation_steps={micro_batches}",
        )
        train_here(tmp_path / name, *sizes, "--optim.eps=1e-4")
    check_close(
        tmp_path / "small",
        tmp_path / "large",
        "train",
        "val",
    )


def check_close(
    folder: Path,
    other: Path,
    *splits: str,
) -> None:
    """Compare two runs whose sums have another order."""
    weights, expected = (support.parameters(state(it)["model"]) for it in (folder, other))
    torch.testing.assert_close(
        weights,
        expected,
        rtol=1e-3,
        atol=1e-5,
    )
    for split in splits:
        for row, wanted in zip(
            rows(folder, split),
            rows(other, split),
            strict=True,
        ):
            assert row["loss"] == pytest.approx(
                wanted["loss"],
                rel=1e-3,
                abs=1e-4,
            )
            norm = wanted.get("grad_norm", 0)
            assert row.get("grad_norm", 0) == pytest.approx(
                norm,
                rel=1e-3,
                abs=1e-4,
            )


def test_meter_is_exact_for_batches_of_different_sizes_and_for_sums_of_classes() -> None:
    meter = Meter(CPU)
    for count in range(1, 1501):
        sums = torch.tensor([1.0, 4.0, 0.0]) * count
        counts = torch.tensor([count, 2 * count, 0])
        meter.add({"loss": (torch.tensor(2.0 * count), count), "iou": (sums, counts)})
    assert meter.read({"norm": torch.tensor(7.0)}) == {"loss": 2.0, "iou": 1.5, "norm": 7.0}
    meter.add({"loss": (torch.tensor(6.0), 2)})
    assert meter.read() == {"loss": 3.0}


def test_killed_run_resumes_to_the_same_end(tmp_path: Path, whole: Path) -> None:
    support.run_program(
        "test_train",
        *SMALL,
        f"--run.dir={tmp_path}",
    )
    assert rows(tmp_path, "train") == rows(whole, "train")
    check_end(tmp_path, whole)


def train_until_killed(number: int) -> None:
    """Train in a process of its own, which kills itself at a call of fsync, in a checkpoint."""
    process = os.fork()
    calls = itertools.count(1)
    fsync = os.fsync

    def kill_or_sync(descriptor: int) -> None:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    if process == 0:
        with mock.patch.object(os, "fsync", kill_or_sync):
            program.main()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL


def test_sigterm_saves_and_exits_75_with_the_handlers_of_before(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        ["train", *SMALL, f"--run.dir={tmp_path}"],
    )
    before = [signal.getsignal(number) for number in SIGNALS]
    with few_samples(), at_step(6, ask_to_stop), pytest.raises(SystemExit) as exited:
        program.main()
    assert exited.value.code == 75
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert capsys.readouterr().err == "stopped at step 7: resume with --run.name first\n"
    assert state(tmp_path)["step"] == 7
    check_end(tmp_path, whole)


def test_error_in_validation_costs_no_training(tmp_path: Path, whole: Path) -> None:
    with (
        mock.patch.object(
            program,
            "evaluate",
            side_effect=ZeroDivisionError,
        ),
        pytest.raises(ZeroDivisionError),
    ):
        train_here(tmp_path)
    assert state(tmp_path)["step"] == 4
    check_end(tmp_path, whole)


def test_loss_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    def spoil(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"][0].detach().fill_(torch.nan)

    with (
        at_step(5, spoil),
        pytest.raises(UserError, match="the loss is nan .* at step 8: lower optim.lr"),
    ):
        train_here(tmp_path, "--log.every=4")
    assert state(tmp_path)["step"] == rows(tmp_path, "train")[-1]["step"] == 4


def test_two_ranks_that_stop_together_and_resume_equal_one_that_accumulates(tmp_path: Path) -> None:
    """But for BatchNorm in validation, which has the statistics of the rank's own samples."""
    train_here(tmp_path / "one", *RANKS)
    support.run_program("test_train", tmp_path, ranks=2)
    weights = state(tmp_path / "one")["model"]
    has_batch_norm = len(support.parameters(weights)) < len(weights)
    check_close(
        tmp_path / "two", tmp_path / "one", *(["train"] if has_batch_norm else ["train", "val"])
    )
    assert [(tmp_path / f"stopped-{rank}").read_text() for rank in (0, 1)] == [
        "stopped at step 5"
    ] * 2


def train_on_ranks(folder: Path, world: distributed.World) -> None:
    """Train until rank 1 alone gets a signal, and resume."""
    try:
        with at_step(4, ask_to_stop if world.rank == 1 else lambda _: None):
            train_here(folder / "two", *RANKS, world=world)
    except Stopped as stopped:
        (folder / f"stopped-{world.rank}").write_text(str(stopped).split(":")[0])
    train_here(folder / "two", *RANKS, world=world)


if __name__ == "__main__":
    if "RANK" in os.environ:
        with distributed.init("cpu") as joined:
            train_on_ranks(Path(sys.argv[1]), joined)
    else:
        torch.optim.AdamW([torch.zeros(1)])  # imports what each process would import again
        support.load_all(DataConfig())
        with few_samples():
            for fsync in (4, 6, 9):
                train_until_killed(fsync)
            program.main()
