"""torch's AdamW and OneCycleLR with the options of the config."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from .config import OptimConfig
from .contracts import no_weight_decay


def adamw(
    model: nn.Module,
    cfg: OptimConfig,
    fused: bool = True,
) -> torch.optim.AdamW:
    """Return AdamW: no weight decay for biases, norms and the model's `no_weight_decay`."""
    exempt = no_weight_decay(model)
    decayed = []
    rest = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim >= 2 and name not in exempt:
            decayed.append(parameter)
        else:
            rest.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": cfg.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (0.9, cfg.beta2)
    return torch.optim.AdamW(
        groups,
        lr=cfg.lr,
        betas=betas,
        eps=cfg.eps,
        fused=fused,
    )


def one_cycle(
    optimizer: Optimizer, cfg: OptimConfig, total_steps: int, done: int = 0
) -> OneCycleLR:
    """Return 1cycle after so many steps: Smith and Topin 2018 (arXiv:1708.07120)."""
    steps = max(total_steps, 3)  # torch divides by zero where the rise or the fall has no step
    return OneCycleLR(
        optimizer,
        cfg.lr,
        steps,
        pct_start=max(cfg.pct_start, 2 / steps),
        div_factor=cfg.div_factor,
        last_epoch=done - 1,
    )
