"""fp8, emulated on the CPU: what is converted, training near bf16, evaluation on a machine without fp8."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .. import metrics
from ..components.fp8 import Fp8, Fp8Config
from ..data import DataConfig
from ..errors import UserError
from ..evaluate import evaluate_run
from ..model import ModelConfig, build
from .support import CPU, few_samples, load_all, rows, state, train_here

SHORT = ("--train.steps=4", "--train.eval_every=4", "--log.every=1", "--speed.precision=bf16")
ENABLED = "--fp8.enabled=true"


def network() -> nn.Module:
    return build(ModelConfig(), load_all(DataConfig())[2])


def suits(model: nn.Module) -> bool:
    blocks: Any = getattr(model, "blocks", nn.ModuleList())
    linear = [layer for layer in blocks.modules() if isinstance(layer, nn.Linear)]
    return any(layer.in_features % 16 == layer.out_features % 16 == 0 for layer in linear)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fp8, "emulate", True)


@pytest.mark.usefixtures("emulated")
def test_suitable_layers_are_converted_and_names_stay() -> None:
    net = nn.Module()
    net.blocks = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 40), nn.Linear(40, 16))
    net.head = nn.Linear(16, 16)
    names = list(net.state_dict())
    Fp8(Fp8Config(enabled=True), CPU).convert_model(net)
    kinds = [type(layer).__name__ for layer in net.modules() if not list(layer.children())]
    assert kinds == ["Float8Linear", "GELU", "Linear", "Linear", "Linear"]
    assert list(net.state_dict()) == names


@pytest.mark.usefixtures("emulated")
def test_model_without_suitable_layers_is_refused() -> None:
    net = nn.Module()
    net.blocks = nn.ModuleList([nn.Linear(16, 10)])
    with pytest.raises(
        UserError, match="has no linear layers in `blocks` whose sizes are multiples of 16"
    ):
        Fp8(Fp8Config(enabled=True), CPU).convert_model(net)


def test_training_is_near_bf16_and_any_machine_evaluates(
    tmp_path: Path, emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not suits(network()):
        with pytest.raises(UserError, match="has no linear layers in `blocks`"):
            train_here(tmp_path, *SHORT, ENABLED)
        return
    recorded = list[bool]()
    original = metrics.compute_loss

    def note(net: nn.Module, batch: Any) -> Any:
        recorded.append(torch.is_grad_enabled() or torch.is_inference_mode_enabled())
        return original(net, batch)

    monkeypatch.setattr(metrics, "compute_loss", note)
    train_here(tmp_path / "bf16", *SHORT)
    assert all(recorded), "inference mode"
    recorded.clear()
    train_here(tmp_path / "fp8", *SHORT, ENABLED)
    assert recorded, "validated"
    assert not any(recorded), "without recording gradients"
    found = [
        [row["grad_norm"] for row in rows(tmp_path / name, "train")] for name in ("fp8", "bf16")
    ]
    assert found[0] == pytest.approx(found[1], rel=0.3)
    assert found[0] != found[1]
    assert {value.dtype for value in state(tmp_path / "fp8")["model"].values()} <= {
        torch.float32,
        torch.int64,
    }
    monkeypatch.setattr(Fp8, "emulate", False)
    with few_samples():
        results = evaluate_run(tmp_path / "fp8/first", CPU)
    assert results["loss"] == pytest.approx(rows(tmp_path / "fp8", "val")[-1]["loss"], rel=0.05)


def test_training_without_the_hardware_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^fp8\.enabled is true, but this is the cpu, and it needs a GPU with fp8"
    ):
        train_here(tmp_path, ENABLED)


@pytest.mark.usefixtures("emulated")
def test_other_precision_is_refused(tmp_path: Path) -> None:
    if suits(network()):
        with pytest.raises(UserError, match=r"speed\.precision is fp32: fp8\.enabled needs bf16"):
            train_here(tmp_path, ENABLED, "--speed.precision=fp32")
