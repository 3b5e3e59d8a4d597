"""Every optimizer takes steps of the published size, learns, follows the schedule and resumes."""

import math
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .. import data, model, optim, techniques
from ..config import Config, OptimConfig
from ..contracts import blocks_of
from ..distributed import World
from ..errors import UserError
from ..techniques import fp8
from ..techniques.muon import Muon, orthogonalize
from ..train import train
from .conftest import read_losses
from .no_synchronization import NoSynchronization

pytestmark = pytest.mark.usefixtures("short_validation")


class Layer(nn.Module):
    """A linear layer as a model with one block, for all optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8, dtype=torch.float64)
        self.blocks = nn.ModuleList([self.linear])


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon", "lamb", "lars", "novograd"])
def test_step_divided_by_the_rate_has_the_published_size(name: str) -> None:
    """With a gradient that does not change, from the first step on; and no step waits for a GPU."""
    torch.manual_seed(0)
    net, cfg = Layer(), OptimConfig(name=name, lr=1e-5, weight_decay=0.0, beta1=0.95)  # type: ignore[arg-type]
    weight, gradients = net.linear.weight, [torch.randn_like(part) for part in net.parameters()]
    weight.data.normal_().mul_(20.0 / weight.norm())
    optimizer = techniques.build_optimizer(net, cfg)
    for step in range(1, 11):
        before, norm = weight.detach().clone(), weight.norm().item()
        for part, gradient in zip(net.parameters(), gradients, strict=True):
            part.grad = gradient.clone()
        with NoSynchronization() if step > 1 else nullcontext():
            optimizer.step()
        momentum = (1 - 0.95**step) / (1 - 0.95)  # the sum of the gradients that SGD has in its momentum
        expected = {
            "adamw": weight.numel() ** 0.5,  # each weight changes by the rate: Kingma and Ba 2014, section 2.1
            "adam": weight.numel() ** 0.5,
            "sgd": gradients[0].norm().item() * (1 + 0.95 * momentum),  # Sutskever et al. 2013
            "muon": 0.2 * weight.numel() ** 0.5,  # Liu et al. 2025, section 2.2
            "lamb": norm,  # relative to the weights: You et al. 2019, algorithm 2
            "lars": 1e-3 * norm * momentum,  # You et al. 2017, algorithm 1, with its trust coefficient
            "novograd": momentum,  # Ginsburg et al. 2019, algorithm 1
        }[name]
        # Muon's singular values are about 1 only.
        tolerance = 0.2 if name == "muon" else 1e-3
        assert (weight - before).norm().item() / cfg.lr == pytest.approx(expected, rel=tolerance), step


def take_steps(net: nn.Module, cfg: OptimConfig, max_norm: float = math.inf) -> list[list[torch.Tensor]]:
    """Take five steps with random gradients, clipped to a norm, and return them."""
    optimizer = techniques.build_optimizer(net, cfg)
    taken = []
    for _ in range(5):
        for part in net.parameters():
            part.grad = torch.randn_like(part)
        nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        taken.append([part.grad.clone() for part in net.parameters() if part.grad is not None])
        optimizer.step()
    return taken


def test_adam_has_the_weight_decay_in_its_gradient() -> None:
    """As L2 regularization: Kingma and Ba 2014, algorithm 1; AdamW's is decoupled."""
    torch.manual_seed(0)
    net, cfg = Layer(), OptimConfig(name="adam", lr=0.1, weight_decay=0.5, beta1=0.8, beta2=0.9)
    weights = [part.detach().clone() for part in net.parameters()]
    means, squares = ([torch.zeros_like(part) for part in weights] for _ in range(2))
    for step, gradients in enumerate(take_steps(net, cfg), start=1):
        for part, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
            if part.ndim == 2:
                gradient = gradient + 0.5 * part
            mean.mul_(0.8).add_(0.2 * gradient)
            square.mul_(0.9).add_(0.1 * gradient**2)
            part -= 0.1 * (mean / (1 - 0.8**step)) / ((square / (1 - 0.9**step)).sqrt() + cfg.eps)
    for part, expected in zip(net.parameters(), weights, strict=True):
        torch.testing.assert_close(part.detach(), expected)


