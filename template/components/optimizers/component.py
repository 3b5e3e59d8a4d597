"""Optimizers other than AdamW: SGD, Adam, Muon, LAMB, LARS and NovoGrad."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import blocks
from ..distributed import World
from ..optim import adamw


@dataclass(frozen=True)
class OptimizersConfig(Section):
    """The optimizer; rate, weight decay, betas and epsilon are those of `optim`."""

    is_fixed = True
    enabled: bool = False
    """Train with the optimizer `name` instead of AdamW."""
    name: Literal["sgd", "adam", "muon", "lamb", "lars", "novograd"] = "sgd"
    """Optimizer. adam: weight decay in the gradient (L2).

    muon: for the matrices in `blocks`, AdamW for the rest.
    """
    momentum: float = within("[0, 1)", 0.9, overridden_by="optim.cycle_momentum")
    """Momentum of SGD, Muon and LARS; without it, 1cycle moves the momentum unless
    `optim.cycle_momentum` is false."""
    nesterov: bool = True
    """SGD and Muon: Nesterov momentum."""
    trust_coefficient: float = within("(0, 1]", 1e-3)
    """LARS: norm of a matrix's step at a learning rate of 1, divided by the norm of the matrix."""


class Optimizers(Component):
    """Builds the optimizer, with AdamW's parameter groups: no weight decay of biases and norms."""

    name = "optimizers"

    def __init__(self, cfg: OptimizersConfig, world: World) -> None:
        self.cfg = cfg

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        if "fsdp" in enabled and self.cfg.name not in ("sgd", "adam"):
            self.cfg.refuse("name", "it needs whole weights, which fsdp divides: use sgd or adam")

    def build_optimizer(
        self,
        model: nn.Module,
        cfg: BaseConfig,
    ) -> Optimizer:
        if self.cfg.name == "muon":
            return self._muon(model, cfg)
        groups = []
        for group in adamw(model, cfg.optim).param_groups:
            kept = ("params", "weight_decay", "lr_scale")
            groups.append({key: group[key] for key in kept if key in group})
        betas = (cfg.optim.beta1, cfg.optim.beta2)
        if self.cfg.name == "sgd":
            return torch.optim.SGD(
                groups,
                lr=cfg.optim.lr,
                momentum=self.cfg.momentum,
                nesterov=self.cfg.nesterov and self.cfg.momentum > 0,
            )
        if self.cfg.name == "adam":  # Kingma and Ba 2014 (arXiv:1412.6980, algorithm 1)
            return torch.optim.Adam(
                groups,
                lr=cfg.optim.lr,
                betas=betas,
                eps=cfg.optim.eps,
                fused=True,
            )
        if self.cfg.name == "lamb":
            return LAMB(groups, lr=cfg.optim.lr, betas=betas, eps=cfg.optim.eps)
        return self._of_library(groups, cfg.optim.lr, {"betas": betas, "eps": cfg.optim.eps})

    def _of_library(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        adaptive: dict[str, Any],
    ) -> Optimizer:
        """Return LARS or NovoGrad, whose steps depend on the norms of each layer."""
        try:
            import pytorch_optimizer as library
        except ImportError as error:
            failed = f"its package fails to load ({error})"
            self.cfg.refuse("name", f"{failed}: pip install 'pytorch_optimizer>=4'")
        optimizer: Any
        if self.cfg.name == "lars":
            # You et al. 2017 (arXiv:1708.03888, algorithm 1), in PyTorch's form, in which the
            # momentum does not contain the rate. Vectors, and matrices of zeros, keep the plain
            # rate.
            optimizer = library.LARS(
                groups,
                lr=lr,
                momentum=self.cfg.momentum,
                trust_coefficient=self.cfg.trust_coefficient,
            )
        else:
            # Ginsburg et al. 2019 (arXiv:1905.11286, algorithm 1)
            optimizer = library.NovoGrad(groups, lr=lr, **adaptive)
        return optimizer  # type: ignore[no-any-return]

    def _muon(self, model: nn.Module, cfg: BaseConfig) -> Optimizer:
        """Return Muon for the matrices in `blocks`, and AdamW for all else, at one rate."""
        inside = {weight for weight in blocks(model).parameters() if weight.ndim == 2}
        exempt = getattr(model, "no_weight_decay", ())
        hidden = []
        for name, weight in model.named_parameters():
            if weight in inside and weight.requires_grad and name not in exempt:
                hidden.append(weight)
        if not hidden:
            missing = "the model's `blocks` have no matrices to train"
            self.cfg.refuse("name", f"{missing}: use another optimizer")
        muon = torch.optim.Muon(
            hidden,
            lr=cfg.optim.lr,
            momentum=self.cfg.momentum,
            nesterov=self.cfg.nesterov,
            weight_decay=cfg.optim.weight_decay,
            # Updates of AdamW's size, so that one learning rate fits both: Liu et al. 2025
            # (arXiv:2502.16982, section 2.2).
            adjust_lr_fn="match_rms_adamw",
        )
        return MuonAndAdamW(muon, adamw(model, cfg.optim))


class LAMB(torch.optim.Adam):
    """LAMB: You et al. 2019 (arXiv:1904.00962, version 5, algorithm 2), with phi(z) = z.

    The trust ratio is 1 where the norm of the weights, or of their change, is 0.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        rates = [group["lr"] for group in self.param_groups]
        before: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            group["lr"] = 1.0
            for weight in group["params"]:
                if weight.grad is not None:
                    before[weight] = weight.clone()
                    weight.zero_()
        super().step()  # so that each weight is now -m / (sqrt(v) + eps), without decay
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
            for weight in group["params"]:
                if weight not in before:
                    continue
                old = before[weight]
                change = group["weight_decay"] * old - weight
                norm = old.norm()
                ratio = norm / change.norm()
                ratio = torch.where((norm > 0) & ratio.isfinite(), ratio, 1.0)
                weight.copy_(old - rate * ratio * change)


class MuonAndAdamW(Optimizer):
    """Muon and AdamW as one optimizer, with the parameter groups of both and one state."""

    def __init__(self, muon: Optimizer, rest: Optimizer) -> None:
        hidden = set(muon.param_groups[0]["params"])
        for group in rest.param_groups:
            group["params"] = [weight for weight in group["params"] if weight not in hidden]
        self.parts = (muon, rest)  # `finetune` divides the groups of each
        super().__init__(muon.param_groups + rest.param_groups, {})
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, and give it to both optimizers."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        first = 0
        for part in self.parts:
            after = first + len(part.param_groups)
            part.state = self.state
            part.param_groups = self.param_groups[first:after]
            first = after
