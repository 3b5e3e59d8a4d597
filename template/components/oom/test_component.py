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
from ..errors import Stopped, UserError
from ..metrics import compute_loss
from ..model import build
from .support import ask_to_stop, at_step, equal, rows, state, train_here

OOM = (
    "--oom.enabled=true",
    "--train.micro_batch=12",
    "--train.accumulate=2",
    "--optim.eps=1e-4",
    "--train.steps=6",
)


class Limited(nn.Module):
    """A model that runs out of memory above a number of samples; always in evaluation mode.

    So BatchNorm, dropout and noise do not depend on the size of a forward pass.
    """

    def __init__(self, net: nn.Module, limit: int) -> None:
        super().__init__()
        self.net, self.limit = net, limit
        self.sizes: list[int] = []
        self.train()

    def train(self, mode: bool = True) -> "Limited":
        return super().train(False)

    def forward(self, *parts: Any, **named: Any) -> tuple[Tensor, Metrics]:
        first: Tensor = [*parts, *named.values()][0]
        if not torch.is_grad_enabled():
            return compute_loss(self.net, named or parts)
        self.sizes.append(len(first))
        if len(first) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute_loss(self.net, named or parts)


@contextmanager
def limited(limit: int, **attributes: object) -> Iterator[list[Limited]]:
    """Let training run out of memory above a number of samples; without augmentation."""
    prepare, built = data.Prepare.forward, list[Limited]()

    def build_limited(*sections: Any) -> nn.Module:
        built.append(Limited(build(*sections), limit))
        for name, value in attributes.items():
            setattr(built[-1], name, value)
        return built[-1]

    def prepare_plainly(own: Any, batch: Any, training: bool, generator: torch.Generator) -> Any:
        return prepare(own, batch, False, generator)

    replaced = mock.patch.object(data.Prepare, "forward", prepare_plainly)
    with mock.patch.object(program, "build", build_limited), replaced:
        yield built


def test_weights_are_those_of_a_run_with_enough_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with limited(100):
        train_here(tmp_path / "enough", *OOM)
    assert "out of memory" not in capsys.readouterr().err
    with limited(5) as built:
        train_here(tmp_path / "little", *OOM)
    assert re.findall(r"passes of (\d+) samples", capsys.readouterr().err) == ["6", "3"]
    assert built[0].sizes == [12, 6] + [3] * 8 * 6
    enough, little = state(tmp_path / "enough"), state(tmp_path / "little")
    torch.testing.assert_close(enough["model"], little["model"], rtol=1e-3, atol=1e-5)
    for row, other in zip(
        rows(tmp_path / "enough", "train"), rows(tmp_path / "little", "train"), strict=True
    ):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def test_memory_that_runs_out_in_the_second_micro_batch_repeats_the_step(tmp_path: Path) -> None:
    with limited(100):
        train_here(tmp_path / "enough", *OOM)
    with limited(100) as built, at_step(0, lambda _: setattr(built[0], "limit", 6)):
        train_here(tmp_path / "late", *OOM)
    assert state(tmp_path / "late")["components"]["oom"] == {"size": 6}
    weights = (state(tmp_path / name)["model"] for name in ("enough", "late"))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)


def test_size_is_remembered_and_the_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    with limited(6):
        train_here(tmp_path / "whole", *OOM)
    with limited(6), at_step(2, ask_to_stop), pytest.raises(Stopped):
        train_here(tmp_path / "stopped", *OOM)
    with limited(6) as built:
        train_here(tmp_path / "stopped", *OOM)
    assert set(built[0].sizes) == {6}
    assert equal(state(tmp_path / "whole"), state(tmp_path / "stopped"))


def test_model_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    with (
        limited(0),
        pytest.raises(UserError, match="out of memory with 1 samples: use a smaller model"),
    ):
        train_here(tmp_path, *OOM)
    with limited(5), pytest.raises(UserError, match="out of memory with 6 samples"):
        train_here(tmp_path, *OOM, "--oom.smallest=4", "--run.name=second")


def test_loss_that_compares_samples_is_refused(tmp_path: Path) -> None:
    with (
        limited(100, batch_coupled=True),
        pytest.raises(UserError, match="would change the loss of Limited"),
    ):
        train_here(tmp_path, *OOM)
