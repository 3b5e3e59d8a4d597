"""Parameter groups, optimizer, learning-rate schedule, and the update itself."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .config import OptimConfig
from .contracts import no_weight_decay

Schedule = Callable[[int], tuple[float, float]]
"""Learning rate and momentum (beta1) of an optimizer step, counted from 0."""


def adamw(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """Create the default optimizer."""
    return torch.optim.AdamW(
        groups(model, cfg.weight_decay),
        lr=cfg.lr,
        betas=(cfg.beta1, cfg.beta2),
        eps=cfg.eps,
        fused=cfg.fused,
    )


def groups(model: nn.Module, weight_decay: float, without: Iterable[nn.Parameter] = ()) -> list[dict[str, Any]]:
    """Return parameter groups: no weight decay for biases, norms, other vectors, and the model's `no_weight_decay`."""
    others, exempt = set(map(id, without)), no_weight_decay(model)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in others]
    decayed = [p for name, p in named if p.ndim >= 2 and name not in exempt]
    rest = [p for name, p in named if p.ndim < 2 or name in exempt]
    both = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in both if group["params"]]


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the optimizer's state but keep its hyperparameters, which are those of the config."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update(kept)


def peak_lr(cfg: OptimConfig, global_batch: int) -> float:
    """Return the peak learning rate for a global batch, by the rule in `optim.lr_scaling`."""
    ratio = global_batch / cfg.base_batch
    return cfg.lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[cfg.lr_scaling]


def onecycle(cfg: OptimConfig, peak: float, total_steps: int, step: int) -> tuple[float, float]:
    """Return learning rate and momentum (beta1) of optimizer step `step`, from 0 to total_steps - 1.

    Smith and Topin 2018 (arXiv:1708.07120) with cosine phases: up from peak / div_factor, then down to that over
    final_div_factor, while momentum mirrors it (Smith 2018, arXiv:1803.09820, section 4.3).
    """
    first = peak / cfg.div_factor
    top = min(max(cfg.pct_start * total_steps - 1, 1.0), max(total_steps - 2.0, 1.0))
    if step <= top:
        start, end, part = 0.0, 1.0, step / top
    else:
        start, end, part = 1.0, 0.0, (step - top) / max(total_steps - 1 - top, 1.0)
    height = end + (start - end) * (1 + math.cos(math.pi * min(part, 1.0))) / 2
    low = first if step <= top else first / cfg.final_div_factor
    return low + (peak - low) * height, 0.95 - 0.1 * height if cfg.cycle_momentum else cfg.beta1


def set_lr(optimizer: torch.optim.Optimizer, lr: float, momentum: float) -> None:
    """Set the learning rate, times `lr_scale` of a group that has it, and momentum of all parameter groups."""
    for group in optimizer.param_groups:
        own = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):  # a captured CUDA graph reads it from the device
            group["lr"].fill_(own)
        else:
            group["lr"] = own
        if "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        else:
            group["momentum"] = momentum


def update(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, parameters: Sequence[Tensor], cfg: OptimConfig
) -> Tensor:
    """Unscale and clip the gradients, step, and reset the gradients.

    Returns the global gradient norm before clipping, a scalar on the device. A scaler that is not enabled
    does nothing; that of fp16 skips a step whose gradients overflowed, and counts it.
    """
    scaler.unscale_(optimizer)
    grad_norm = clip(parameters, cfg.clip, cfg.clip_value)
    scaler.step(optimizer)
    scaler.update()
    if cfg.set_to_none:
        for parameter in parameters:
            parameter.grad = None
    else:
        optimizer.zero_grad(set_to_none=False)
    return grad_norm


def clip(parameters: Sequence[Tensor], max_norm: float | None, max_value: float | None = None) -> Tensor:
    """Clip the gradients to a global norm, or each number to a value; None for off.

    Returns the norm before, a scalar on the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros(())
    # As torch.nn.utils.clip_grad_norm_, for one device: its grouping by device takes 40 us in each step.
    grad_norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if max_norm is not None:
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (grad_norm + 1e-6), max=1.0))
    if max_value is not None:  # as torch.nn.utils.clip_grad_value_
        torch._foreach_clamp_min_(gradients, -max_value)
        torch._foreach_clamp_max_(gradients, max_value)
    if hasattr(grad_norm, "full_tensor"):  # under FSDP each rank has the norm of its shard
        grad_norm = grad_norm.full_tensor()
    return grad_norm
