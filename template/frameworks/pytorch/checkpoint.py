"""Checkpoints: one folder each, renamed into place when complete, with checksums.

checkpoints/step-00000120/state.pt       tensors and counters, loaded with weights_only=True
checkpoints/step-00000120/manifest.json  the SHA-256 of each file
checkpoints/best.json                    the step of the best validation
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .distributed import World
from .errors import UserError
from .summary import write_text


class Checkpoints:
    """The checkpoints of one run.

    A component may override `write` and `read`, which every rank calls.
    """

    def __init__(self, run_folder: Path, keep: int, world: World) -> None:
        self.folder = run_folder / "checkpoints"
        self.keep = keep
        self.world = world

    def save(self, state: dict[str, Any]) -> None:
        """Write under a temporary name, flush to disk, rename, then delete other checkpoints."""
        partial = self.folder / ".partial"
        target = self.folder / f"step-{state['step']:08d}"
        self.write(partial, state)
        self.world.run_on_rank_zero(lambda: self._complete(partial, target))

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Write a checkpoint's files, replacing incomplete ones: rank 0 writes the whole state."""

        def write() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            save(state, folder / "state.pt")

        self.world.run_on_rank_zero(write)

    def read(
        self,
        folder: Path,
        state: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the state in a checkpoint, on the CPU. A component may read into `state`."""
        return _load(folder / "state.pt")

    def record_best(
        self,
        step: int,
        results: dict[str, float],
        monitor: str,
        mode: str | None,
    ) -> None:
        """Write best.json if this validation is the best one so far, and finite."""
        if monitor not in results:
            known = ", ".join(results)
            raise UserError(f"train.monitor is {monitor}: the validation metrics are {known}")
        value = results[monitor]

        def record() -> None:  # on rank 0 alone, as it changes the file that the decision reads
            for name, result in results.items():
                if not math.isfinite(result):
                    tqdm.write(f"warning: {name} is {result} in the validation of step {step:,}")
            if not math.isfinite(value):
                return
            new = {"step": step, "value": value, "monitor": monitor, "mode": mode or "min"}
            old = _best(self.folder)
            has_same_rule = old.get("monitor") == monitor and old.get("mode") == new["mode"]
            gain = value - old["value"] if has_same_rule else math.inf
            if not has_same_rule or (gain > 0 if mode == "max" else gain < 0):
                write_text(self.folder / "best.json", json.dumps(new))

        self.world.run_on_rank_zero(record)

    def _complete(self, partial: Path, target: Path) -> None:
        files = [file for file in partial.rglob("*") if file.is_file()]
        sums = {}
        for file in files:
            sums[str(file.relative_to(partial))] = _sha256(file)
        write_text(partial / "manifest.json", json.dumps({"sha256": sums}))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)  # the rename
        os.close(descriptor)
        # those after this step are damaged: the run was resumed from one before them
        saved = sorted(self.folder.glob("step-*"))
        until_now = [folder for folder in saved if folder <= target]
        kept = until_now[-self.keep :]
        best = best_name(self.folder)
        for folder in saved:
            if folder not in kept and folder.name != best:
                shutil.rmtree(folder)


def newest(folder: Path, best_first: bool = False) -> Path | None:
    """Return the newest intact checkpoint in a folder, or that of the best validation if intact."""
    checkpoints = sorted(folder.glob("step-*"), reverse=True)
    if best_first:
        best = best_name(folder)
        checkpoints.sort(key=lambda checkpoint: checkpoint.name != best)
    for checkpoint in checkpoints:
        if is_intact(checkpoint):
            return checkpoint
        warnings.warn(f"skipping the damaged checkpoint {checkpoint}", stacklevel=2)
    return None


def is_intact(folder: Path) -> bool:
    """Whether all files of a checkpoint are as they were written."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        sums = manifest["sha256"].items()
        return all(_sha256(folder / name) == expected for name, expected in sums)
    return False


def best(run_folder: Path) -> Path:
    """Return the checkpoint of a run's best validation."""
    folder = newest(run_folder / "checkpoints", best_first=True)
    if folder is None:
        raise UserError(
            f"{run_folder} has no checkpoint: give the folder of a run, such as runs/first"
        )
    return folder


def about_best(run_folder: Path) -> str:
    """Describe the validation that decided which checkpoint `best` returns."""
    record = _best(run_folder / "checkpoints")
    if not record:
        return "the newest checkpoint, as no validation recorded a finite value of train.monitor"
    return f"step {record['step']:,}, with the best {record['monitor']}: {record['value']:.4g}"


def load_weights(run_folder: str | Path) -> dict[str, Tensor]:
    """Return the weights of a run's best validation: averaged ones, if it validated with those."""
    return weights_of(best(Path(run_folder)))


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a checkpoint: averaged ones, if the run validates with those."""
    state = _load(_weights_file(folder), mmap=True)
    weights: dict[str, Tensor] = dict(state["model"])
    for component in state["components"].values():
        weights |= component.get("eval_weights", {})
    return weights


def spec_of(folder: Path | None) -> dict[str, Any] | None:
    """Return the fields of the Spec in a checkpoint; None if the Spec is no dataclass."""
    if folder is None:
        return None
    spec: dict[str, Any] | None = _load(_weights_file(folder), mmap=True).get("spec")
    return spec


def restore(
    model: nn.Module,
    weights: dict[str, Tensor],
    folder: Path,
) -> None:
    """Load the weights of a checkpoint into the model.

    Raises:
        UserError: the model has others.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()[:200]
        other = "put the model and the data of the run back, or use another run.name"
        raise UserError(f"{folder} has the weights of another model ({reason}): {other}") from None


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


def save(state: dict[str, Any], file: Path) -> None:
    """Write a file, and flush it to the disk.

    Raises:
        UserError: the disk is full.
    """
    try:
        with file.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except RuntimeError as error:
        raise UserError(f"cannot write {file}: {str(error).splitlines()[0]}") from error


def _weights_file(folder: Path) -> Path:
    whole = folder / "weights.pt"  # of a checkpoint in shards
    return whole if whole.exists() else folder / "state.pt"


def _load(file: Path, mmap: bool = False) -> dict[str, Any]:
    """Return the content of a file, of which nothing is executed.

    With `mmap`, tensors are read from the disk when they are used.
    """
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        if not {"model", "components"} <= content.keys():
            raise ValueError("it is of another program")
    except Exception as error:  # torch raises many kinds
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"the checkpoint {file} cannot be read ({reason}): remove its folder"
        ) from None
    return dict(content)


def _best(folder: Path) -> dict[str, Any]:
    """Return the record of the best validation; empty if there is none."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads((folder / "best.json").read_text(encoding="utf-8")))
    return {}


def best_name(folder: Path) -> str:
    """Return the name of the checkpoint of the best validation."""
    return f"step-{_best(folder).get('step', 0):0>8}"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
