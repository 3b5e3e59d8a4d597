"""A state that has diverged is not saved."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .. import checkpoint
from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..faults import diverged
from ..train import train

pytestmark = pytest.mark.usefixtures("short_validation")


def test_huge_learning_rate_saves_nothing_and_names_the_last_good_checkpoint(
    config: Callable[..., Config], world: World, tmp_path: Path
) -> None:
    options = ["--run.name=a", "--train.steps=6", "--train.eval_every=1", "--log.every=50", "--optim.clip=null"]
    with pytest.raises(UserError, match="^training has diverged: .* at step 1, which is not saved: lower optim.lr$"):
        train(config(*options, "--optim.lr=1e38"), world)
    assert checkpoint.find(tmp_path / "a") is None
    train(config(*options, "--run.name=b", "--train.steps=2"), world)
    good = tmp_path / "b/checkpoints/step-00000002"
    with pytest.raises(UserError, match=rf"at step 3.*: lower optim.lr, and resume with --run.resume {good}$"):
        train(config(*options, "--run.name=b", "--run.resume=auto", "--optim.lr=1e38"), world)
    assert checkpoint.find(tmp_path / "b") == good


class Net(nn.Module):
    """A mask that is infinite on purpose, and weights."""

    mask: torch.Tensor

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), scale))
        self.fixed = nn.Parameter(torch.full((4,), math.inf), requires_grad=False)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4,), -math.inf))


def saved(net: nn.Module, moment: float = 0.0, average: float = 0.0) -> dict[str, Any]:
    moments = {0: {"step": torch.tensor(3.0), "exp_avg_sq": torch.full((4, 4), moment)}}
    return {
        "step": 7,
        "model": net.state_dict(),
        "optimizer": {"adamw": {"state": moments}, "param_groups": [{"betas": (0.9, 0.99)}]},
        "ema": {"weight": torch.tensor(average)},
    }


def test_only_what_is_beyond_measure_is_refused(world: World, tmp_path: Path) -> None:
    """Large weights are accepted in a model that began with them, and masks in any."""

    def check(net: Net, initial: float = 1.0, **others: float) -> None:
        diverged.check(net, saved(net, **others), lambda: Net(initial), tmp_path, world)

    check(Net(), moment=1e9)
    check(Net(500.0))
    check(Net(2e4), initial=1e3)
    with pytest.raises(UserError, match=r"the weights have grown to a root mean square of 1\.\de\+04 at step 7"):
        check(Net(2e4))
    with pytest.raises(UserError, match=r"of 8\.\de\+36 at"):
        check(Net(1e37))
    broken = Net()
    assert broken.norm.running_var is not None
    broken.norm.running_var[1] = math.inf
    no_longer = "weights, statistics or optimizer state are no longer finite"
    for net, others in [
        (broken, {}),
        (Net(math.nan), {}),
        (Net(), {"moment": math.inf}),
        (Net(), {"average": math.nan}),
    ]:
        with pytest.raises(UserError, match=no_longer):
            check(net, **others)
