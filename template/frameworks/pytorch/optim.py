"""AdamW with its parameter groups, gradient clipping, and the 1cycle schedule."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from .config import OptimConfig
from .errors import UserError
from .loader import BatchPlan


class AdamW(torch.optim.AdamW):
    """torch's AdamW without its import of torch.compile, so that a run starts about a second earlier."""


for _name in ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad"):
    setattr(AdamW, _name, torch.no_grad()(inspect.unwrap(getattr(AdamW, _name))))


def adamw(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """Create AdamW: no weight decay for biases, norms and what the model lists in `no_weight_decay`."""
    exempt = getattr(model, "no_weight_decay", ())
    trained = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    decayed = [
        parameter for name, parameter in trained if parameter.ndim >= 2 and name not in exempt
    ]
    rest = [parameter for name, parameter in trained if parameter.ndim < 2 or name in exempt]
    groups = [
        {"params": decayed, "weight_decay": cfg.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return AdamW(
        groups,
        lr=cfg.lr,
        betas=(cfg.beta1, cfg.beta2),
        eps=cfg.eps,
        amsgrad=cfg.amsgrad,
        fused=cfg.fused,
    )


def clip(
    parameters: list[nn.Parameter], max_norm: float | None, max_value: float | None = None
) -> Tensor:
    """Clip each gradient element, then the global norm; None for off.

    Return the norm in between, on the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if max_value is not None:
        nn.utils.clip_grad_value_(parameters, max_value)
    total: Any = nn.utils.get_total_norm(gradients)
    # of sharded gradients
    norm: Tensor = total.full_tensor() if hasattr(total, "full_tensor") else total
    if max_norm is not None and (
        norm.device.type != "cpu" or norm > max_norm
    ):  # a GPU would synchronize
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return norm


class OneCycle:
    """1cycle, Smith and Topin 2018 (arXiv:1708.07120), as torch's OneCycleLR; momentum mirrors the learning rate."""

    def __init__(self, cfg: OptimConfig, plan: BatchPlan) -> None:
        ratio = plan.global_batch / cfg.base_batch
        self.cfg = cfg
        self.peak = (
            cfg.lr * {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[cfg.lr_scaling]
        )
        initial, last = self.peak / cfg.div_factor, max(plan.total_steps - 1.0, 2.0)
        top = min(max(cfg.pct_start * plan.total_steps - 1, 1.0), last - 1)
        self.ends = [(0.0, initial, cfg.max_momentum), (top, self.peak, cfg.base_momentum)]
        """(step, learning rate, momentum) at the ends of the phases."""
        if cfg.three_phase:
            self.ends.append((min(2 * top, last - 1), initial, cfg.max_momentum))
        self.ends.append((last, initial / cfg.final_div_factor, cfg.max_momentum))

    def set(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Set the learning rate and, in optimizers that have it, the momentum (beta1) of a step."""
        after = next(
            (index for index, end in enumerate(self.ends) if 0 < step <= end[0]),
            1 if step == 0 else -1,
        )
        (begin, *first), (end, *second) = self.ends[after - 1], self.ends[after]
        part = min((step - begin) / (end - begin), 1.0)
        left = (
            1 - part if self.cfg.anneal_strategy == "linear" else (1 + math.cos(math.pi * part)) / 2
        )
        lr, momentum = (b + (a - b) * left for a, b in zip(first, second, strict=True))
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
            if self.cfg.cycle_momentum and "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif self.cfg.cycle_momentum and group.get("momentum"):
                group["momentum"] = momentum
        return lr


def load_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load the optimizer's state of a checkpoint but keep its hyperparameters, which are those of the config."""
    if (name := type(optimizer).__name__) != saved["optimizer_class"]:
        raise UserError(
            f"the checkpoint was saved with {saved['optimizer_class']}, not {name}: use another run.name"
        )
    settings = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(saved["optimizer"])
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update(kept)
