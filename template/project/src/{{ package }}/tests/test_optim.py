"""Clipping, accumulation, weight decay and the peak learning rate, compared with references."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from .. import data, model, optim, parts, techniques
from ..config import Config, OptimConfig
from ..contracts import blocks_of, no_weight_decay
from ..distributed import World, seeded_generator
from ..grad_scaler import CountingScaler

CPU = torch.device("cpu")


def test_peak_learning_rate_follows_the_global_batch() -> None:
    rules = {rule: OptimConfig(lr=1.0, base_batch=32, lr_scaling=rule) for rule in ("linear", "sqrt", "none")}
    assert {rule: optim.peak_lr(cfg, 128) for rule, cfg in rules.items()} == {"linear": 4.0, "sqrt": 2.0, "none": 1.0}


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon", "lamb", "lars", "novograd"])
def test_weight_decay_applies_to_matrices_only(config: Callable[..., Config], name: str) -> None:
    cfg = config(f"--optim.name={name}", "--optim.weight_decay=0.1")
    net = model.build(cfg.model, data.load(cfg.data).spec)
    blocks = blocks_of(net)
    if name == "muon" and not any(p.ndim == 2 for p in blocks.parameters()):
        pytest.skip("this model has no matrices in `blocks`")
    optimizer = techniques.build_optimizer(net, cfg.optim)
    assert name != "sgd" or all(group["nesterov"] for group in optimizer.param_groups)
    decayed = {id(p) for name, p in net.named_parameters() if p.ndim >= 2 and name not in no_weight_decay(net)}
    for group in optimizer.param_groups:
        assert all((id(p) in decayed) == (group["weight_decay"] > 0) for p in group["params"])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(net.parameters()))


def test_a_run_continues_with_the_same_parameters_exempt_from_weight_decay(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = parts.build(config(), world)
    monkeypatch.setattr(type(built.model), "no_weight_decay", ("other",), raising=False)
    assert built.identity["no_weight_decay"] == ["other"]


def test_clipping_limits_the_global_norm_and_returns_it_unclipped() -> None:
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(4))]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    for weight, value in zip(weights, (3.0, 4.0), strict=True):
        weight.grad = torch.full_like(weight, value)
    norm = optim.update(optimizer, torch.amp.GradScaler("cpu", enabled=False), weights, OptimConfig(clip=1.0))
    expected = (3 * 9 + 4 * 16) ** 0.5
    assert norm.item() == pytest.approx(expected)
    assert weights[0].detach().tolist() == pytest.approx([-3 / expected] * 3)
    assert all(weight.grad is None for weight in weights)


@pytest.mark.parametrize("fused", [True, False])
def test_fp16_overflow_skips_the_step_and_clipping_is_unscaled(fused: bool) -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    scaler = CountingScaler(torch.device("cpu"), init_scale=4.0)
    scaler.scale(weight.sum() * float("inf")).backward()
    optim.update(optimizer, scaler, [weight], OptimConfig(clip=1.0))
    assert scaler.skipped_steps() == 1
    assert weight.item() == 0
    scaler.scale(weight.sum() * 0.5).backward()
    norm = optim.update(optimizer, scaler, [weight], OptimConfig(clip=1.0))
    assert scaler.skipped_steps() == 1
    assert weight.item() == -0.5
    assert norm.item() == 0.5
    assert weight.item() == -0.5


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batch_gradients_sum_to_one_batch(config: Callable[..., Config], parts: int) -> None:
    cfg = config()
    samples = data.load(cfg.data)
    prepare = data.Prepare(samples.spec, cfg.data)
    net = model.build(cfg.model, samples.spec).eval()  # BatchNorm's statistics are those of a micro-batch
    batch = prepare(samples.train.__getitems__(list(range(16))), False, seeded_generator(CPU, 0, 0, 0))

    def gradients(pieces: int) -> list[torch.Tensor]:
        net.zero_grad()
        for piece in zip(*(part.chunk(pieces) for part in batch), strict=True):
            (net(*piece)[0] / pieces).backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    for whole, summed in zip(gradients(1), gradients(parts), strict=True):
        torch.testing.assert_close(whole, summed, rtol=1e-4, atol=1e-6)
