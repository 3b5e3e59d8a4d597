"""The optimizers: their published formulas, momentum, fp16, ranks, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine import MakePackage, Package, rows, saved
from torch import Tensor, nn

LR = 0.1
DECAY = 0.5
BETA1 = 0.8
BETA2 = 0.9
EPS = 1e-6
NAMES = ["sgd", "adam", "muon", "lamb", "lars", "novograd"]
TRUST = 0.02


class Net(nn.Module):
    """One layer, and a matrix that is not to decay."""

    no_weight_decay = ("table.0",)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8, dtype=torch.float64)
        self.table = nn.ParameterList([torch.randn(4, 4, dtype=torch.float64)])
        self.blocks = nn.ModuleList([self.layer, self.table])


def built(
    p: Package,
    name: str,
    *more: str,
) -> tuple[Net, torch.optim.Optimizer, Any]:
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
    cfg = p.options(*rates, *chosen, f"--optim.eps={EPS}", *more)
    net = Net()
    component = p.components.optimizers.Optimizers(
        cfg.optimizers,
        p.distributed.World(
            0,
            1,
            torch.device("cpu"),
        ),
    )
    return net, component.build_optimizer(net, cfg), cfg


def make(
    p: Package,
    name: str,
    *more: str,
) -> tuple[Net, torch.optim.Optimizer]:
    return built(p, name, *more)[:2]


class Weight:
    """A weight as the paper of an optimizer changes it, one step after another."""

    def __init__(
        self,
        value: Tensor,
        decay: float,
        cfg: Any,
    ) -> None:
        self.w = value.clone()
        self.decay = decay
        self.cfg = cfg
        self.m: Any = 0
        self.v: Any = 0
        self.step = 0

    def adam(self, g: Tensor) -> Tensor:
        """Kingma and Ba 2014, algorithm 1, with L2."""
        return self.corrected(g + self.decay * self.w)

    def corrected(self, g: Tensor) -> Tensor:
        """Return m / (sqrt(v) + eps) without the bias of both moments."""
        self.m = BETA1 * self.m + (1 - BETA1) * g
        self.v = BETA2 * self.v + (1 - BETA2) * g**2
        deviation = (self.v / (1 - BETA2**self.step)) ** 0.5
        return torch.as_tensor(self.m / (1 - BETA1**self.step) / (deviation + EPS))

    def sgd(self, g: Tensor) -> Tensor:
        """Sutskever et al. 2013, section 2, in PyTorch's form, with L2."""
        g = g + self.decay * self.w
        self.m = self.cfg.optimizers.momentum * self.m + g
        ahead = g + self.cfg.optimizers.momentum * self.m
        return torch.as_tensor(ahead if self.cfg.optimizers.nesterov else self.m)

    def lamb(self, g: Tensor) -> Tensor:
        """You et al. 2019, version 5, algorithm 2."""
        change = self.corrected(g) + self.decay * self.w
        ratio = self.w.norm() / change.norm() if self.w.any() and change.any() else 1.0
        return torch.as_tensor(ratio * change)

    def lars(self, g: Tensor) -> Tensor:
        """You et al. 2017, algorithm 1; vectors, and weights of zeros, as in SGD."""
        norms = g.norm() + self.decay * self.w.norm()
        ratio = TRUST * self.w.norm() / norms if self.w.ndim > 1 and self.w.any() else 1.0
        self.m = self.cfg.optimizers.momentum * self.m + ratio * (g + self.decay * self.w)
        return torch.as_tensor(self.m)

    def novograd(self, g: Tensor) -> Tensor:
        """Ginsburg et al. 2019, algorithm 1."""
        square = g.norm() ** 2
        self.v = square if self.step == 1 else BETA2 * self.v + (1 - BETA2) * square
        self.m = BETA1 * self.m + g / (self.v**0.5 + EPS) + self.decay * self.w
        return torch.as_tensor(self.m)

    def muon(self, g: Tensor) -> Tensor:
        """Jordan et al. 2024, algorithm 2, and Liu et al. 2025 (arXiv:2502.16982), equation 4.

        AdamW of the rest.
        """
        if g.shape != (8, 16):
            return self.corrected(g)
        self.m = self.cfg.optimizers.momentum * self.m + g
        update = (
            g + self.cfg.optimizers.momentum * self.m if self.cfg.optimizers.nesterov else self.m
        )
        x = update / update.norm()
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return torch.as_tensor(0.2 * max(g.shape) ** 0.5 * x + self.decay * self.w)


OPTIONS = [
    "--optim.weight_decay=0",
    "--optimizers.momentum=0",
    "--optimizers.nesterov=false",
]


@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_follow_the_paper(package: MakePackage, name: str) -> None:
    """From weights of zeros, of usual size and large ones, and with each option.

    Gradients become smaller.
    """
    p = package("mlp", "optimizers")
    for size, option in [
        (0, ""),
        (1, ""),
        (100, ""),
        *((1, option) for option in OPTIONS),
    ]:
        more = [f"--optimizers.trust_coefficient={TRUST}", *([option] if option else [])]
        net, optimizer, cfg = built(p, name, *more)
        weights = {}
        for key, parameter in net.named_parameters():
            parameter.data *= size
            decay = cfg.optim.weight_decay if key == "layer.weight" else 0.0
            weights[key] = Weight(parameter.detach(), decay, cfg)
        # torch's Muon computes in bf16
        rtol, atol = (0.02, 0.02) if name == "muon" else (1e-5, 1e-6)
        for step in range(1, 11):
            for key, parameter in net.named_parameters():
                parameter.grad = torch.randn_like(parameter) / step**2
                weight = weights[key]
                weight.step = step
                weight.w = weight.w - LR * getattr(weight, name)(parameter.grad.clone())
            optimizer.step()
            if step == 5:  # as of a run that is resumed
                optimizer.load_state_dict(optimizer.state_dict())
            for key, parameter in net.named_parameters():
                where = f"{key} at step {step}, size {size} {option}"
                found = parameter.detach()
                torch.testing.assert_close(
                    found,
                    weights[key].w,
                    rtol=rtol,
                    atol=atol,
                    msg=where,
                )


def test_muon_without_any_other_parameter(package: MakePackage) -> None:
    """As with LoRA, which trains matrices only."""
    p = package("mlp", "optimizers")
    net = Net()
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
        for old, parameter in zip(
            before,
            net.parameters(),
            strict=True,
        ):
            assert torch.equal(old, parameter) != changes


@pytest.mark.parametrize("name", NAMES)
def test_schedule_sets_rate_and_momentum(package: MakePackage, tmp_path: Path, name: str) -> None:
    p = package("mlp", "optimizers")
    used = list[tuple[float, float]]()
    plan = p.loader.BatchPlan(
        100,
        10,
        1,
        10,
        10,
        10,
        10,
    )
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
    p = tiny("optimizers")
    rate = {"lamb": 1e-2, "lars": 1.0}[name]
    options = [
        "--optimizers.enabled=true",
        f"--optimizers.name={name}",
        f"--optim.lr={rate}",
        "--train.steps=6",
    ]
    options += ["--train.batch_size=4"]
    p.train_here(tmp_path / "one", *options, "--train.gradient_accumulation_steps=2")
    p.finish(tmp_path / "two", *options, ranks=2)
    for mine, other in zip(
        rows(tmp_path / "two"),
        rows(tmp_path / "one"),
        strict=True,
    ):
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
        match=r"^optimizers.name is lars: its package fails to load .*: pip install 'pytorch_opt",
    ):
        make(p, "lars")


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
