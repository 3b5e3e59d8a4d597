"""The state of a run that the log and components read while the model trains."""

import time
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from .config import BaseConfig, RunConfig
from .distributed import World
from .loader import BatchPlan


@dataclass
class Run:
    """What is trained, where, and how far it is."""

    cfg: BaseConfig
    world: World
    folder: Path
    plan: BatchPlan
    model: nn.Module
    """The module whose weights and names a checkpoint has, without DDP around it."""
    optimizer: Optimizer
    step: int = 0
    """Optimizer steps so far."""
    skipped_steps: int = 0
    """Steps without an update, as of the last row of metrics; the schedule does not count them."""
    finished: bool = False
    """Set to end the training after this step."""

    @property
    def is_over(self) -> bool:
        """Whether there is no further step."""
        return self.finished or self.step >= self.plan.total_steps


def run_folder(cfg: RunConfig, world: World) -> Path:
    """Return the folder of a run; its name is the date and time, unless the config has one."""
    return cfg.dir / (cfg.name or world.broadcast(time.strftime("%Y-%m-%d-%H-%M-%S")))
