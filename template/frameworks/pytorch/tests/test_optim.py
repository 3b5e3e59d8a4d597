"""Config, schedule and clipping; the last two against torch's own."""

from typing import Literal

import pytest
import torch
from torch import nn

from ..config import BaseConfig, OptimConfig, parse
from ..errors import UserError
from ..loader import BatchPlan
from ..optim import OneCycle, adamw, clip


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--optim.typo=1", "optim.typo"),
        ("--train.batch_size=0", "train.batch_size is 0: it must be in [1, inf)"),
        ("--optim.beta1=1.0", "optim.beta1 is 1.0: it must be in [0, 1)"),
        ("--train.steps=many", "train.steps"),
        ("--speed.precision=fp7", "speed.precision"),
        ("--config=missing.yaml", "missing.yaml"),
    ],
)
def test_wrong_option_is_one_line(option: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(BaseConfig, [option])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("steps", [7, 10, 100])
def test_one_cycle_equals_torch(
    steps: int, strategy: Literal["cos", "linear"], three_phase: bool
) -> None:
    cfg = OptimConfig(
        lr=0.1, pct_start=0.35, div_factor=20, three_phase=three_phase, anneal_strategy=strategy
    )
    ours, theirs = (adamw(nn.Linear(2, 2), cfg) for _ in range(2))
    reference = torch.optim.lr_scheduler.OneCycleLR(
        theirs,
        0.1,
        steps,
        pct_start=0.35,
        div_factor=20,
        three_phase=three_phase,
        anneal_strategy=strategy,
    )
    schedule = OneCycle(
        cfg,
        BatchPlan(
            1000,
            8,
            1,
            8,
            125,
            steps,
            10,
        ),
    )
    for step in range(steps):
        if step > 0:
            theirs.step()
            reference.step()
        lr = schedule.set(ours, step)
        for group, expected in zip(
            ours.param_groups,
            theirs.param_groups,
            strict=True,
        ):
            assert lr == group["lr"] == pytest.approx(expected["lr"])
            assert group["betas"] == pytest.approx(expected["betas"])


@pytest.mark.parametrize("max_value", [None, 2.0])
@pytest.mark.parametrize("max_norm", [None, 1.0, 100.0])
def test_clipping_equals_torch(max_norm: float | None, max_value: float | None) -> None:
    ours, theirs = ([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))] for _ in range(2))
    for parameters in (ours, theirs):
        parameters[0].grad = torch.tensor([3.0, -4.0])
        parameters[1].grad = torch.tensor([12.0])
    if max_value is not None:
        nn.utils.clip_grad_value_(theirs, max_value)
    expected = nn.utils.clip_grad_norm_(theirs, max_norm or 1e9)
    torch.testing.assert_close(
        clip(
            ours,
            max_norm,
            max_value,
        ),
        expected,
    )
    torch.testing.assert_close([it.grad for it in ours], [it.grad for it in theirs])
