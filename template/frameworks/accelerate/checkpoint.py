"""Checkpoints: a folder of `save_state` each, renamed into place when it is complete.

checkpoints/step-00000120/   what `load_state` needs, and progress.json
best/model.safetensors       the weights of the best validation
"""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import Accelerator
from torch.optim import Optimizer

from .errors import UserError


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    """Optimizer steps so far."""
    updates: int = 0
    """Steps that fp16 did not skip: the schedule counts these."""
    best: float = math.inf
    """Lowest validation loss."""


def save(
    accelerator: Accelerator,
    folder: Path,
    progress: Progress,
    keep: int,
) -> None:
    """Save a checkpoint of the run in this folder, then delete all but the newest ones."""
    checkpoints = folder / "checkpoints"

    def write(partial: Path) -> None:
        accelerator.save_state(str(partial))
        if accelerator.is_main_process:
            text = json.dumps(asdict(progress))
            (partial / "progress.json").write_text(text, encoding="utf-8")

    replace(accelerator, checkpoints / f"step-{progress.step:08d}", write)
    if accelerator.is_main_process:
        saved = sorted(checkpoints.glob("step-*"))
        for old in saved[:-keep]:
            shutil.rmtree(old)


def find(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run, if there is one."""
    saved = sorted(folder.glob("checkpoints/step-*"))
    return saved[-1] if saved else None


def load(
    accelerator: Accelerator,
    folder: Path,
    optimizer: Optimizer,
) -> Progress:
    """Load the newest checkpoint of a run, if there is one; the options stay the config's.

    Raises:
        UserError: it is of another model.
    """
    newest = find(folder)
    if newest is None:
        return Progress()
    configured = [dict(group) for group in optimizer.param_groups]
    try:
        accelerator.load_state(str(newest))
    except Exception as error:  # torch, pickle and safetensors raise many kinds
        reason = " ".join(str(error).split())[:200]
        problem = f"{newest} is damaged or of another model ({reason})"
        raise UserError(f"{problem}: remove it, or use another run.name") from None
    accelerator.step = 0  # its micro-batches, of which a step may have another number now
    for group, own in zip(optimizer.param_groups, configured, strict=True):
        group.update(own)
    text = (newest / "progress.json").read_text(encoding="utf-8")
    return Progress(**json.loads(text))


def replace(
    accelerator: Accelerator,
    folder: Path,
    write: Callable[[Path], object],
) -> None:
    """Write a folder under a temporary name, and rename it: a kill leaves no half of one."""
    partial = folder.with_name(f".{folder.name}.partial")
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    write(partial)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
