"""Checkpoints: one folder each, renamed into place when complete, with checksums.

checkpoints/step-00000120/state.pt       tensors and counters, loaded with weights_only=True
checkpoints/step-00000120/manifest.json  the SHA-256 of each file
checkpoints/best.json                    the step of the best validation
"""

import fcntl
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .distributed import World
from .errors import UserError


class Checkpoints:
    """The checkpoints of one run.

    A component may override `write` and `read`, which every rank calls.
    """

    def __init__(
        self,
        run_folder: Path,
        keep: int,
        world: World,
    ) -> None:
        self.folder = run_folder / "checkpoints"
        self.keep = keep
        self.world = world

    def save(self, state: dict[str, Any]) -> None:
        """Write under a temporary name, flush to disk, rename, then delete old checkpoints."""
        partial = self.folder / ".partial"
        target = self.folder / f"step-{state['step']:08d}"
        self.write(partial, state)
        self.world.run_on_rank_zero(lambda: self._complete(partial, target))

    def load(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Return the newest intact checkpoint, if there is one; `state` has its structure."""
        folder = str(newest(self.folder) or "") if self.world.rank == 0 else ""
        folder = self.world.broadcast(folder)
        return self.read(Path(folder), state) if folder else None

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint's files, replacing incomplete ones: rank 0 writes the whole state."""
        self.world.run_on_rank_zero(lambda: _save(state, folder))

    def read(
        self,
        folder: Path,
        state: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the state from a checkpoint's files, on the CPU."""
        return dict(
            torch.load(
                folder / "state.pt",
                map_location="cpu",
                weights_only=True,
            )
        )

    def save_best(
        self,
        step: int,
        results: dict[str, float],
        monitor: str,
        mode: str,
    ) -> None:
        """Record this validation's step if its result is the best one so far."""
        if monitor not in results:
            known = ", ".join(results)
            raise UserError(f"train.monitor is {monitor}: the validation metrics are {known}")
        value = results[monitor]

        def record() -> None:  # on rank 0 alone, as it changes the file that the decision reads
            best = _best(self.folder).get("value")
            if best is None or (value < best if mode == "min" else value > best):
                write_text(self.folder / "best.json", json.dumps({"step": step, "value": value}))

        self.world.run_on_rank_zero(record)

    def _complete(self, partial: Path, target: Path) -> None:
        files = [file for file in partial.rglob("*") if file.is_file()]
        sums = {str(file.relative_to(partial)): _sha256(file) for file in files}
        write_text(partial / "manifest.json", json.dumps({"sha256": sums}))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)  # the rename
        os.close(descriptor)
        best = _best(self.folder).get("step", 0)
        for old in sorted(self.folder.glob("step-*"))[: -self.keep]:
            if old.name != f"step-{best:08d}":
                shutil.rmtree(old)


def newest(folder: Path, best_first: bool = False) -> Path | None:
    """Return the newest intact checkpoint in a folder, or that of the best validation if intact."""
    checkpoints = sorted(folder.glob("step-*"), reverse=True)
    if best_first:
        best = f"step-{_best(folder).get('step', 0):08d}"
        checkpoints.sort(key=lambda checkpoint: checkpoint.name != best)
    return next(filter(_is_intact, checkpoints), None)


def _is_intact(folder: Path) -> bool:
    with suppress(OSError, ValueError, KeyError, TypeError):
        sums = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["sha256"]
        if not isinstance(sums, dict):
            raise UserError(f"an older version saved {folder}: use another run.name")
        if all(_sha256(folder / name) == expected for name, expected in sums.items()):
            return True
    warnings.warn(f"skipping the damaged checkpoint {folder}", stacklevel=2)
    return False


def load_weights(run_folder: str | Path) -> dict[str, Tensor]:
    """Return the weights of a run's best validation: averaged ones, if it validated with those."""
    folder = newest(Path(run_folder) / "checkpoints", best_first=True)
    if folder is None:
        raise UserError(
            f"{run_folder} has no checkpoint: give the folder of a run, such as runs/first"
        )
    file = folder / "weights.pt"  # of a checkpoint in shards
    if not file.exists():
        file = folder / "state.pt"
    state = torch.load(file, map_location="cpu", weights_only=True)
    weights: dict[str, Tensor] = dict(state["model"])
    for component in state["components"].values():
        weights |= component.get("eval_weights", {})
    return weights


@contextmanager
def lock(folder: Path, world: World) -> Iterator[None]:
    """Create the folder of a run and lock it: one process (or one torchrun) per run."""

    def acquire() -> None:
        try:
            # not flock, whose lock loader workers would hold as well
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = "wait for it, or use another run.name"
            raise UserError(f"another process trains {folder}: {other}") from None

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        world.run_on_rank_zero(acquire)
        yield


def write_text(file: Path, text: str) -> None:
    """Replace a small file, so that it is either the old one or the new one even after a crash."""
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)


def _save(state: dict[str, Any], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with (folder / "state.pt").open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except RuntimeError as error:  # of torch.save when the disk is full
        raise UserError(f"cannot write {folder}: {str(error).splitlines()[0]}") from error


def _best(folder: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, ValueError):
        return dict(json.loads((folder / "best.json").read_text(encoding="utf-8")))
    return {}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
