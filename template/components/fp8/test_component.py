"""fp8, emulated on the CPU: what is converted, training near bf16, evaluation without fp8."""

from pathlib import Path

import pytest
from torch import nn

from ..components.fp8 import Fp8, Fp8Config
from ..errors import UserError
from ..evaluate import evaluate_run
from .support import CPU, few_samples, rows, train_here

SHORT = ("--train.steps=4", "--train.eval_every=4", "--log.every=1", "--speed.precision=bf16")
ENABLED = "--fp8.enabled=true"


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fp8, "emulate", True)


@pytest.mark.usefixtures("emulated")
def test_suitable_layers_are_converted_and_names_stay() -> None:
    net = nn.Module()
    net.blocks = nn.Sequential(
        nn.Linear(32, 64),
        nn.Linear(64, 40),
        nn.Linear(40, 16),
    )
    net.head = nn.Linear(16, 16)
    names = list(net.state_dict())
    Fp8(Fp8Config(enabled=True), CPU).convert_model(net)
    kinds = [type(layer).__name__ for layer in net.modules() if not list(layer.children())]
    assert kinds == ["Float8Linear", "Linear", "Linear", "Linear"]
    assert list(net.state_dict()) == names


@pytest.mark.usefixtures("emulated")
def test_model_without_suitable_layers_is_refused() -> None:
    message = "has no linear layers in `blocks` whose sizes are multiples of 16"
    with pytest.raises(UserError, match=message):
        Fp8(Fp8Config(enabled=True), CPU).convert_model(nn.Linear(16, 16))


def test_training_is_near_bf16_and_any_machine_evaluates(
    tmp_path: Path, emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        train_here(tmp_path / "fp8", *SHORT, ENABLED)
    except UserError as error:
        if "has no linear layers in `blocks`" not in str(error):
            raise
        pytest.skip(f"needs another model: {error}")
    train_here(tmp_path / "bf16", *SHORT)
    norms = [row["grad_norm"] for row in rows(tmp_path / "bf16", "train")]
    fp8_norms = [row["grad_norm"] for row in rows(tmp_path / "fp8", "train")]
    assert fp8_norms == pytest.approx(norms, rel=0.3)
    assert fp8_norms != norms
    monkeypatch.setattr(Fp8, "emulate", False)
    with few_samples():
        results = evaluate_run(tmp_path / "fp8/first", CPU)
    assert results["loss"] == pytest.approx(rows(tmp_path / "fp8", "val")[-1]["loss"], rel=0.05)


def test_training_without_the_hardware_and_other_precision_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = r"^fp8\.enabled is true, but this is the cpu, and it needs a GPU with fp8"
    with pytest.raises(UserError, match=message):
        train_here(tmp_path, ENABLED)
    monkeypatch.setattr(Fp8, "emulate", True)
    with pytest.raises(UserError, match=r"speed\.precision is fp32: fp8\.enabled needs bf16"):
        train_here(tmp_path, ENABLED, "--speed.precision=fp32")
