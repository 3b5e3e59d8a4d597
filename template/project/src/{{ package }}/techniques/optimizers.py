"""All optimizers but AdamW: `optim.name`."""

import math
from typing import Any

import torch
from torch import nn

from ..config import OptimConfig
from ..contracts import blocks_of, no_weight_decay
from ..errors import UserError
from ..optim import groups
from .muon import Muon


def build(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """Create the optimizer that `optim.name` names.

    Raises:
        UserError: its package is not installed, or the model has no parameters that it applies to.
    """
    if cfg.name == "adam":  # Kingma and Ba 2014 (arXiv:1412.6980, algorithm 1)
        return torch.optim.Adam(
            groups(model, cfg.weight_decay), lr=cfg.lr, betas=(cfg.beta1, cfg.beta2), eps=cfg.eps, fused=cfg.fused
        )
    if cfg.name == "sgd":
        sgd = torch.optim.SGD(
            groups(model, cfg.weight_decay),
            lr=cfg.lr,
            momentum=cfg.beta1,
            nesterov=cfg.beta1 > 0,
            fused=cfg.fused,
        )
        for group in sgd.param_groups:
            for parameter in group["params"]:  # fused, it fails where some have been trained before, and some not
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd
    if cfg.name == "muon":
        return _muon(model, cfg)
    try:
        import pytorch_optimizer
    except ImportError as error:
        raise UserError(
            f"optim.name={cfg.name} needs a package: pip install 'pytorch_optimizer>=4', or use adamw"
        ) from error
    parameter_groups = groups(model, cfg.weight_decay)
    if cfg.name == "lars":
        # Vectors keep the plain learning rate, as in You et al. 2017 (arXiv:1708.03888); the library excludes them.
        return pytorch_optimizer.LARS(parameter_groups, lr=cfg.lr, momentum=cfg.beta1, weight_decay=cfg.weight_decay)
    settings: dict[str, Any] = {"lr": cfg.lr, "betas": (cfg.beta1, cfg.beta2), "eps": cfg.eps, "weight_decouple": True}
    if cfg.name == "lamb":
        # Gradients are clipped already, as for all optimizers. Without `adam_debias`, the first step is 1 / (1 - beta1)
        # times as large as the trust ratio makes it; with `clamp`, weights of a norm above 10 would learn more slowly.
        lamb = pytorch_optimizer.Lamb(parameter_groups, max_grad_norm=0.0, adam_debias=True, **settings)
        lamb.clamp = math.inf
        return lamb
    return pytorch_optimizer.NovoGrad(parameter_groups, **settings)


def _muon(model: nn.Module, cfg: OptimConfig) -> "CombinedOptimizer":
    """Return Muon (Jordan et al. 2024) for the matrices in `blocks` and AdamW for the rest, at one learning rate."""
    inside, exempt = set(map(id, blocks_of(model).parameters())), no_weight_decay(model)
    named = [(name, p) for name, p in model.named_parameters() if id(p) in inside and name not in exempt]
    hidden = [p for _, p in named if p.ndim == 2 and p.requires_grad]
    if not hidden:
        raise UserError(
            "optim.name=muon is for 2-D weights in `blocks`, and this model has none there: use adamw, with a learning "
            "rate for it (optim.lr), or name its repeated layers `blocks` (HasBlocks in contracts.py)"
        )
    # Updates of AdamW's size, so that one learning rate fits both: Liu et al. 2025 (arXiv:2502.16982, section 2.2).
    rule = "match_rms_adamw"
    muon = Muon(hidden, lr=cfg.lr, weight_decay=cfg.weight_decay, momentum=cfg.beta1, adjust_lr_fn=rule)
    rest = groups(model, cfg.weight_decay, without=hidden)
    if not rest:  # as with `lora.rank`, which trains nothing but matrices
        return CombinedOptimizer(muon)
    return CombinedOptimizer(
        muon, torch.optim.AdamW(rest, lr=cfg.lr, betas=(cfg.beta1, cfg.beta2), eps=cfg.eps, fused=cfg.fused)
    )


def describe(optimizer: torch.optim.Optimizer, name: str) -> str:
    """Return the optimizer's name, and which parameters Muon updates."""
    if not isinstance(optimizer, CombinedOptimizer):
        return name
    hidden, *rest = (sum(len(group["params"]) for group in part.param_groups) for part in optimizer.parts)
    return f"muon for {hidden} matrices in `blocks`, adamw for {sum(rest)} other parameters"


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers of disjoint parameters, used as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([{"params": group["params"]} for part in parts for group in part.param_groups], {})
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]
