"""The weights of each checkpoint as a safetensors file, which executes nothing when it is read."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoint import best_name, is_intact, weights_of
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
    """Writes the weights of complete checkpoints: at each validation, and at the end."""

    name = "safetensors"

    def __init__(
        self,
        cfg: SafetensorsConfig,
        world: World,
    ) -> None: ...

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        coming = f"step-{run.step:08d}"
        run.world.run_on_rank_zero(lambda: _write_missing(run, coming))

    def on_train_end(self, run: Run) -> None:
        if run.world.rank == 0:  # the others may have ended with an error, and would not answer
            _write_missing(run)


def _write_missing(run: Run, coming: str | None = None) -> None:
    from safetensors import SafetensorError

    metadata = {"format": "pt", "model": type(run.model).__name__}
    # A tied weight is written once, under its first name, as `safetensors.torch.load_model` expects
    first = {id(value): name for name, value in run.model.named_parameters()}
    for name, value in run.model.named_parameters(remove_duplicate=False):
        if name != first[id(value)]:
            metadata[name] = first[id(value)]
    for folder in _kept(run.folder / "checkpoints", run.cfg.run.keep, coming):
        if (folder / FILE).exists():
            continue
        try:
            _write(folder, metadata)
        except (SafetensorError, OSError, UserError) as error:
            if folder.exists():  # else a newer checkpoint has replaced it meanwhile
                raise UserError(f"cannot write {folder / FILE}: {error}") from error


def _kept(checkpoints: Path, keep: int, coming: str | None) -> list[Path]:
    """Return the intact checkpoints that stay when the coming one is complete."""
    there = set()
    for folder in checkpoints.glob("step-*"):
        if (folder / FILE).exists() or is_intact(folder):
            there.add(folder.name)
    names = sorted(there | {coming} if coming else there)
    kept = {*names[-keep:], best_name(checkpoints)}
    return [checkpoints / name for name in sorted(there & kept)]


def _write(folder: Path, metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    weights = {}
    for name, value in weights_of(folder).items():
        if name not in metadata:
            # safetensors takes no memory that is shared or not contiguous, such as NHWC weights
            weights[name] = value.clone(memory_format=torch.contiguous_format)
    step = str(int(folder.name.removeprefix("step-")))
    partial = folder / f".{FILE}.partial"
    save_file(weights, partial, metadata | {"step": step})
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    partial.rename(folder / FILE)
