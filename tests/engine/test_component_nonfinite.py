"""nonfinite: BatchNorm's statistics, loss spikes, optimizers without a fused kernel, two ranks that decide alike."""

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
    "--train.micro_batch=8",
    "--run.keep=99",
]


def fault(p: Package, steps: set[int], factor: float) -> Callable[..., Any]:
    """Return a `Prepare.forward` that multiplies inputs and targets of some training batches, counted from 0."""
    forward, calls = p.data.Prepare.forward, [0]

    def faulty(self: Any, batch: Any, training: bool, generator: torch.Generator) -> Any:
        inputs, targets = forward(self, batch, training, generator)
        calls[0] += training
        used = factor if training and calls[0] - 1 in steps else 1.0
        return inputs * used, targets * used

    return faulty


def at(folder: Path, step: int, key: str) -> Any:
    return torch.load(folder / f"a/checkpoints/step-{step:08d}/state.pt", weights_only=True)[key]


@pytest.mark.parametrize("fused", ["true", "false"])
def test_skipped_step_leaves_statistics_and_moments(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: str
) -> None:
    p = tiny("nonfinite")
    monkeypatch.setattr(p.data.Prepare, "forward", fault(p, {5}, float("nan")))
    options = [*ON, "--model.kind=batch_norm", f"--optim.fused={fused}", "--train.eval_every=1"]
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
        "--train.accumulate=2",
        "--train.micro_batch=4",
        "--log.every=2",
        "--train.steps=2",
    ]
    losses, original = [], p.train.compute_loss

    def noted(net: Any, batch: Any) -> Any:
        loss, metrics = original(net, batch)
        losses.append(metrics["loss"][0].item() / metrics["loss"][1])
        return loss, metrics

    monkeypatch.setattr(p.train, "compute_loss", noted)
    monkeypatch.setattr(p.data.Prepare, "forward", fault(p, {1}, float("inf")))
    p.train_here(tmp_path, *options)
    row = rows(tmp_path, "train")[0]
    assert row["loss"] == pytest.approx(sum(losses[place] for place in (0, 2, 3)) / 3, rel=1e-6)
    assert row["skipped"] == 1


@pytest.mark.parametrize(("spike", "skipped"), [("3", 1), ("1e9", 0)])
def test_spike_is_above_a_multiple_of_the_running_mean(
    tiny: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spike: str, skipped: int
) -> None:
    p = tiny("nonfinite")
    # it looks for none in the first 20 steps
    monkeypatch.setattr(p.data.Prepare, "forward", fault(p, {5, 30}, 30.0))
    p.train_here(
        tmp_path,
        *ON,
        "--train.steps=40",
        f"--nonfinite.spike={spike}",
        "--log.every=20",
        "--optim.lr=1e-5",
    )
    state = saved(tmp_path)["components"]["nonfinite"]
    assert state["skipped"] == skipped
    assert state["seen"] == 40 - skipped
    if spike == "3":  # the formula, on the rows of a run that logs each step and skips none
        p.train_here(
            tmp_path / "all", *ON, "--train.steps=20", "--nonfinite.spike=1e9", "--log.every=1"
        )
        mean = 0.0
        for number, row in enumerate(rows(tmp_path / "all", "train"), 1):
            mean += (row["loss"] - mean) * max(0.02, 1 / number)
        assert saved(tmp_path / "all")["components"]["nonfinite"]["mean"] == pytest.approx(
            mean, rel=1e-5
        )


def test_rollback_returns_also_the_optimizer_and_may_do_so_again(
    tiny: MakePackage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    p = tiny("nonfinite")
    monkeypatch.setattr(p.data.Prepare, "forward", fault(p, {1, 6, 9}, float("nan")))
    p.train_here(
        tmp_path, *ON, "--nonfinite.action=rollback", "--train.steps=10", "--train.eval_every=5"
    )
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped")]
    back = [(2, 0), (7, 5), (10, 5)]
    assert said == [f"skipped steps before step {step}: weights of step {to}" for step, to in back]
    assert equal(at(tmp_path, 10, "model"), at(tmp_path, 5, "model"))
    assert equal(at(tmp_path, 10, "optimizer")["state"], at(tmp_path, 5, "optimizer")["state"])
    assert "snapshot" not in saved(tmp_path)["components"]["nonfinite"], (
        "it is the checkpoint itself"
    )


RANKS = """
import sys, torch
from {0} import data, train
forward, calls = data.Prepare.forward, [0]
def faulty(self, batch, training, generator):
    inputs, targets = forward(self, batch, training, generator)
    calls[0] += training
    import os
    bad = training and os.environ["RANK"] == "1" and calls[0] in (3, 8)
    return inputs, targets * ((float("nan") if calls[0] == 3 else 50.0) if bad else 1.0)
data.Prepare.forward = faulty
sys.modules["{0}.components.nonfinite"].LEAST = 3
train.main()
"""


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_ranks_decide_alike(tiny: MakePackage, tmp_path: Path, action: str) -> None:
    """Rank 1 alone has a loss that is not finite, and later one that is a spike."""
    p = tiny("nonfinite")
    program = tmp_path / "program.py"
    program.write_text(RANKS.format(p.name))
    options = [
        *ON,
        "--train.micro_batch=4",
        "--nonfinite.spike=5",
        f"--nonfinite.action={action}",
        "--log.every=2",
    ]
    run = importlib.import_module("warm").start_python(
        p.root, str(program), *p.arguments(tmp_path, *options, "--model.dropout=0"), ranks=2
    )
    done = run.finish()
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path)["components"]["nonfinite"]["skipped"] == 2
    assert rows(tmp_path, "train")[-1]["skipped"] == 2
    assert [line for line in done.stderr.splitlines() if "weights of" in line] == (
        [
            "skipped steps before step 4: weights of step 0",
            "skipped steps before step 8: weights of step 4",
        ]
        if action == "rollback"
        else []
    )


def test_run_that_had_no_checks_can_begin_with_them(tiny: MakePackage, tmp_path: Path) -> None:
    p = tiny("nonfinite")
    p.train_here(tmp_path, *ON, "--nonfinite.enabled=false", "--train.steps=4")
    p.train_here(tmp_path, *ON, "--nonfinite.action=rollback", "--train.steps=8")
    p.train_here(tmp_path, *ON, "--nonfinite.enabled=false")
    assert saved(tmp_path)["step"] == 12
