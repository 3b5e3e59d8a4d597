"""Optimizers other than AdamW: SGD, Adam, Muon, LAMB, LARS and NovoGrad."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import blocks, no_weight_decay
from ..distributed import World
from ..optim import adamw

Groups = list[dict[str, Any]]
"""Parameter groups of an optimizer."""


@dataclass(frozen=True)
class OptimizersConfig(Section):
    """The optimizer; rate, weight decay, betas and epsilon are those of `optim`."""

    enabled: bool = False
    """Train with the optimizer `name` instead of AdamW."""
    name: Literal["sgd", "adam", "muon", "lamb", "lars", "novograd"] = "sgd"
    """Optimizer. adam: weight decay in the gradient (L2).

    muon: for the matrices in `blocks`, AdamW for the rest.
    """
    momentum: float = within("[0, 1)", 0.9)
    """Momentum of SGD, Muon and LARS; a schedule that cycles momentum overrides it, unless it is 0."""
    nesterov: bool = True
    """SGD and Muon: Nesterov momentum."""
    trust_coefficient: float = within("(0, 1]", 1e-3)
    """LARS: norm of a matrix's step at a learning rate of 1, divided by the norm of the matrix."""


class Optimizers(Component):
    """Builds the optimizer, with the parameter groups of AdamW in `optim.py`: no weight decay of biases and norms."""

    name = "optimizers"

    def __init__(self, cfg: OptimizersConfig, world: World) -> None:
        self.cfg = cfg

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        if "fsdp" in enabled and self.cfg.name not in ("sgd", "adam"):
            self.cfg.refuse("name", "it needs whole weights, which fsdp divides: use sgd or adam")

    def build_optimizer(self, model: nn.Module, cfg: BaseConfig) -> torch.optim.Optimizer:
        own, core = self.cfg, cfg.optim
        betas = (core.beta1, core.beta2)
        kept = ("params", "weight_decay", "lr_scale")
        groups = [
            {key: group[key] for key in kept if key in group}
            for group in adamw(model, core).param_groups
        ]
        if own.name == "adam":  # Kingma and Ba 2014 (arXiv:1412.6980, algorithm 1)
            same = {"amsgrad": core.amsgrad, "fused": core.fused}
            return torch.optim.Adam(groups, lr=core.lr, betas=betas, eps=core.eps, **same)
        if own.name == "sgd":
            nesterov = own.nesterov and own.momentum > 0
            return torch.optim.SGD(groups, lr=core.lr, momentum=own.momentum, nesterov=nesterov)
        if own.name == "muon":
            return self._muon(model, cfg)
        return self._layerwise(groups, core.lr, {"betas": betas, "eps": core.eps})

    def _layerwise(
        self, groups: Groups, lr: float, adaptive: dict[str, Any]
    ) -> torch.optim.Optimizer:
        """Return an optimizer whose steps depend on the norms of each layer."""
        try:
            import pytorch_optimizer as library
        except ImportError:
            self.cfg.refuse("name", "install its package: pip install 'pytorch_optimizer>=4'")
        found: torch.optim.Optimizer
        if (
            self.cfg.name == "lars"
        ):  # You et al. 2017 (arXiv:1708.03888); vectors keep the plain rate
            trust = self.cfg.trust_coefficient
            found = library.LARS(groups, lr=lr, momentum=self.cfg.momentum, trust_coefficient=trust)
        elif self.cfg.name == "novograd":  # Ginsburg et al. 2019 (arXiv:1905.11286, algorithm 1)
            found = library.NovoGrad(groups, lr=lr, **adaptive)
        else:  # You et al. 2019 (arXiv:1904.00962, algorithm 2), with the norms of the weights as they are
            # Without `adam_debias`, the first step would be 1 / (1 - beta1) times as large as the
            # trust ratio makes it.
            found = lamb = library.Lamb(
                groups, lr=lr, weight_decouple=False, adam_debias=True, **adaptive
            )
            lamb.clamp = math.inf
        return found

    def _muon(self, model: nn.Module, cfg: BaseConfig) -> torch.optim.Optimizer:
        """Return Muon for the matrices in `blocks`, and AdamW for all else, at one learning rate."""
        exempt = no_weight_decay(model)
        inside = {
            id(parameter)
            for parameter in blocks(model).parameters()
            if parameter.ndim == 2 and parameter.requires_grad
        }
        hidden = [
            it for name, it in model.named_parameters() if id(it) in inside and name not in exempt
        ]
        if not hidden:
            self.cfg.refuse(
                "name", "the model's `blocks` have no matrices to train: use another optimizer"
            )
        # Updates of AdamW's size, so that one learning rate fits both: Liu et al. 2025
        # (arXiv:2502.16982, section 2.2).
        settings: dict[str, Any] = {"momentum": self.cfg.momentum, "nesterov": self.cfg.nesterov}
        settings |= {"weight_decay": cfg.optim.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
        return MuonAndAdamW(
            torch.optim.Muon(hidden, lr=cfg.optim.lr, **settings), adamw(model, cfg.optim)
        )


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon and AdamW as one optimizer, with the parameter groups of both and one state."""

    def __init__(self, muon: torch.optim.Muon, rest: torch.optim.Optimizer) -> None:
        hidden = {id(parameter) for parameter in muon.param_groups[0]["params"]}
        for group in rest.param_groups:
            group["params"] = [
                parameter for parameter in group["params"] if id(parameter) not in hidden
            ]
        self.parts = (muon, rest)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
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
        groups = iter(self.param_groups)
        for part in self.parts:
            part.state, part.param_groups = self.state, list(islice(groups, len(part.param_groups)))
