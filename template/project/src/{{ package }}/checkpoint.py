"""Checkpoints: one folder each, verified when read. `faults/saving.py` writes them.

Its files:

    runs/<name>/checkpoints/step-00000120/state.pt        tensors and counters, loadable with weights_only=True
    runs/<name>/checkpoints/step-00000120/share-00001.pt  under FSDP, the shards of one rank
    runs/<name>/checkpoints/step-00000120/manifest.json   SHA-256 and size of each, step, metrics, config
    runs/<name>/checkpoints/best                          the name of the best one by train.monitor
"""

import hashlib
import json
import pickle  # only for its error
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .errors import UserError

PREFIX = "step-"
BEST = "best"


def step_name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"{PREFIX}{step:08d}"


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in the folder, oldest first."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdecimal())


def run_of(path: Path) -> Path | None:
    """Return the run's folder that a path is, or that has the checkpoint of this path; None if that is in none."""
    path = path.resolve()
    if path.parent.name == "checkpoints":
        return path.parent.parent
    return None if (path / "manifest.json").exists() else path


def best_of(folder: Path) -> Path | None:
    """Return the folder's best checkpoint, if there is one."""
    try:
        named = folder / (folder / BEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return named if named in all_checkpoints(folder) and named.is_dir() else None


def find(path: Path, check: Callable[[Path], str | None] | None = None) -> Path | None:
    """Return the newest good checkpoint of a run's folder, or the one at `path`; warn about what `check` finds."""
    path = path.resolve()
    if path.name == BEST:
        path = best_of(path.parent) or path
    candidates = [path] if (path / "manifest.json").exists() else all_checkpoints(path / "checkpoints")
    for candidate in reversed(candidates):
        problem = (check or damage)(candidate)
        if problem is None:
            return candidate
        warnings.warn(f"skipping the damaged checkpoint {candidate}: {problem}", stacklevel=2)
    return None


def damage(checkpoint: Path, first: int = 0, step: int = 1) -> str | None:
    """Return what is wrong with a checkpoint's files, or with every `step`-th from `first`; None if nothing is.

    Raises:
        UserError: a file is there, and cannot be read now.
    """
    try:
        for name, expected in sorted(read_manifest(checkpoint)["files"].items())[first::step]:
            if (checkpoint / name).stat().st_size != expected["bytes"]:
                return f"{name} does not have its {expected['bytes']} bytes"
            if fingerprint(checkpoint / name) != expected:
                return f"{name} does not match its checksum"
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    except OSError as error:  # a disk or network that fails is no reason to fall back, and lose steps
        raise UserError(f"cannot read {error.filename or checkpoint} ({error.strerror}): try again") from error
    return None


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Return what is stored beside the state: step, metrics, config.

    Raises:
        ValueError: it is not as it was written, or has another structure.
    """
    manifest = dict(json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8")))
    expected = manifest.pop("sha256", None)  # before version 0.4 it had none
    if expected not in (None, checksum(json.dumps(manifest, indent=2))):
        raise ValueError("manifest.json does not match its checksum")
    for name in ("files", "fixed", "config", "metrics"):
        if not isinstance(manifest.get(name), dict):
            raise ValueError(f"manifest.json has no {name}")
    return manifest


def checksum(text: str) -> str:
    """Return the checksum of a manifest, as JSON without it."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_state(checkpoint: Path, merge: Callable[[list[Any]], Any] = torch.cat, mmap: bool = False) -> dict[str, Any]:
    """Load the whole state to the CPU, shards merged. Only tensors and plain values are unpickled.

    Raises:
        UserError: it contains anything else.
    """
    try:
        files = [checkpoint / "state.pt", *sorted(checkpoint.glob("share-*"))]
        loaded: Any = [torch.load(file, map_location="cpu", mmap=mmap, weights_only=True) for file in files]
    except pickle.UnpicklingError as error:
        raise UserError(
            f"cannot load {checkpoint}: it contains more than tensors and numbers, so it is not one of ours"
        ) from error
    state, shards = dict(loaded[0]), loaded[1:]
    for path in shards[0] if shards else ():
        *parents, name = path
        place = state
        for key in parents:
            place = place[key]
        place[name] = merge([shard[path] for shard in shards])
    return state


def load_weights(model: torch.nn.Module, weights: dict[str, Any], checkpoint: Path) -> None:
    """Load the weights into the model.

    Raises:
        UserError: the weights are of another model.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        detail = str(error).strip().splitlines()[1 if "\n" in str(error).strip() else 0].strip()
        raise UserError(
            f"{checkpoint} is of another model ({detail}): restore its model.py, or start a new run"
        ) from error


def fingerprint(file: Path) -> dict[str, str | int]:
    """Return a file's size and SHA-256."""
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
