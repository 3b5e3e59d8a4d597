"""Checkpoints: a folder of `save_state` each, renamed into place when it is complete.

checkpoints/step-00000120/   what `load_state` needs
best/                        model.safetensors, the weights of the best validation, and its result
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.optim import Optimizer

from . import record
from .errors import UserError


@dataclass
class Progress:
    """How far a run is: `register_for_checkpointing` adds it to each checkpoint."""

    step: int = 0
    """Optimizer steps so far."""
    updates: int = 0
    """Steps that fp16 did not skip: the schedule counts these."""
    best: float | None = None
    """Best value of `monitor` so far."""
    monitor: str = "loss"
    """Metric of the best value: that of another one does not count."""

    def state_dict(self) -> dict[str, Any]:
        """Return the values."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the values of a checkpoint."""
        vars(self).update(state)


def save(
    accelerator: Accelerator,
    folder: Path,
    step: int,
    keep: int,
) -> None:
    """Save a checkpoint of the run in this folder, then delete all but the newest ones."""
    checkpoints = folder / "checkpoints"
    replace(accelerator, checkpoints / f"step-{step:08d}", accelerator.save_state)
    if accelerator.is_main_process:
        saved = sorted(checkpoints.glob("step-*"))
        for old in saved[:-keep]:
            shutil.rmtree(old)


def find(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run, if there is one."""
    return max(folder.glob("checkpoints/step-*"), default=None)


def spec_of(folder: Path | None) -> dict[str, Any] | None:
    """Return the fields of the Spec that a run was trained with; its tuples are lists in JSON."""
    saved = record.read(folder).get("spec") if folder else None
    spec: dict[str, Any] | None = _as_tuples(saved)
    return spec


def _as_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_as_tuples, value))
    if isinstance(value, dict):
        return {key: _as_tuples(part) for key, part in value.items()}
    return value


def about_best(folder: Path) -> str:
    """Describe the validation whose weights are kept as the best."""
    best = json.loads((folder / "best/validation.json").read_text())
    return f"step {best['step']:,}, with the best {best['monitor']}: {best['value']:.4g}"


def load(
    accelerator: Accelerator,
    folder: Path,
    optimizer: Optimizer,
) -> None:
    """Load the newest checkpoint of a run, if there is one; the options stay the config's.

    Raises:
        UserError: it is of another model.
    """
    newest = find(folder)
    if newest is None:
        return
    configured = [dict(group) for group in optimizer.param_groups]
    try:
        # Accelerate would execute what is in the file of `Progress`
        progress = torch.load(newest / "custom_checkpoint_0.pkl", weights_only=True)
        if "step" not in progress:
            raise ValueError("custom_checkpoint_0.pkl has no step")
        accelerator.load_state(str(newest))
    except Exception as error:  # torch, pickle and safetensors raise many kinds
        reason = " ".join(str(error).split())[:200]
        problem = f"{newest} is damaged or of another model ({reason})"
        raise UserError(f"{problem}: remove it, or use another run.name") from None
    accelerator.step = 0  # its micro-batches, of which a step may have another number now
    for group, own in zip(optimizer.param_groups, configured, strict=True):
        group.update(own)


def replace(
    accelerator: Accelerator,
    folder: Path,
    write: Callable[[str], object],
) -> None:
    """Write a folder under a temporary name, and rename it: a kill leaves no half of one."""
    partial = folder.with_name(f".{folder.name}.partial")
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    write(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
