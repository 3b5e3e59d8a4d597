"""AdamW with its parameter groups, gradient clipping, and the 1cycle schedule."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .config import OptimConfig
from .contracts import no_weight_decay
from .errors import UserError
from .loader import BatchPlan


def adamw(model: nn.Module, cfg: OptimConfig) -> Optimizer:
    """Create AdamW: no weight decay for biases, norms and the model's `no_weight_decay`."""
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
    groups = [
        {"params": decayed, "weight_decay": cfg.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=cfg.lr,
        betas=(cfg.beta1, cfg.beta2),
        eps=cfg.eps,
        amsgrad=cfg.amsgrad,
        fused=cfg.fused,
    )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


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
    # gradients in shards, of FSDP, have a norm in shards
    norm: Tensor = total.full_tensor() if hasattr(total, "full_tensor") else total
    if max_norm is None:
        return norm
    if norm.device.type != "cpu" or norm > max_norm:  # on a GPU, comparing would synchronize
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return norm


@dataclass(frozen=True)
class Phase:
    """A part of the schedule: its first and last step, and the values at these two."""

    first_step: float
    last_step: float
    lr: tuple[float, float]
    momentum: tuple[float, float]


class OneCycle:
    """1cycle, as torch's OneCycleLR; momentum mirrors the learning rate.

    It is a function of the step, so a checkpoint has no state of it. Smith and Topin 2018
    (arXiv:1708.07120).
    """

    def __init__(self, cfg: OptimConfig, plan: BatchPlan) -> None:
        self.cfg = cfg
        ratio = plan.global_batch_size / cfg.base_batch
        scale = {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}
        self.peak = cfg.lr * scale[cfg.lr_scaling]
        initial = self.peak / cfg.div_factor
        final = initial / cfg.final_div_factor
        low = cfg.base_momentum
        high = cfg.max_momentum
        end = max(plan.total_steps - 1.0, 2.0)
        top = min(max(cfg.pct_start * plan.total_steps - 1, 1.0), end - 1)
        rise = Phase(0.0, top, (initial, self.peak), (high, low))
        if cfg.three_phase:
            middle = min(2 * top, end - 1)
            fall = Phase(
                top,
                middle,
                (self.peak, initial),
                (low, high),
            )
            self.phases = [
                rise,
                fall,
                Phase(
                    middle,
                    end,
                    (initial, final),
                    (high, high),
                ),
            ]
        else:
            self.phases = [
                rise,
                Phase(
                    top,
                    end,
                    (self.peak, final),
                    (low, high),
                ),
            ]

    def set(self, optimizer: Optimizer, step: int) -> float:
        """Set the learning rate and, in optimizers that have it, the momentum (beta1) of a step."""
        phase = next((it for it in self.phases if step <= it.last_step), self.phases[-1])
        progress = (step - phase.first_step) / (phase.last_step - phase.first_step)
        lr = self._anneal(*phase.lr, progress)
        momentum = self._anneal(*phase.momentum, progress)
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
            if self.cfg.cycle_momentum and "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif self.cfg.cycle_momentum and group.get("momentum"):
                group["momentum"] = momentum
        return lr

    def _anneal(
        self,
        start: float,
        end: float,
        progress: float,
    ) -> float:
        progress = min(progress, 1.0)
        left = 1 - progress
        if self.cfg.anneal_strategy == "cos":
            left = (1 + math.cos(math.pi * progress)) / 2
        return end + (start - end) * left


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
    for group, kept in zip(
        optimizer.param_groups,
        configured,
        strict=True,
    ):
        group.update(kept | {"params": group["params"]})
