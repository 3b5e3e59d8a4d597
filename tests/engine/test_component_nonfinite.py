"""nonfinite: BatchNorm's statistics, optimizers that are not fused, two ranks that decide alike."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved

ON = [
    "--nonfinite.enabled=true",
    "--train.steps=12",
    "--train.eval_every=4",
    "--train.batch_size=8",
    "--run.keep=99",
]


def fault(
    p: Package,
    steps: set[int],
    factor: float,
) -> Callable[..., Any]:
    """Return a `Prepare.forward` that multiplies some training batches, counted from 0."""
    forward = p.data.Prepare.forward
    calls = [0]

    def faulty(
        self: Any,
        batch: Any,
        training: bool,
        generator: torch.Generator,
    ) -> Any:
        inputs, targets = forward(self, batch, training, generator)
        calls[0] += training
        used = factor if training and calls[0] - 1 in steps else 1.0
        return inputs * used, targets * used

    return faulty


def at(folder: Path, step: int, key: str) -> Any:
    return torch.load(folder / f"a/checkpoints/step-{step:08d}/state.pt", weights_only=True)[key]


def test_skipped_step_leaves_statistics_and_moments(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("nonfinite")
    monkeypatch.setattr(p.data.Prepare, "forward", fault(p, {5}, float("nan")))
    options = [*ON, "--model.kind=batch_norm", "--train.eval_every=1"]
    p.train_here(tmp_path, *options)
    before, skipped, later = (at(tmp_path, step, "model") for step in (5, 6, 7))
    assert equal(before, skipped)
    assert equal(at(tmp_path, 5, "optimizer")["state"], at(tmp_path, 6, "optimizer")["state"])
    assert not equal(skipped, later)
    assert all(value.isfinite().all() for value in saved(tmp_path)["model"].values())
    assert [row["skipped"] for row in rows(tmp_path, "train")] == [0] * 5 + [1] * 7


def test_only_the_micro_batch_that_is_not_finite_is_missing_in_a_row(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("nonfinite")
    options = [
        *ON,
        "--train.gradient_accumulation_steps=2",
        "--train.batch_size=4",
        "--log.every=2",
        "--train.steps=2",
    ]
    losses = []
    original = p.train.compute_loss

    def noted(net: Any, batch: Any) -> Any:
        loss, metrics = original(net, batch)
        losses.append(metrics["loss"][0].item() / metrics["loss"][1])
        return loss, metrics

    monkeypatch.setattr(p.train, "compute_loss", noted)
    monkeypatch.setattr(
        p.data.Prepare,
        "forward",
        fault(p, {1}, float("inf")),
    )
    p.train_here(tmp_path, *options)
    row = rows(tmp_path, "train")[0]
    assert row["loss"] == pytest.approx(sum(losses[place] for place in (0, 2, 3)) / 3, rel=1e-6)
    assert row["skipped"] == 1


RANKS = """
import torch
from {0} import data, train
forward, calls = data.Prepare.forward, [0]
def faulty(self, batch, training, generator):
    inputs, targets = forward(self, batch, training, generator)
    calls[0] += training
    import os
    bad = training and os.environ["RANK"] == "1" and calls[0] in (3, 8)
    return inputs, targets * (float("nan") if bad else 1.0)
data.Prepare.forward = faulty
train.main()
"""


def test_ranks_decide_alike(tiny: MakePackage, tmp_path: Path) -> None:
    """Rank 1 alone has losses that are not finite."""
    p = tiny("nonfinite")
    program = tmp_path / "program.py"
    program.write_text(RANKS.format(p.name))
    options = [*ON, "--train.batch_size=4", "--log.every=2"]
    arguments = p.arguments(tmp_path, *options, "--model.dropout=0")
    start_python = importlib.import_module("warm").start_python
    done = start_python(p.root, str(program), *arguments, ranks=2).finish()
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path)["components"]["nonfinite"]["skipped"] == 2
    assert rows(tmp_path, "train")[-1]["skipped"] == 2


def test_stopped_run_resumes_to_the_same_end(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny("nonfinite")
    support = importlib.import_module(f"{p.name}.tests.support")
    clean = p.data.Prepare.forward
    with monkeypatch.context() as patch:
        patch.setattr(
            p.data.Prepare,
            "forward",
            fault(p, {1, 7}, float("nan")),
        )
        p.train_here(tmp_path / "whole", *ON)
    with monkeypatch.context() as patch:
        patch.setattr(
            p.data.Prepare,
            "forward",
            fault(p, {1, 7}, float("nan")),
        )
        with support.at_step(5, support.ask_to_stop), pytest.raises(p.errors.Stopped):
            p.train_here(tmp_path / "parts", *ON)
    assert saved(tmp_path / "parts")["step"] < 8
    assert p.data.Prepare.forward is clean
    done = saved(tmp_path / "parts")["step"]
    monkeypatch.setattr(
        p.data.Prepare,
        "forward",
        fault(p, {7 - done}, float("nan")),
    )
    p.train_here(tmp_path / "parts", *ON)
    assert equal(saved(tmp_path / "parts"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "parts", "val") == rows(tmp_path / "whole", "val")


def test_run_that_had_no_checks_can_begin_with_them(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("nonfinite")
    p.train_here(tmp_path, *ON, "--nonfinite.enabled=false", "--train.steps=4")
    p.train_here(tmp_path, *ON, "--train.steps=8", "--run.allow_changes=true")
    p.train_here(tmp_path, *ON, "--nonfinite.enabled=false", "--run.allow_changes=true")
    assert saved(tmp_path)["step"] == 12
