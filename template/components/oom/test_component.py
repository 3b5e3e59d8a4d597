"""Out of memory: the same weights as with enough memory, and what is remembered."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
from ..metrics import compute_loss
from ..model import build
from .support import at_step, rows, state, train_here

OOM = ("--oom.enabled=true", "--train.micro_batch=12", "--train.accumulate=2")
OOM += ("--optim.eps=1e-4", "--train.steps=6")


class Limited(nn.Module):
    """A model that runs out of memory above a number of samples; always in evaluation mode.

    So BatchNorm, dropout and noise do not depend on the size of a forward pass.
    """

    def __init__(self, net: nn.Module, limit: int) -> None:
        super().__init__()
        self.net = net
        self.limit = limit
        self.sizes: list[int] = []
        self.train()

    def train(self, mode: bool = True) -> "Limited":
        return super().train(False)

    def forward(self, *parts: Any, **named: Any) -> tuple[Tensor, Metrics]:
        samples = len([*parts, *named.values()][0])
        if torch.is_grad_enabled():
            self.sizes.append(samples)
            if samples > self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return compute_loss(self.net, named or parts)


@contextmanager
def limited(limit: int) -> Iterator[list[Limited]]:
    """Let training run out of memory above a number of samples; without augmentation."""
    prepare = data.Prepare.forward
    built: list[Limited] = []

    def build_limited(*sections: Any) -> nn.Module:
        built.append(Limited(build(*sections), limit))
        return built[-1]

    def prepare_plainly(own: Any, batch: Any, training: bool, generator: torch.Generator) -> Any:
        return prepare(own, batch, False, generator)

    replaced = mock.patch.object(data.Prepare, "forward", prepare_plainly)
    with mock.patch.object(program, "build", build_limited), replaced:
        yield built


@pytest.fixture
def enough(tmp_path: Path) -> Path:
    with limited(100):
        train_here(tmp_path / "enough", *OOM)
    return tmp_path / "enough"


def test_weights_are_those_of_a_run_with_enough_memory(
    enough: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with limited(5) as built:
        train_here(tmp_path, *OOM)
    assert re.findall(r"passes of (\d+) samples", capsys.readouterr().err) == ["6", "3"]
    assert built[0].sizes == [12, 6] + [3] * 8 * 6
    torch.testing.assert_close(
        state(enough)["model"], state(tmp_path)["model"], rtol=1e-3, atol=1e-5
    )
    losses = [row["loss"] for row in rows(enough, "train")]
    assert [row["loss"] for row in rows(tmp_path, "train")] == pytest.approx(losses, rel=1e-4)


def test_memory_that_runs_out_in_a_later_step_repeats_it(enough: Path, tmp_path: Path) -> None:
    with limited(100) as built, at_step(0, lambda _: setattr(built[0], "limit", 6)):
        train_here(tmp_path, *OOM)
    assert state(tmp_path)["components"]["oom"] == {"size": 6}
    torch.testing.assert_close(
        state(enough)["model"], state(tmp_path)["model"], rtol=1e-3, atol=1e-5
    )
    with limited(6) as built:
        train_here(tmp_path, *OOM, "--train.steps=8")
    assert set(built[0].sizes) == {6}, "it is remembered"


def test_model_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    message = "out of memory with 6 samples: use a smaller model"
    with limited(5), pytest.raises(UserError, match=message):
        train_here(tmp_path, *OOM, "--oom.smallest=4")
