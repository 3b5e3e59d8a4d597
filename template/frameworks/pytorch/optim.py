"""AdamW with its parameter groups, gradient clipping, and the 1cycle schedule."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .config import OptimConfig
from .contracts import parameter_groups
from .errors import UserError
from .loader import BatchPlan

MAX_MOMENTUM = 0.95
"""beta1 of 1cycle at the start and at the end, as in torch's OneCycleLR."""
BASE_MOMENTUM = 0.85
"""beta1 of 1cycle at the peak learning rate."""


def adamw(model: nn.Module, cfg: OptimConfig) -> Optimizer:
    """Create AdamW, with weight decay for matrices only."""
    return torch.optim.AdamW(
        parameter_groups(model, cfg.weight_decay),
        lr=cfg.lr,
        betas=(cfg.beta1, cfg.beta2),
        eps=cfg.eps,
        fused=True,
    )


def clip(parameters: list[nn.Parameter], max_norm: float | None) -> Tensor:
    """Clip the global norm, if there is a limit; return the norm before clipping, on the device."""
    gradients = [weight.grad for weight in parameters if weight.grad is not None]
    total: Any = nn.utils.get_total_norm(gradients)
    norm: Tensor = total
    if hasattr(total, "full_tensor"):  # gradients in shards, of FSDP, have a norm in shards
        norm = total.full_tensor()
    if max_norm is None:
        return norm
    if norm.device.type != "cpu" or norm > max_norm:  # on a GPU, comparing would synchronize
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return norm


class OneCycle:
    """1cycle: the learning rate rises to its peak and falls, along half a cosine each.

    beta1 falls and rises. The values are those of torch's OneCycleLR, but follow from the step
    alone, so a checkpoint needs no state of it. Smith and Topin 2018 (arXiv:1708.07120).
    """

    def __init__(self, cfg: OptimConfig, plan: BatchPlan) -> None:
        self.cfg = cfg
        ratio = plan.global_batch_size / cfg.base_batch
        scale = {
            "none": 1.0,
            "sqrt": math.sqrt(ratio),
            "linear": ratio,
        }
        self.peak = cfg.lr * scale[cfg.lr_scaling]
        self.last_step = max(plan.total_steps - 1.0, 2.0)
        top = cfg.pct_start * plan.total_steps - 1
        self.top = min(max(top, 1.0), self.last_step - 1)
        """Step at which the learning rate has its peak."""

    def set(self, optimizer: Optimizer, step: int) -> float:
        """Set the learning rate and, in optimizers that have it, the momentum (beta1) of a step."""
        initial = self.peak / self.cfg.div_factor
        if step <= self.top:
            progress = step / self.top
            lr = anneal(initial, self.peak, progress)
            momentum = anneal(MAX_MOMENTUM, BASE_MOMENTUM, progress)
        else:
            progress = min((step - self.top) / (self.last_step - self.top), 1.0)
            lr = anneal(self.peak, initial / self.cfg.final_div_factor, progress)
            momentum = anneal(BASE_MOMENTUM, MAX_MOMENTUM, progress)
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
            if not self.cfg.cycle_momentum:
                continue
            if "betas" in group:
                _, *others = group["betas"]
                group["betas"] = (momentum, *others)
            elif group.get("momentum"):
                group["momentum"] = momentum
        return lr


def anneal(
    start: float,
    end: float,
    progress: float,
) -> float:
    """Return the value between start and end, along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def load_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Load the optimizer's state of a checkpoint; its hyperparameters stay those of the config."""
    name = type(optimizer).__name__
    before = saved["optimizer_class"]
    if name != before:
        raise UserError(f"the checkpoint was saved with {before}, not {name}: use another run.name")
    configured = [group.copy() for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(saved["optimizer"])
    except (KeyError, ValueError) as error:
        misfit = f"the optimizer's state in the checkpoint does not fit ({error})"
        raise UserError(f"{misfit}: freeze the same parameters, or use another run.name") from None
    for group, kept in zip(optimizer.param_groups, configured, strict=True):
        kept["params"] = group["params"]
        group.update(kept)
