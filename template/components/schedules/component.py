"""Learning-rate schedules other than 1cycle: cosine, cyclical, WSD and constant."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section, within
from ..distributed import World
from ..loader import BatchPlan
from ..optim import OneCycle


@dataclass(frozen=True)
class SchedulesConfig(Section):
    """The schedule of the learning rate, whose peak is `optim.lr`; it is a function of the step."""

    is_fixed = True
    enabled: bool = False
    """Follow the schedule `name` instead of 1cycle."""
    name: Literal["cosine", "cyclical", "wsd", "constant"] = "cosine"
    """Schedule.

    wsd: warm-up, stable, decay; its checkpoints before the decay can be trained for longer.
    """
    warmup: float = within("[0, 1)", 0.05)
    """cosine, wsd, constant: fraction of the steps in which the learning rate rises to the peak,
    along a line."""
    decay: float = within("(0, 1]", 0.2)
    """wsd: fraction of the steps, at the end, in which the learning rate falls."""
    final: float = within("[0, 1]", 0.0)
    """cosine, wsd: final learning rate divided by the peak."""
    cycle_steps: int | None = within("[2, inf)", None)
    """cyclical: optimizer steps per cycle; null for a quarter of the run."""
    cycle_factor: float = within("[1, inf)", 10.0)
    """cyclical: peak learning rate divided by the lowest one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "wsd" and self.warmup + self.decay > 1:
            most = f"it must be at most {1 - self.decay:.4g}"
            self.refuse("warmup", f"with schedules.decay {self.decay}, {most}")


class Schedules(Component):
    """Builds the schedule."""

    name = "schedules"

    def __init__(
        self,
        cfg: SchedulesConfig,
        world: World,
    ) -> None:
        self.cfg = cfg

    def build_schedule(
        self,
        plan: BatchPlan,
        cfg: BaseConfig,
    ) -> OneCycle:
        return Schedule(self.cfg, plan, cfg)


class Schedule(OneCycle):
    """The learning rate of each step, as a part of the peak; momentum stays as configured."""

    def __init__(
        self,
        own: SchedulesConfig,
        plan: BatchPlan,
        cfg: BaseConfig,
    ) -> None:
        super().__init__(cfg.optim, plan)
        self.own = own
        self.total = plan.total_steps
        self.warmup = round(own.warmup * self.total)
        self.decay = max(round(own.decay * self.total), 1)
        self.cycle = own.cycle_steps or max(self.total // 4, 2)

    def set(
        self,
        optimizer: torch.optim.Optimizer,
        step: int,
    ) -> float:
        """Set and return the learning rate of a step."""
        lr = self.peak * self.height(step)
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        return lr

    def height(self, step: int) -> float:
        """Return the learning rate of a step, divided by the peak."""
        if self.own.name == "cyclical":  # Smith 2015 (arXiv:1506.01186, section 3.1), triangular
            lowest = 1 / self.own.cycle_factor
            risen = 1 - abs(step % self.cycle / (self.cycle / 2) - 1)
            return lowest + (1 - lowest) * risen
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        left = 1.0
        if self.own.name == "cosine":
            # Loshchilov and Hutter 2016 (arXiv:1608.03983, equation 5), without restarts
            progress = (step - self.warmup) / (self.total - self.warmup)
            left = (1 + math.cos(math.pi * progress)) / 2
        elif self.own.name == "wsd":
            # Haegele et al. 2024 (arXiv:2405.18392, section 3)
            decayed = max(step - (self.total - self.decay), 0)
            left = 1 - math.sqrt(decayed / self.decay)
        return self.own.final + (1 - self.own.final) * left
