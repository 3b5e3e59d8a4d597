"""The weights of each checkpoint as a safetensors file, which other programs read without executing anything in it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..component import Component
from ..config_base import Section
from ..distributed import World
from ..errors import UserError
from ..run import Run

FILE = "weights.safetensors"


@dataclass(frozen=True)
class SafetensorsConfig(Section):
    """Weights as safetensors files."""

    enabled: bool = False
    """Write `weights.safetensors` into each checkpoint's folder."""


class Safetensors(Component):
    """Writes the weights of the checkpoints that are complete: at each validation, and when the training ends."""

    name = "safetensors"

    def __init__(self, cfg: SafetensorsConfig, world: World) -> None: ...

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        run.world.run_on_rank_zero(lambda: _write_missing(run, f"step-{run.step:08d}"))

    def on_train_end(self, run: Run) -> None:
        if run.world.rank == 0:  # the others may have ended with an error, and would not answer
            _write_missing(run)


def _write_missing(run: Run, coming: str | None = None) -> None:
    from safetensors import SafetensorError

    # A tied weight is written once, under its first name; `safetensors.torch.load_model` restores
    # the others.
    first = {id(value): name for name, value in run.model.named_parameters()}
    names = {
        name: first[id(value)] for name, value in run.model.named_parameters(remove_duplicate=False)
    }
    aliases = {name: kept for name, kept in names.items() if name != kept}
    metadata = {"format": "pt", "model": type(run.model).__name__} | aliases
    for folder in _kept(run.folder / "checkpoints", run.cfg.run.keep, coming):
        try:
            if not (folder / FILE).exists():
                _write(folder, metadata | {"step": str(int(folder.name[5:]))})
        except (SafetensorError, OSError) as error:
            if (
                folder.exists()
            ):  # else a newer checkpoint, which was being written meanwhile, has replaced it
                raise UserError(f"cannot write {folder / FILE}: {error}") from error


def _kept(checkpoints: Path, keep: int, coming: str | None) -> list[Path]:
    """Return the complete checkpoints, without those that will be deleted when the coming one is complete."""
    # a folder has this name once it is complete
    there = {folder.name for folder in checkpoints.glob("step-*")}
    best = checkpoints / "best.json"
    kept = (
        {f"step-{json.loads(best.read_text(encoding='utf-8'))['step']:08d}"}
        if best.exists()
        else set[str]()
    )
    kept |= {*sorted(there | {coming} if coming else there)[-keep:]}
    return [checkpoints / name for name in sorted(there & kept)]


def _write(folder: Path, metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    # Copies: safetensors takes no tensors that share memory or are not contiguous, such as NHWC
    # weights.
    weights = {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in weights_of(folder).items()
    }
    partial = folder / f".{FILE}.partial"
    save_file(
        {name: value for name, value in weights.items() if name not in metadata}, partial, metadata
    )
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.rename(folder / FILE)


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a checkpoint's folder; averaged ones, if the run validates with those."""
    exported = folder / "weights.pt"  # of a checkpoint in shards
    file = exported if exported.exists() else folder / "state.pt"
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    weights: dict[str, Tensor] = dict(state["model"])
    for component in state["components"].values():
        weights |= component.get("eval_weights", {})
    return weights
