"""The state of a run that the log and components read while the model trains; its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from . import record
from .checkpoint import lock, newest, restore
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
    spec: Any = None
    """The Spec of data.py."""
    step: int = 0
    """Optimizer steps so far."""
    skipped_steps: int = 0
    """Steps without an update, as of the last row of metrics; the schedule does not count them."""
    finished: bool = False
    """Set to end the training after this step; in `on_validation`, it has a checkpoint already."""

    @property
    def name(self) -> str:
        """`run.name`, with which the run is resumed."""
        return str(self.folder.relative_to(self.cfg.run.dir))

    @property
    def is_over(self) -> bool:
        """Whether there is no further step."""
        return self.finished or self.step >= self.plan.total_steps

    def restore(self, saved: dict[str, Any], folder: Path) -> None:
        """Restore the steps and the model from the state of a checkpoint."""
        self.step = saved["step"]
        self.skipped_steps = saved["skipped_steps"]
        restore(self.model, saved["model"], folder)


def run_folder(cfg: RunConfig, world: World) -> Path:
    """Return the folder of a run; its name is the date and time, unless the config has one."""
    return cfg.dir / (cfg.name or world.run_on_rank_zero(lambda: record.create_folder(cfg.dir)))


def find_checkpoint(cfg: BaseConfig, world: World) -> Path | None:
    """Return the newest intact checkpoint of the run of this name, which is then resumed.

    Raises:
        UserError: the run was trained with other options, or another process trains it now.
    """
    folder = cfg.run.dir / (cfg.run.name or "")
    options = record.trained_with(cfg, cfg.train.samples_per_step(world.size))

    def find() -> Path | None:
        checkpoint = newest(folder / "checkpoints")
        if checkpoint and not cfg.run.allow_changes:
            record.check(folder, cfg, options)
        return checkpoint

    if not cfg.run.name or not world.run_on_rank_zero(folder.exists):
        return None
    with lock(folder, world):
        return world.run_on_rank_zero(find)


def is_finished(cfg: BaseConfig, world: World) -> bool:
    """Return whether the run of this name ended with the same options; print it on rank 0."""
    folder = cfg.run.dir / (cfg.run.name or "")

    def find() -> bool:
        step = record.finished_at(folder, cfg)
        last = newest(folder / "checkpoints") if step else None
        if last is None or last.name != f"step-{step:08d}":
            return False
        print(f"{folder} is finished, after {step:,} steps: use another run.name")
        return True

    return world.run_on_rank_zero(find)
