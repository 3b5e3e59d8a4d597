"""The optimizers: their published formulas, momentum, fp16, ranks, and what is refused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, rows, saved
from torch import Tensor, nn

LR, DECAY, BETA1, BETA2, EPS = 0.1, 0.5, 0.8, 0.9, 1e-6
NAMES = ["sgd", "adam", "muon", "lamb", "lars", "novograd"]


class Net(nn.Module):
    """One layer, and a matrix that is not to decay."""

    no_weight_decay = ("table.0",)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8, dtype=torch.float64)
        self.table = nn.ParameterList([torch.randn(4, 4, dtype=torch.float64)])
        self.blocks = nn.ModuleList([self.layer, self.table])


def make(p: Package, name: str, *more: str) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    rates = [
        f"--optim.lr={LR}",
        f"--optim.weight_decay={DECAY}",
        f"--optim.beta1={BETA1}",
        f"--optim.beta2={BETA2}",
    ]
    chosen = [
        "--optimizers.enabled=true",
        f"--optimizers.name={name}",
        f"--optimizers.momentum={BETA1}",
    ]
    cfg, net = p.options(*rates, *chosen, f"--optim.eps={EPS}", *more), Net()
    component = p.components.optimizers.Optimizers(
        cfg.optimizers, p.distributed.World(0, 1, torch.device("cpu"))
    )
    return net, component.build_optimizer(net, cfg)


def adam(w: Tensor, g: Tensor, decay: float, s: dict[str, Any], step: int) -> Tensor:
    """Kingma and Ba 2014, algorithm 1, with L2."""
    g = g + decay * w
    s["m"] = BETA1 * s.get("m", 0) + (1 - BETA1) * g
    s["v"] = BETA2 * s.get("v", 0) + (1 - BETA2) * g**2
    m, v = torch.as_tensor(s["m"]) / (1 - BETA1**step), torch.as_tensor(s["v"]) / (1 - BETA2**step)
    return LR * m / (v.sqrt() + EPS)


def sgd(w: Tensor, g: Tensor, decay: float, s: dict[str, Any], step: int) -> Tensor:
    """Sutskever et al. 2013, in PyTorch's form, with L2."""
    g = g + decay * w
    s["m"] = BETA1 * s.get("m", 0) + g
    return LR * (g + BETA1 * torch.as_tensor(s["m"]))


def lamb(w: Tensor, g: Tensor, decay: float, s: dict[str, Any], step: int) -> Tensor:
    """You et al.

    2019, algorithm 2, without the correction of the moments' bias: that of both is one factor.
    """
    s["m"] = BETA1 * s.get("m", 0) + (1 - BETA1) * g
    s["v"] = BETA2 * s.get("v", 0) + (1 - BETA2) * g**2
    change = s["m"] / (s["v"].sqrt() + EPS) + decay * w
    found: Tensor = LR * w.norm() / change.norm() * change
    return found


def lars(w: Tensor, g: Tensor, decay: float, s: dict[str, Any], step: int) -> Tensor:
    """You et al. 2017, algorithm 1; vectors as in SGD."""
    rate = 0.02 * w.norm() / (g.norm() + decay * w.norm()) if w.ndim > 1 else 1.0
    s["m"] = BETA1 * s.get("m", 0) + LR * rate * (g + decay * w)
    step_taken: Tensor = s["m"]
    return step_taken


def novograd(w: Tensor, g: Tensor, decay: float, s: dict[str, Any], step: int) -> Tensor:
    """Ginsburg et al. 2019, algorithm 1."""
    s["v"] = g.norm() ** 2 if step == 1 else BETA2 * s["v"] + (1 - BETA2) * g.norm() ** 2
    s["m"] = BETA1 * s.get("m", 0) + g / (s["v"].sqrt() + EPS) + decay * w
    return LR * torch.as_tensor(s["m"])


@pytest.mark.parametrize("formula", [adam, sgd, lamb, lars, novograd], ids=lambda it: it.__name__)
def test_steps_follow_the_published_formula(
    package: MakePackage, formula: Callable[..., Tensor]
) -> None:
    net, optimizer = make(
        package("mlp", "optimizers"), formula.__name__, "--optimizers.trust_coefficient=0.02"
    )
    expected = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    states: dict[str, dict[str, Any]] = {name: {} for name in expected}
    for step in range(1, 7):
        for name, parameter in net.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            decay = DECAY if name == "layer.weight" else 0.0
            expected[name] -= formula(
                expected[name], parameter.grad.clone(), decay, states[name], step
            )
        optimizer.step()
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(
                parameter.detach(), expected[name], rtol=1e-5, atol=1e-6, msg=f"{name} {step}"
            )


