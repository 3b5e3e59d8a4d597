"""The schedules against torch's, at every step; short runs; steps that fp16 skips."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, rows
from torch import nn
from torch.optim import lr_scheduler

PEAK = 2e-3


def rates(
    p: Package,
    total: int,
    name: str,
    **options: object,
) -> list[float]:
    """Return the learning rate of each step; momentum stays."""
    chosen = [f"--schedules.{key}={value}" for key, value in options.items()]
    cfg = p.options(
        f"--optim.lr={PEAK}", "--optim.lr_scaling=none", f"--schedules.name={name}", *chosen
    )
    plan = p.loader.BatchPlan(
        100,
        10,
        1,
        10,
        10,
        total,
        10,
    )
    component = p.components.schedules.Schedules(cfg.schedules, None)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], betas=(0.7, 0.9))
    schedule = component.build_schedule(plan, cfg)
    found = []
    assert schedule.peak == PEAK
    for step in range(total):
        found.append(schedule.set(optimizer, step))
        assert (optimizer.param_groups[0]["lr"], *optimizer.param_groups[0]["betas"]) == (
            found[-1],
            0.7,
            0.9,
        )
    return found


def of_torch(make: Callable[[torch.optim.Optimizer], Any], total: int) -> list[float]:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=PEAK)
    schedule = make(optimizer)
    found = []
    for _ in range(total):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("total", [20, 61])
def test_cyclical(package: MakePackage, total: int) -> None:
    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.CyclicLR:
        return lr_scheduler.CyclicLR(optimizer, PEAK / 4, PEAK, 5, cycle_momentum=False)

    found = rates(
        package("mlp", "schedules"),
        total,
        "cyclical",
        cycle_steps=10,
        cycle_factor=4,
    )
    assert found == pytest.approx(of_torch(make, total), rel=1e-7)


@pytest.mark.parametrize("total", [20, 300])
def test_cosine_after_a_warmup(package: MakePackage, total: int) -> None:
    warmup = total // 5

    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
        rise = lr_scheduler.LinearLR(
            optimizer,
            start_factor=1 / (warmup + 1),
            total_iters=warmup,
        )
        fall = lr_scheduler.CosineAnnealingLR(optimizer, total - warmup, eta_min=PEAK / 100)
        return lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])

    found = rates(
        package("mlp", "schedules"),
        total,
        "cosine",
        warmup=0.2,
        final=0.01,
    )
    assert found == pytest.approx(of_torch(make, total), rel=1e-7)


def test_constant_after_a_warmup(package: MakePackage) -> None:
    def make(optimizer: torch.optim.Optimizer) -> lr_scheduler.LinearLR:
        return lr_scheduler.LinearLR(optimizer, start_factor=1 / 11, total_iters=10)

    assert rates(package("mlp", "schedules"), 50, "constant", warmup=0.2) == pytest.approx(
        of_torch(make, 50), rel=1e-7
    )


def test_wsd_falls_by_the_square_root(package: MakePackage) -> None:
    """Haegele et al. 2024, section 3: 1 - sqrt((n - (N - N_decay)) / N_decay)."""
    found = rates(
        package("mlp", "schedules"),
        200,
        "wsd",
        warmup=0.05,
        decay=0.2,
        final=0.1,
    )
    assert found[:10] == pytest.approx([PEAK * (step + 1) / 11 for step in range(10)])
    assert found[10:161] == pytest.approx([PEAK] * 151)
    assert found[160:] == pytest.approx(
        [PEAK * (0.1 + 0.9 * (1 - ((n - 160) / 40) ** 0.5)) for n in range(160, 200)]
    )


@pytest.mark.parametrize("name", ["cosine", "cyclical", "wsd", "constant"])
@pytest.mark.parametrize("total", [1, 2, 3, 19])
def test_rates_of_a_short_run_are_in_range(package: MakePackage, name: str, total: int) -> None:
    for warmup in (0.0, 0.5, 0.8):
        assert all(
            0 < rate <= PEAK
            for rate in rates(package("mlp", "schedules"), total, name, warmup=warmup)
        )


def test_parts_of_the_peak_and_scales_of_groups(package: MakePackage) -> None:
    p = package("mlp", "schedules")
    cfg = p.options(
        "--optim.lr=1e-3",
        "--optim.lr_scaling=linear",
        "--optim.base_batch=5",
        "--schedules.warmup=0",
    )
    plan = p.loader.BatchPlan(
        100,
        10,
        1,
        10,
        10,
        30,
        10,
    )
    groups = [
        {"params": [nn.Parameter(torch.zeros(1))], "lr_scale": scale} for scale in (1.0, 0.25)
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    assert (
        p.components.schedules.Schedules(cfg.schedules, None)
        .build_schedule(plan, cfg)
        .set(optimizer, 0)
        == 2e-3
    )
    assert [group["lr"] for group in optimizer.param_groups] == [2e-3, 5e-4]


def test_wsd_is_continued_from_before_its_decay(package: MakePackage, tmp_path: Path) -> None:
    """The rates before the decay do not depend on the length of the run."""
    p = package("mlp", "schedules")
    options = [
        "--schedules.enabled=true",
        "--schedules.name=wsd",
        "--schedules.warmup=0",
        "--train.eval_every=4",
    ]
    p.train_here(tmp_path, *options, "--train.steps=4", "--schedules.decay=0.25")
    longer = ["--train.steps=8", "--schedules.decay=0.5", "--run.allow_changes=true"]
    p.train_here(tmp_path, *options, *longer)
    found = [row["lr"] for row in rows(tmp_path, "train")]
    assert found[:5] == [p.options().optim.lr] * 5
    assert found[5:] == sorted(found[5:], reverse=True)
