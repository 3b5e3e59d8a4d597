"""Every learning-rate schedule equals torch's scheduler or the published formula."""

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from .. import optim, techniques
from ..config import Config, OptimConfig
from ..distributed import World
from ..errors import UserError
from ..grad_scaler import CountingScaler
from ..speed import Precision
from ..train import train
from .conftest import read_rows, unsupported

pytestmark = pytest.mark.usefixtures("short_validation")

PEAK = 2e-3


def references(make: Callable[[torch.optim.Optimizer], Any], total: int) -> list[tuple[float, float]]:
    """Return the learning rate and momentum per step of one of torch's schedulers."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=PEAK)
    schedule = make(optimizer)
    values = []
    for step in range(total):
        values.append((schedule.get_last_lr()[0], optimizer.param_groups[0]["betas"][0]))
        optimizer.step()
        if step < total - 1:
            schedule.step()
    return values


def ours(cfg: OptimConfig, total: int) -> list[tuple[float, float]]:
    return [techniques.build_schedule(cfg, PEAK, total)(step) for step in range(total)]


def assert_equal(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> None:
    for mine, theirs in zip(first, second, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-7)


@pytest.mark.parametrize("total", [10, 97, 1000])
@pytest.mark.parametrize("anneal_strategy", ["cos", "linear"])
@pytest.mark.parametrize(("three_phase", "pct_start"), [(False, 0.3), (False, 0.7), (True, 0.3), (True, 0.5)])
def test_onecycle_equals_torch(total: int, anneal_strategy: Any, three_phase: bool, pct_start: float) -> None:
    shape: Any = {"pct_start": pct_start, "div_factor": 10, "final_div_factor": 1e4}
    shape |= {"anneal_strategy": anneal_strategy, "three_phase": three_phase}

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.OneCycleLR:
        return lr_scheduler.OneCycleLR(optimizer, PEAK, total, **shape)

    assert_equal(ours(OptimConfig(**shape), total), references(make, total))
    fixed = [momentum for _, momentum in ours(OptimConfig(**shape, cycle_momentum=False), total)]
    assert fixed == [0.9] * total


def test_three_phases_longer_than_the_run_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"^optim.pct_start is 0.6: with optim.three_phase, .*: it must be at most 0.5$"
    ):
        OptimConfig(three_phase=True, pct_start=0.6)


@pytest.mark.parametrize("total", [20, 61])
def test_cyclic_equals_torch(total: int) -> None:
    cfg = OptimConfig(schedule="cyclic", div_factor=4, cycle_steps=10)

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.CyclicLR:
        return lr_scheduler.CyclicLR(optimizer, PEAK / 4, PEAK, 5, base_momentum=0.85, max_momentum=0.95)

    assert_equal(ours(cfg, total), references(make, total))


@pytest.mark.parametrize("total", [20, 301])
def test_cosine_with_warmup_equals_torch(total: int) -> None:
    warmup = 7
    cfg = OptimConfig(schedule="cosine", warmup_steps=warmup, final_div_factor=100)

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
        rise = lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        fall = lr_scheduler.CosineAnnealingLR(optimizer, total - 1 - warmup, eta_min=PEAK / 100)
        return lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])

    assert_equal(ours(cfg, total), references(make, total))


def test_warmup_stable_decay_equals_the_formula() -> None:
    cfg = OptimConfig(schedule="wsd", warmup_steps=10, decay_fraction=0.2, final_div_factor=1e4)
    rates = [rate for rate, _ in ours(cfg, 200)]
    assert rates[:10] == pytest.approx([PEAK * (step + 1) / 11 for step in range(10)])
    assert rates[10:160] == pytest.approx([PEAK] * 150)
    fall = [1 - math.sqrt(part / 40) for part in range(41)]  # Haegele et al. 2024: 1 - sqrt((n - N) / N_decay)
    assert rates[159:] == pytest.approx([PEAK * (1e-4 + (1 - 1e-4) * height) for height in fall])


def test_constant_schedule_after_warmup() -> None:
    assert ours(OptimConfig(schedule="constant"), 5) == [(PEAK, 0.9)] * 5
    rates = [rate for rate, _ in ours(OptimConfig(schedule="constant", warmup_steps=3), 6)]
    assert rates == pytest.approx([PEAK / 4, PEAK / 2, PEAK * 3 / 4, PEAK, PEAK, PEAK])


def test_range_test_sweeps_exponentially() -> None:
    cfg = OptimConfig(schedule="range", range_low=1e-5, range_high=1e-1)
    assert [rate for rate, _ in ours(cfg, 5)] == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])


@pytest.mark.parametrize("schedule", ["onecycle", "cyclic", "cosine", "wsd", "constant", "range"])
@pytest.mark.parametrize("total", [1, 2, 3, 19])
def test_short_run_stays_in_range(schedule: Any, total: int) -> None:
    for three_phase in (False, True):
        cfg = OptimConfig(schedule=schedule, range_high=1e-3, three_phase=three_phase)
        for rate, momentum in ours(cfg, total):
            assert 0 < rate <= PEAK
            assert 0 < momentum < 1


def test_warmup_longer_than_the_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"optim.warmup_steps is 5: the run has only 5 steps"):
        techniques.build_schedule(OptimConfig(schedule="wsd", warmup_steps=5), PEAK, 5)(0)


@pytest.mark.parametrize("schedule", ["cyclic", "cosine", "wsd"])
def test_resumed_run_follows_the_same_schedule(
    config: Callable[..., Config], world: World, tmp_path: Path, schedule: str
) -> None:
    options = [f"--optim.schedule={schedule}", "--train.steps=12", "--train.eval_every=6", "--log.every=1"]
    train(config("--run.name=whole", *options), world)
    train(config("--run.name=cut", *options), world)
    (tmp_path / "cut/checkpoints/step-00000012/manifest.json").unlink()
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert read_rows(tmp_path / "cut", "train") == read_rows(tmp_path / "whole", "train")


def test_skipped_step_does_not_advance_the_schedule(
    config: Callable[..., Config], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = partial(CountingScaler, torch.device("cpu"), init_scale=2.0**60, backoff_factor=2.0**-16)
    monkeypatch.setattr(Precision, "scaler", lambda self: make())
    options = ["--speed.precision=fp16", "--train.steps=8", "--log.every=1", "--optim.warmup_steps=4"]
    run = config("--run.name=a", "--optim.schedule=constant", *options)
    if unsupported(options):
        with pytest.raises(UserError, match=re.escape(unsupported(options))):
            train(run, world)
        return
    train(run, world)
    logged = read_rows(tmp_path / "a", "train")
    skipped = [row["skipped_steps"] for row in logged]
    made = [row["step"] - count for row, count in zip(logged, skipped, strict=True)]
    expected = config("--optim.schedule=constant", *options).optim
    peak = optim.peak_lr(expected, 16)
    for row, before in zip(logged[1:], made, strict=False):
        assert row["lr"] == pytest.approx(techniques.build_schedule(expected, peak, 8)(before)[0])
    assert 1 <= skipped[-1] < 5
