"""Debugging tools: what they find, that they change no result, and that they end with the training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from .. import train as program
from ..errors import UserError
from ..model import build
from .support import equal, rows, state, train_here

ON = ("--debug.enabled=true", "--train.steps=3", "--train.eval_every=3", "--log.every=1")
TOOLS = (
    "--debug.nan=true",
    "--debug.anomaly=true",
    "--debug.deterministic=true",
    "--debug.gradcheck=true",
)


class Scaled(torch.autograd.Function):
    """Returns its input; multiplies the gradient by a factor, which is wrong unless it is 1."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


@contextmanager
def changed(forward: float = 1.0, backward: float = 1.0) -> Iterator[list[str]]:
    """Multiply the output of the model's last module with parameters, and its gradient; yield the module's name."""
    names, scaled = list[str](), cast(Any, Scaled.apply)

    def build_changed(*sections: Any) -> nn.Module:
        net = build(*sections)
        names[:] = [name for name, module in net.named_modules() if module._parameters]
        module = net.get_submodule(names[-1])
        module.register_forward_hook(
            lambda _module, _inputs, output: scaled(output * forward, backward)
        )
        return net

    with mock.patch.object(program, "build", build_changed):
        yield names


def test_tools_change_no_result_and_end_with_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(tmp_path / "without", *ON)
    train_here(tmp_path / "with", *ON, *TOOLS)
    assert "debug.gradcheck: the gradients agree with finite differences" in capsys.readouterr().out
    assert equal(state(tmp_path / "with")["model"], state(tmp_path / "without")["model"])
    assert rows(tmp_path / "with", "train") == rows(tmp_path / "without", "train")
    assert not torch.is_anomaly_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_first_module_with_nan_is_named(tmp_path: Path) -> None:
    with (
        changed(forward=float("nan")) as names,
        pytest.raises(UserError, match="debug.nan: the output of ") as error,
    ):
        train_here(tmp_path, *ON, "--debug.nan=true")
    assert f"the output of {names[-1]} (" in str(error.value)
    assert "is the first with NaN" in str(error.value)


def test_first_gradient_with_infinity_is_named(tmp_path: Path) -> None:
    with (
        changed(backward=float("inf")),
        pytest.raises(UserError, match="debug.nan: the gradient of the output"),
    ):
        train_here(tmp_path, *ON, "--debug.nan=true")


def test_wrong_gradient_is_found(tmp_path: Path) -> None:
    with (
        changed(backward=1.5),
        pytest.raises(UserError, match="debug.gradcheck: the gradient of .* is wrong"),
    ):
        train_here(tmp_path, *ON, "--debug.gradcheck=true")


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_backward_function_with_nan_is_shown(tmp_path: Path) -> None:
    with (
        changed(backward=float("nan")),
        pytest.raises(RuntimeError, match="ScaledBackward.* returned nan values"),
    ):
        train_here(tmp_path, *ON, "--debug.anomaly=true")
    assert not torch.is_anomaly_enabled()


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="needs a machine without CUDA, which reports it"
)
def test_synchronization_needs_cuda(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^debug.synchronization is warn: only CUDA reports it"):
        train_here(tmp_path, *ON, "--debug.synchronization=warn")
