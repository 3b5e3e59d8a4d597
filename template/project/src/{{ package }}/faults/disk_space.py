"""Compares the free disk space with the checkpoints that a run will keep, before it starts."""

import shutil
import warnings
from pathlib import Path

from torch import nn

from ..config import Config
from ..errors import UserError

STATES = {"adamw": 2, "adam": 2, "lamb": 2}
"""Values that an optimizer keeps for each weight; 1 for the others."""


def check(folder: Path, cfg: Config, model: nn.Module) -> None:
    """Warn if the checkpoints of a run do not fit on the disk of its folder, which need not exist.

    Raises:
        UserError: not even one more does.
    """
    size = _size(cfg, model)
    disk = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(disk).free
    if free < size:
        full = f"{disk} has {_form(free)} free, and a checkpoint takes {_form(size)}"
        raise UserError(f"{full}: free some space, or give another --run.dir")
    kept = cfg.checkpoint.keep + cfg.checkpoint.best + 1  # and one that is being written
    there = sum(file.stat().st_size for file in folder.glob("checkpoints/step-*/*") if file.is_file())
    if free < kept * size - there:
        text = (
            f"{disk} has {_form(free)} free, and the run will need up to {_form(kept * size - there)} for checkpoints"
        )
        warnings.warn(f"{text}: free some space, or lower checkpoint.keep", stacklevel=2)


def _size(cfg: Config, model: nn.Module) -> int:
    """Return about how many bytes a checkpoint has: weights, their average, and the optimizer's state."""
    weights: int = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    trained = sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad)
    return weights * (1 + (cfg.train.ema is not None)) + trained * STATES.get(cfg.optim.name, 1)


def _form(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
