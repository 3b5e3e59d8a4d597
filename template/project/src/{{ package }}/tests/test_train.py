"""Whole runs: the loss falls, a resumed run equals an uninterrupted one, ranks equal accumulation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import checkpoint
from ..config import Config
from ..distributed import World
from ..tools import evaluate, report
from ..train import main, train
from .conftest import SMALL, run_ranks


def rows(run: Path, split: str) -> list[dict[str, Any]]:
    """Return the logged metrics of a split, without what depends on the clock."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "samples_per_second")
    return [{key: row[key] for key in row if key not in clock} for row in logged if row["split"] == split]


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    state = checkpoint.read_state(run / "checkpoints" / f"step-{step:08d}", torch.device("cpu"))
    found: dict[str, torch.Tensor] = state["model"]
    return found


def test_the_loss_falls_and_the_files_are_there(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = train(config("--run.name=a", "--train.steps=60", "--train.micro_batch=32"), world)
    losses = [row["loss"] for row in rows(tmp_path / "a", "train")]
    assert losses[-1] < 0.85 * losses[0]
    assert rows(tmp_path / "a", "val")[-1]["loss"] == results["loss"]
    assert "held out:" in capsys.readouterr().out
    assert Config(run=config(f"--config={tmp_path}/a/config.json").run).run.name == "a"

    evaluate.main([str(tmp_path / "a"), "--device=cpu"])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["loss"]) == pytest.approx(results["loss"], rel=1e-5)
    report.main([str(tmp_path / "a")])
    assert (tmp_path / "a" / "report.png").stat().st_size > 10_000


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(
    config: Callable[..., Config], world: World, tmp_path: Path, workers: int
) -> None:
    options = ["--train.eval_every=4", "--log.every=2", "--train.steps=12", "--run.seed=3"]
    options.append(f"--loader.workers={workers}")
    train(config("--run.name=whole", *options), world)
    train(config("--run.name=cut", *options), world)
    cut = tmp_path / "cut"
    assert sorted(path.name for path in checkpoint.all_checkpoints(cut / "checkpoints")) == [
        "step-00000008",
        "step-00000012",
    ]
    (cut / "checkpoints" / "step-00000012" / "manifest.json").unlink()  # as if the run had died before
    with pytest.warns(UserWarning, match="passing over"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    for split in ("train", "val"):
        assert rows(cut, split) == rows(tmp_path / "whole", split)
    ours, theirs = weights(cut, 12), weights(tmp_path / "whole", 12)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_going_on_from_an_older_checkpoint_sets_the_newer_aside(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    options = ["--train.eval_every=2", "--train.steps=4", "--run.name=a"]
    train(config(*options), world)
    checkpoints = tmp_path / "a" / "checkpoints"
    changed = ["--train.steps=3", "--optim.weight_decay=0.7", f"--run.resume={checkpoints}/step-00000002"]
    train(config(*options, *changed), world)
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names == ["abandoned-step-00000004", "step-00000002", "step-00000003"]
    assert [row["step"] for row in rows(tmp_path / "a", "val")] == [2, 3]
    groups = checkpoint.read_state(checkpoints / "step-00000003", torch.device("cpu"))["optimizer"]["param_groups"]
    assert groups[0]["weight_decay"] == 0.7


def test_two_ranks_train_like_one_with_twice_the_accumulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = [f"--run.dir={tmp_path}", "--train.steps=6", "--log.every=1", "--train.micro_batch=8"]
    for name, ranks, accumulate in (("one", 1, 2), ("two", 2, 1)):
        done = run_ranks(ranks, [*shared, f"--run.name={name}", f"--train.accumulate={accumulate}"])
        assert done.returncode == 0, done.stderr
    one, two = rows(tmp_path / "one", "train"), rows(tmp_path / "two", "train")
    for alone, together in zip(one, two, strict=True):
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert together["lr"] == alone["lr"]
    assert len(one) == 6
    evaluate.main([str(tmp_path / "two"), "--device=cpu"])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["loss"]) == pytest.approx(rows(tmp_path / "two", "val")[-1]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--run.seed=9", "run.seed 0 there and 9 here"),
        ("--train.micro_batch=8", "global batch 16 there and 8 here"),
        ("--model.depth=3", "model"),
    ],
)
def test_a_run_that_cannot_go_on_says_why(
    config: Callable[..., Config], world: World, tmp_path: Path, change: str, message: str
) -> None:
    train(config("--run.name=a", "--train.steps=2"), world)
    with pytest.raises(SystemExit) as stop:
        main([*SMALL, f"--run.dir={tmp_path}", "--run.name=a", "--run.resume=auto", change])
    assert message in str(stop.value)
    assert "\n" not in str(stop.value)
    assert config(f"--config={tmp_path}/a/config.json").run.seed == 0, "the run's own config is not overwritten"
    with pytest.raises(SystemExit, match="exists: continue it"):
        main([*SMALL, f"--run.dir={tmp_path}", "--run.name=a"])


def test_a_loss_that_is_not_finite_stops_before_it_is_saved(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="at step"):
        main(
            [
                *SMALL,
                f"--run.dir={tmp_path}",
                "--run.name=a",
                "--optim.lr=1e30",
                "--optim.clip=null",
                "--optim.div_factor=1",
            ]
        )
    assert checkpoint.find(tmp_path / "a") is None


def test_an_error_on_ranks_is_told_and_ends_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = run_ranks(2, [f"--run.dir={tmp_path}", "--run.name=a"])
    assert done.returncode != 0
    assert "exists: continue it with --run.resume auto" in done.stderr


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # said where fp32 was asked for
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "fp32"])
def test_it_trains_on_a_gpu(tmp_path: Path, precision: str) -> None:
    options = ["--run.device=cuda", f"--speed.precision={precision}", "--speed.compile=model", "--run.name=a"]
    command = [*SMALL, f"--run.dir={tmp_path}", *options, "--loader.workers=2", "--train.steps=40"]
    if precision == "tf32" and torch.cuda.get_device_capability() < (8, 0):
        with pytest.raises(SystemExit, match="from Ampere on"):
            main(command)
        return
    main(command)
    losses = [row["loss"] for row in rows(tmp_path / "a", "train")]
    assert losses[-1] < 0.9 * losses[0]
