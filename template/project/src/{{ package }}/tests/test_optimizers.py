"""Every optimizer learns, follows the schedule and resumes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .. import data, model, optim, techniques
from ..config import Config
from ..contracts import blocks_of
from ..distributed import World
from ..errors import UserError
from ..techniques import fp8
from ..train import train
from .conftest import read_losses

pytestmark = pytest.mark.usefixtures("short_validation")


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_schedule_reaches_the_optimizer(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    used: list[tuple[float, float]] = []
    make: Any = techniques.build_optimizer

    def note(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        for group in optimizer.param_groups:
            used.append((group["lr"], group["betas"][0] if "betas" in group else group["momentum"]))

    def build(*args: Any) -> Any:
        optimizer = make(*args)
        for part in getattr(optimizer, "parts", [optimizer]):
            part.register_step_pre_hook(note)
        return optimizer

    cfg = config("--run.name=a", f"--optim.name={name}", "--train.steps=6")
    if name == "muon" and not any(p.ndim == 2 for p in _blocks(cfg)):
        pytest.skip("this model has no matrices in `blocks`")
    monkeypatch.setattr(techniques, "build_optimizer", build)
    train(cfg, world)
    peak = optim.peak_lr(cfg.optim, 16)
    schedule = techniques.build_schedule(cfg.optim, peak, 6)
    assert set(used) == {schedule(step) for step in range(6)}
    assert len({momentum for _, momentum in used}) > 2, "it cycles"


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "lamb", "lars", "novograd"])
def test_optimizer_learns_and_resumes(config: Callable[..., Config], world: World, tmp_path: Path, name: str) -> None:
    rate = {"adamw": 4e-3, "sgd": 0.1, "muon": 4e-3, "lamb": 1e-2, "lars": 20.0, "novograd": 1e-2}[name]
    stuck = name == "lars" and _begins_at_zero(config())  # its step is proportional to the norm of a layer's weights
    if stuck:
        rate = 0.1  # with zero weights, the first step has the plain learning rate
    options = [f"--optim.name={name}", f"--optim.lr={rate}", "--optim.lr_scaling=none", "--train.steps=30"]
    options += ["--train.eval_every=20", "--log.every=1", "--train.micro_batch=32"]
    cfg = config("--run.name=whole", *options)
    if name == "muon" and not any(p.ndim == 2 for p in _blocks(cfg)):
        with pytest.raises(UserError, match="optim.name=muon is for 2-D weights"):
            train(cfg, world)
        return
    train(cfg, world)
    found = read_losses(tmp_path / "whole")
    assert stuck or sum(found[-5:]) < 0.93 * sum(found[:5])
    train(config("--run.name=cut", *options), world)
    (tmp_path / "cut/checkpoints/step-00000030/manifest.json").unlink()
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert read_losses(tmp_path / "cut") == found


def _begins_at_zero(cfg: Config) -> bool:
    net = model.build(cfg.model, data.load(cfg.data).spec)
    return any(parameter.ndim >= 2 and not parameter.any() for parameter in net.parameters())


def _blocks(cfg: Config) -> list[nn.Parameter]:
    net: Any = model.build(cfg.model, data.load(cfg.data).spec)
    return list(blocks_of(net).parameters())


def test_missing_package_error_names_the_pip_command(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(UserError, match=r"optim.name=lamb .*: pip install pytorch_optimizer"):
        train(config("--optim.name=lamb"), world)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(UserError, match="pip install torchao"):
        fp8.convert(nn.Module())
