"""Parameter groups, optimizer, learning-rate schedule, and the update itself."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from .config import OptimConfig


def build(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """Make the optimizer. It decays matrices and convolutions, not biases, norms and other vectors.

    Raises:
        UserError: the optimizer needs a package that is not installed, or has nothing to do in this model.
    """
    if cfg.name != "adamw":
        from .techniques import optimizers

        return optimizers.build(model, cfg)
    return torch.optim.AdamW(
        groups(model.parameters(), cfg.weight_decay),
        lr=cfg.lr,
        betas=(cfg.beta1, cfg.beta2),
        eps=cfg.eps,
        fused=cfg.fused,
    )


def groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Sort parameters into those that decay and those that do not; leaves out an empty group."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    both: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in both if group["params"]]


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the optimizer's state but keep its settings: those of the config hold, not those of the checkpoint."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update(kept)


def peak_rate(cfg: OptimConfig, global_batch: int) -> float:
    """The peak learning rate for a global batch, by the rule that the config names."""
    ratio = global_batch / cfg.base_batch
    return cfg.lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[cfg.lr_scaling]


def schedule(cfg: OptimConfig, peak: float, step: int, total_steps: int) -> tuple[float, float]:
    """Learning rate and momentum (beta1) of optimizer step `step`, from 0 to total_steps - 1.

    `onecycle` is Smith and Topin 2018 (arXiv:1708.07120) with cosine phases: up from peak / div_factor, then down to
    that over final_div_factor, while momentum mirrors it (Smith 2018, arXiv:1803.09820, section 4.3).
    """
    if cfg.schedule != "onecycle":
        from .techniques import schedules

        return schedules.rate(cfg, peak, step, total_steps)
    first = peak / cfg.div_factor
    top = min(max(cfg.pct_start * total_steps - 1, 1.0), max(total_steps - 2.0, 1.0))
    if step <= top:
        start, end, part = 0.0, 1.0, step / top
    else:
        start, end, part = 1.0, 0.0, (step - top) / max(total_steps - 1 - top, 1.0)
    height = end + (start - end) * (1 + math.cos(math.pi * min(part, 1.0))) / 2
    low = first if step <= top else first / cfg.final_div_factor
    return low + (peak - low) * height, 0.95 - 0.1 * height if cfg.cycle_momentum else cfg.beta1


def set_rate(optimizer: torch.optim.Optimizer, rate: float, momentum: float) -> None:
    """Use this learning rate and momentum from the next update on."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # of a step graph, which reads it from the device
            group["lr"].fill_(rate)
            continue
        group["lr"] = rate
        if "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        else:
            group["momentum"] = momentum


def update(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, parameters: Iterable[Tensor], cfg: OptimConfig
) -> tuple[Tensor, bool]:
    """Unscale, clip, step, and drop the gradients.

    Returns the norm of the whole gradient before clipping, as a scalar on the device, and whether the step was made:
    fp16 skips one whose gradients overflowed, and alone waits for the device to know.
    """
    scaler.unscale_(optimizer)
    grad_norm = clip(parameters, cfg.clip)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=cfg.set_to_none)
    return grad_norm, scaler.get_scale() >= scale


def clip(parameters: Iterable[Tensor], largest: float | None) -> Tensor:
    """Scale the gradients down to the largest norm, null for none; return the norm that they had, on the device."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    grad_norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    if largest is not None:
        clip_grads_with_norm_(parameters, largest, grad_norm, foreach=True)
    if hasattr(grad_norm, "full_tensor"):  # under FSDP each rank has the norm of its share
        grad_norm = grad_norm.full_tensor()
    return grad_norm