def test_muon_is_that_of_torch_and_adamw_updates_the_rest(package: MakePackage) -> None:
    p = package("mlp", "optimizers")
    (net, optimizer), (other, _) = make(p, "muon"), make(p, "sgd")
    settings: dict[str, Any] = {
        "lr": LR,
        "weight_decay": DECAY,
        "momentum": BETA1,
        "nesterov": True,
    }
    muon = torch.optim.Muon([other.layer.weight], adjust_lr_fn="match_rms_adamw", **settings)
    rest = [other.layer.bias, *other.table]
    adamw = torch.optim.AdamW(rest, lr=LR, weight_decay=0.0, betas=(BETA1, BETA2), eps=EPS)
    for step in range(6):
        for one, two in zip(net.parameters(), other.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        if step == 3:
            kept = optimizer.state_dict()
            optimizer.load_state_dict(kept)
        optimizer.step()
        muon.step()
        adamw.step()
        torch.testing.assert_close([*net.parameters()], [*other.parameters()])


def test_muon_without_any_other_parameter(package: MakePackage) -> None:
    """As with LoRA, which trains matrices only."""
    p, net = package("mlp", "optimizers"), Net()
    net.layer.bias.requires_grad_(False)
    net.table.requires_grad_(False)
    cfg = p.options("--optimizers.name=muon")
    optimizer = p.components.optimizers.Optimizers(cfg.optimizers, None).build_optimizer(net, cfg)
    net.layer.weight.grad = torch.ones_like(net.layer.weight)
    before = net.layer.weight.detach().clone()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert not torch.equal(net.layer.weight, before)


@pytest.mark.parametrize("name", NAMES)
def test_step_that_fp16_skips_changes_nothing(package: MakePackage, name: str) -> None:
    net, optimizer = make(package("mlp", "optimizers"), name)
    scaler = torch.amp.GradScaler("cpu")
    before = [parameter.detach().clone() for parameter in net.parameters()]
    for factor, changes in ((float("inf"), False), (1.0, True)):
        scaler.scale(
            torch.stack([(it**2).sum() for it in net.parameters()]).sum() * factor
        ).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        for old, parameter in zip(before, net.parameters(), strict=True):
            assert torch.equal(old, parameter) != changes


@pytest.mark.parametrize("name", NAMES)
def test_schedule_sets_rate_and_momentum(package: MakePackage, tmp_path: Path, name: str) -> None:
    p, used = package("mlp", "optimizers"), list[tuple[float, float]]()
    plan = p.loader.BatchPlan(100, 10, 1, 10, 10, 10, 10)
    _, optimizer = make(p, name)
    schedule = p.optim.OneCycle(p.options().optim, plan)
    for step in range(10):
        rate = schedule.set(optimizer, step)
        found = {
            (group["lr"], (group.get("betas") or [group["momentum"]])[0])
            for group in optimizer.param_groups
        }
        assert len(found) == 1
        used += found
        assert used[-1][0] == rate
    assert max(used)[1] == pytest.approx(0.85)
    assert used[0][1] == pytest.approx(0.95)


@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_two_ranks_equal_one(tiny: MakePackage, tmp_path: Path, name: str) -> None:
    p, rate = tiny("optimizers"), {"lamb": 1e-2, "lars": 1.0}[name]
    options = [
        "--optimizers.enabled=true",
        f"--optimizers.name={name}",
        f"--optim.lr={rate}",
        "--train.steps=6",
    ]
    options += ["--train.batch_size=4"]
    p.train_here(tmp_path / "one", *options, "--train.gradient_accumulation_steps=2")
    p.finish(tmp_path / "two", *options, ranks=2)
    for mine, other in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4)
    torch.testing.assert_close(
        saved(tmp_path / "two")["model"], saved(tmp_path / "one")["model"], rtol=1e-3, atol=1e-5
    )


def test_other_optimizer_than_that_of_the_checkpoint_is_one_line(
    package: MakePackage, tmp_path: Path
) -> None:
    p = package("mlp", "optimizers")
    p.train_here(tmp_path, "--train.steps=2")
    other = ["--train.steps=2", "--optimizers.enabled=true"]
    with pytest.raises(p.errors.UserError, match="optimizers.enabled=false, and not true"):
        p.train_here(tmp_path, *other)
    with pytest.raises(p.errors.UserError, match="was saved with AdamW, not SGD"):
        p.train_here(tmp_path, *other, "--run.allow_changes=true")


def test_missing_package_is_one_line(package: MakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    p = package("mlp", "optimizers")
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(
        p.errors.UserError,
        match=r"^optimizers.name is lamb: install .* pip install 'pytorch_optimi",
    ):
        make(p, "lamb")


def test_sharded_weights_are_refused(package: MakePackage, tmp_path: Path) -> None:
    p = package("mlp", "optimizers", "fsdp")
    options = [
        "--optimizers.enabled=true",
        "--optimizers.name=muon",
        "--fsdp.enabled=true",
        "--train.steps=2",
    ]
    done = p.finish(tmp_path, *options, ranks=2, expect=1)
    assert (
        "optimizers.name is muon: it needs whole weights, which fsdp divides: use sgd or adam"
        in done.stderr
    )
    p.finish(tmp_path, *options, "--optimizers.name=sgd", ranks=2)
