"""Out of memory: the same weights as with enough memory, and what is remembered."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import data
from .. import train as program
from ..contracts import Metrics
from ..errors import UserError
from ..loss import compute_loss
from ..model import build
from .support import rows, state, train_here

OOM = ["--oom.enabled=true", "--train.batch_size=12", "--train.gradient_accumulation_steps=2"]
OOM += ["--optim.eps=1e-4", "--train.steps=6"]


class Limited(nn.Module):
    """A model that runs out of memory above a number of samples; always in evaluation mode.

    So BatchNorm, dropout and noise do not depend on the size of a forward pass.
    """

    def __init__(
        self,
        net: nn.Module,
        limit: int,
    ) -> None:
        super().__init__()
        self.net = net
        self.limit = limit
        self.sizes: list[int] = []
        self.train()

    def train(
        self,
        mode: bool = True,
    ) -> "Limited":
        return super().train(False)

    def forward(
        self,
        *parts: Any,
        **named: Any,
    ) -> tuple[Tensor, Metrics]:
        samples = len([*parts, *named.values()][0])
        if torch.is_grad_enabled():
            self.sizes.append(samples)
            if samples > self.limit and len(self.sizes) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return compute_loss(self.net, named or parts)


def train_limited(
    folder: Path,
    limit: int,
    *options: str,
) -> list[int]:
    """Run out of memory from the fourth forward pass on; return the sizes of all. No augmentation.

    The fourth one is of the second micro-batch of a step, which begins again.
    """
    prepare = data.Prepare.forward
    built: list[Limited] = []

    def build_limited(*sections: Any) -> nn.Module:
        built.append(Limited(build(*sections), limit))
        return built[-1]

    def prepare_plainly(
        own: Any,
        batch: Any,
        training: bool,
        generator: torch.Generator,
    ) -> Any:
        return prepare(own, batch, False, generator)

    replaced = mock.patch.object(data.Prepare, "forward", prepare_plainly)
    with mock.patch.object(program, "build", build_limited), replaced:
        train_here(folder, *OOM, *options)
    return built[0].sizes


def test_weights_are_those_of_a_run_with_enough_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_limited(tmp_path / "enough", 100)
    sizes = train_limited(tmp_path / "little", 5)
    assert re.findall(r"passes of (\d+) samples", capsys.readouterr().err) == ["6", "3"]
    assert sizes == [12] * 4 + [6] + [3] * 8 * 5
    weights = [state(tmp_path / name)["model"] for name in ("enough", "little")]
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)
    losses = [row["loss"] for row in rows(tmp_path / "enough", "train")]
    found = [row["loss"] for row in rows(tmp_path / "little", "train")]
    assert found == pytest.approx(losses, rel=1e-4)
    more = train_limited(tmp_path / "little", 5, "--train.steps=8", "--run.allow_changes=true")
    assert set(more) == {3}, "it is remembered"


def test_model_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    message = "out of memory with 6 samples: use a smaller model"
    with pytest.raises(UserError, match=message):
        train_limited(tmp_path, 5, "--oom.smallest=4")
