"""Clipping, accumulation, weight decay and the peak learning rate, compared with references."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from .. import data, model, optim, parts, techniques
from ..config import Config, OptimConfig
from ..contracts import blocks_of, layer_decay, no_weight_decay
from ..distributed import World, seeded_generator
from ..errors import UserError
from ..grad_scaler import CountingScaler
from ..speed import Precision
from ..techniques.optimizers import describe
from ..train import train
from .conftest import unsupported

CPU = torch.device("cpu")


def test_peak_learning_rate_follows_the_global_batch() -> None:
    rules = {rule: OptimConfig(lr=1.0, base_batch=32, lr_scaling=rule) for rule in ("linear", "sqrt", "none")}
    assert {rule: optim.peak_lr(cfg, 128) for rule, cfg in rules.items()} == {"linear": 4.0, "sqrt": 2.0, "none": 1.0}


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon", "lamb", "lars", "novograd"])
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


def test_a_run_continues_with_the_same_parameter_groups(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = parts.build(config(), world)
    monkeypatch.setattr(type(built.model), "no_weight_decay", ("other",), raising=False)
    assert built.identity["no_weight_decay"] == ["other"]
    assert "lr_scale" not in built.identity
    monkeypatch.setattr(type(built.model), "lr_scale", {"*": 0.5}, raising=False)
    assert set(built.identity["lr_scale"].values()) == {0.5}


class Scaled(nn.Module):
    """An embedding, two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 2)
        self.lr_scale: dict[str, float] = {}


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_learning_rate_is_scaled_by_parameter(name: Any) -> None:
    net = Scaled()
    net.lr_scale = {"blocks.*": 0.5, "blocks.1.bias": 3.0, "*": 0.1}
    optimizer = techniques.build_optimizer(net, OptimConfig(name=name, lr=1.0))
    optim.set_lr(optimizer, 2.0, 0.9)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in net.named_parameters()}
    half = dict.fromkeys(("blocks.0.weight", "blocks.0.bias", "blocks.1.weight"), 1.0)
    assert found == {
        **half,
        "blocks.1.bias": 6.0,
        **dict.fromkeys(("embedding.weight", "head.weight", "head.bias"), 0.2),
    }


def test_muon_trains_a_model_in_which_only_matrices_are_trained() -> None:
    """As `lora.rank` leaves it."""
    net = Scaled()
    for name, weight in net.named_parameters():
        weight.requires_grad_(name in ("blocks.0.weight", "blocks.1.weight"))
    optimizer = techniques.build_optimizer(net, OptimConfig(name="muon", lr=1.0))
    assert describe(optimizer, "muon") == "muon for 2 matrices in `blocks`, adamw for 0 other parameters"
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2


def test_layer_decay_is_the_rate_of_each_block_below_the_next() -> None:
    net = Scaled()
    found = layer_decay(net, 0.5)
    expected = {"embedding.weight": 0.125, "blocks.0.weight": 0.25, "blocks.1.bias": 0.5, "head.weight": 1.0}
    assert {name: found[name] for name in expected} == expected
    assert found.keys() == {name for name, _ in net.named_parameters()}
    with pytest.raises(UserError, match="needs a model with `blocks`"):
        layer_decay(net.head, 0.5)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"head.*": 0.0}, "0.0 for 'head.*'"),
        ({"head.*": "0.1"}, "'0.1' for 'head.*'"),
        ({"haed.*": 0.1}, "no parameter has such a name"),
        (0.5, "is of type float: it maps names"),
    ],
)
def test_wrong_lr_scale_is_refused(scales: Any, message: str) -> None:
    net = Scaled()
    net.lr_scale = scales
    with pytest.raises(UserError, match=message):
        techniques.build_optimizer(net, OptimConfig())


def test_group_with_a_rate_of_its_own_is_refused(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule sets one rate for all, so that the other one would be lost without a word."""

    def two_rates(net: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
        first, *rest = net.parameters()
        groups: list[dict[str, Any]] = [{"params": [first], "lr": cfg.lr / 8}, {"params": rest}]
        return torch.optim.AdamW(groups, lr=cfg.lr)

    monkeypatch.setattr(optim, "adamw", two_rates)
    with pytest.raises(UserError, match=r"group 0 .* the schedule would replace: give it lr=0.01, .*lr_scale=0.125"):
        parts.build(config("--optim.name=adamw", "--optim.lr=0.01"), world)


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


def test_clipping_by_value_is_that_of_torch_and_returns_the_norm_before() -> None:
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(4, 2))] for _ in range(2))
    for mine, other in zip(ours, theirs, strict=True):
        mine.grad = torch.randn_like(mine)
        other.grad = mine.grad.clone()
    norm = optim.update(
        torch.optim.SGD(ours, lr=1.0),
        torch.amp.GradScaler("cpu", enabled=False),
        ours,
        OptimConfig(clip=None, clip_value=0.5),
    )
    assert norm.item() == pytest.approx(torch.nn.utils.get_total_norm([p.grad for p in theirs if p.grad is not None]))
    torch.nn.utils.clip_grad_value_(theirs, 0.5)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.grad is not None
        assert torch.equal(-mine, other.grad)
    with pytest.raises(UserError, match=r"optim.clip_value is 0.5: it is used instead of optim.clip, which is 1; set"):
        OptimConfig(clip_value=0.5)


def test_gradients_of_a_step_are_clipped_by_value(
    config: Callable[..., Config], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any framework; fp16 after unscaling."""
    largest: list[float] = []
    make: Any = techniques.build_optimizer

    def note(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        found = [p.grad.abs().max().item() for group in optimizer.param_groups for p in group["params"]]
        largest.append(max(found))

    def build(*args: Any) -> Any:
        optimizer = make(*args)
        optimizer.register_step_post_hook(note)
        return optimizer

    monkeypatch.setattr(techniques, "build_optimizer", build)
    options = ["--optim.name=adam", "--optim.clip=null", "--optim.clip_value=1e-5", "--train.accumulate=2"]
    for precision in ("fp32", "fp16"):
        largest.clear()
        given = [*options, f"--speed.precision={precision}", "--train.steps=2", "--train.micro_batch=8"]
        if unsupported(given):
            continue
        if precision == "fp16":
            monkeypatch.setattr(Precision, "scaler", lambda self: CountingScaler(CPU, init_scale=16.0))
        train(config(f"--run.name={precision}", *given), world)
        assert largest == pytest.approx([1e-5] * 2)


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
    samples = techniques.load(cfg.data)
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
