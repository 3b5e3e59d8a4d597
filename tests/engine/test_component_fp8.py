"""fp8, emulated: the products by their formula, and a resumed run."""

from pathlib import Path
from unittest import mock

import pytest
import torch
from engine import MakePackage, Package, equal, rows, saved
from torch import Tensor, nn

BF16 = ["--speed.precision=bf16", "--train.steps=4", "--train.eval_every=2", "--fp8.enabled=true"]


@pytest.fixture
def p(package: MakePackage, monkeypatch: pytest.MonkeyPatch) -> Package:
    found: Package = package("mlp", "fp8")
    monkeypatch.setattr(found.components.fp8.Fp8, "emulate", True)
    return found


def rounded(values: Tensor) -> Tensor:
    """Round to fp8 with one scale for the whole tensor.

    Its largest value becomes the largest of the format.
    """
    scale = torch.finfo(torch.float8_e4m3fn).max / values.abs().max().double()
    return (values * scale.float()).to(torch.float8_e4m3fn).float() / scale.float()


def test_products_are_those_of_rounded_factors(p: Package) -> None:
    torch.manual_seed(0)
    net = nn.Module()
    inputs = torch.randn(7, 32)
    layer = nn.Linear(32, 16, bias=False)
    net.blocks = nn.Sequential(layer)
    expected = rounded(inputs) @ rounded(layer.weight.detach()).T
    module = p.components.fp8
    world = p.distributed.World(0, 1, torch.device("cpu"))
    module.Fp8(module.Fp8Config(enabled=True), world).convert_model(net)
    with torch.no_grad():
        torch.testing.assert_close(
            net.get_submodule("blocks")(inputs), expected, rtol=1e-4, atol=1e-5
        )
    assert not torch.allclose(
        expected,
        inputs @ layer.weight.T,
        rtol=1e-3,
    )


def test_resumed_run_ends_the_same(p: Package, tmp_path: Path) -> None:
    p.train_here(tmp_path / "whole", *BF16)
    stop = mock.patch.object(
        p.signals.StopRequests,
        "should_stop",
        side_effect=[False, True],
    )
    with stop, pytest.raises(p.errors.Stopped):
        p.train_here(tmp_path / "stopped", *BF16)
    p.train_here(tmp_path / "stopped", *BF16)
    assert equal(saved(tmp_path / "stopped"), saved(tmp_path / "whole"))
    assert rows(tmp_path / "stopped")[-1] == rows(tmp_path / "whole")[-1]


def test_run_without_the_hardware_is_one_line(package: MakePackage, tmp_path: Path) -> None:
    done = package("mlp", "fp8").finish(tmp_path, "--fp8.enabled=true", expect=1)
    assert "fp8.enabled is true, but this is the cpu, and it needs a GPU with fp8" in done.stderr
