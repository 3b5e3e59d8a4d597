"""Debugging tools: what they find, that they change no result, and that they end with the run."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..errors import UserError
from ..model import build
from .support import equal, rows, state, train_here

ON = ("--debug.enabled=true", "--train.steps=3", "--train.eval_every=3", "--log.every=1")
TOOLS = ("--debug.nan=true", "--debug.anomaly=true", "--debug.deterministic=true")


class Scaled(torch.autograd.Function):
    """Returns its input; multiplies the gradient by a factor, which is wrong unless it is 1."""

    @staticmethod
    def forward(
        ctx: Any,
        value: Tensor,
        factor: float,
    ) -> Tensor:
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(
        ctx: Any,
        *gradients: Tensor,
    ) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def scale_gradient(factor: float) -> Any:
    """Multiply the gradient of the last module with parameters in all models built from here on."""

    def build_changed(*sections: Any) -> nn.Module:
        net = build(*sections)
        layers = [module for module in net.modules() if list(module.parameters(recurse=False))]
        apply: Any = Scaled.apply
        layers[-1].register_forward_hook(lambda module, inputs, output: apply(output, factor))
        return net

    return mock.patch.object(program, "build", build_changed)


def test_tools_change_no_result_and_end_with_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path / "without", *ON)
    train_here(tmp_path / "with", *ON, *TOOLS, "--debug.gradcheck=true")
    assert "debug.gradcheck: the gradients agree with finite differences" in capsys.readouterr().out
    assert equal(state(tmp_path / "with")["model"], state(tmp_path / "without")["model"])
    assert rows(tmp_path / "with", "train") == rows(tmp_path / "without", "train")
    assert not torch.is_anomaly_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_first_gradient_with_infinity_is_named(tmp_path: Path) -> None:
    message = "debug.nan: the gradient of the output"
    with scale_gradient(float("inf")), pytest.raises(UserError, match=message):
        train_here(tmp_path, *ON, "--debug.nan=true")


def test_wrong_gradient_is_found(tmp_path: Path) -> None:
    message = "debug.gradcheck: the gradient of .* is wrong"
    with scale_gradient(1.5), pytest.raises(UserError, match=message):
        train_here(tmp_path, *ON, "--debug.gradcheck=true")