def test_lamb_without_weight_decay_is_nvlamb() -> None:
    """With `optim.clip`; NVLAMB's bias correction scales a whole layer, which the trust ratio undoes."""
    torch.manual_seed(0)
    net, cfg = Layer(), OptimConfig(name="lamb", lr=0.1, weight_decay=0.0, beta1=0.8, beta2=0.9)
    weights = [part.detach().clone() for part in net.parameters()]
    means, squares = ([torch.zeros_like(part) for part in weights] for _ in range(2))
    for step, gradients in enumerate(take_steps(net, cfg, 1.0), start=1):
        for part, gradient, mean, square in zip(weights, gradients, means, squares, strict=True):
            mean.mul_(0.8).add_(0.2 * gradient)
            square.mul_(0.9).add_(0.1 * gradient**2)
            change = (mean / (1 - 0.8**step)) / ((square / (1 - 0.9**step)).sqrt() + cfg.eps)
            part -= 0.1 * part.norm() / change.norm() * change
    for part, expected in zip(net.parameters(), weights, strict=True):
        torch.testing.assert_close(part.detach(), expected, rtol=1e-5, atol=1e-5)


def test_muon_is_that_of_torch_in_fp32_and_continues_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    shapes = [(8, 16), (16, 8), (8, 16), (8, 8), (16, 8)]
    first = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    second = [nn.Parameter(weight.detach().clone()) for weight in first]
    theirs = torch.optim.Muon(first, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    ours = Muon(second, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    for step in range(4):
        for one, other in zip(first, second, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        first[step].grad = second[step].grad = None
        if step == 2:
            ours.load_state_dict(deepcopy(theirs.state_dict()))
        theirs.step()
        ours.step()
        torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("shape", [(3, 8, 16), (3, 16, 8)])
def test_orthogonalized_matrices_keep_their_singular_vectors(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    left, values, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    expected = (left * values.unsqueeze(1)) @ right
    found = orthogonalize(matrices, (3.4445, -4.775, 2.0315), 5, 1e-7, dtype)
    assert found.dtype == dtype
    assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
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


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon", "lamb", "lars", "novograd"])
def test_optimizer_learns_and_resumes(
    config: Callable[..., Config], world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rate = {"adamw": 4e-3, "adam": 4e-3, "sgd": 0.1, "muon": 4e-3, "lamb": 4e-2, "lars": 20.0, "novograd": 1e-2}[name]
    if name == "lars" and _normalizes_after_residuals(config()):
        rate = 3.0  # a larger one diverges
    # Their steps are proportional to the norm of a layer's weights.
    stuck = name in ("lars", "lamb") and _begins_at_zero(config())
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
    said = {"muon": r"muon for [1-9]\d* matrices in `blocks`, adamw for \d+ other parameters"}.get(name, name)
    assert re.search(rf"^optimizer   {said}$", capsys.readouterr().out, re.MULTILINE)
    found = read_losses(tmp_path / "whole")
    assert stuck or sum(found[-5:]) < 0.93 * sum(found[:5])
    train(config("--run.name=cut", *options), world)
    (tmp_path / "cut/checkpoints/step-00000030/manifest.json").unlink()
    with pytest.warns(UserWarning, match="skipping"):
        train(config("--run.name=cut", "--run.resume=auto", *options), world)
    assert read_losses(tmp_path / "cut") == found


def _normalizes_after_residuals(cfg: Config) -> bool:
    """Whether a block ends with a norm, before or after dropout, as in the first transformers."""
    blocks = blocks_of(model.build(cfg.model, data.load(cfg.data).spec))
    return any(isinstance(last, nn.LayerNorm) for block in blocks for last in [*block.modules()][-2:])


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
    with pytest.raises(UserError, match=r"optim.name=lamb .*: pip install 'pytorch_optimizer>=4'"):
        train(config("--optim.name=lamb"), world)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(UserError, match="pip install torchao"):
        fp8.convert(nn.Module())
