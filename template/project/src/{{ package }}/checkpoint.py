"""Save and restore a run: a folder each, written whole or not at all, checked when read.

Its files:

    runs/<name>/checkpoints/step-00000120/state.pt        tensors and counters, loadable with weights_only=True
    runs/<name>/checkpoints/step-00000120/manifest.json   SHA-256 and size of state.pt, step, metrics, the run's config
"""

import hashlib
import json
import os
import pickle  # only for its error
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from .errors import UserError

PREFIX = "step-"


def save(folder: Path, step: int, state: dict[str, Any], about: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint under a temporary name, flush it to disk, rename it; then remove all but the newest `keep`.

    Raises:
        UserError: the disk is full or not writable; the checkpoints before stay as they are.
    """
    target = folder / f"{PREFIX}{step:08d}"
    partial = folder / f".{target.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with (partial / "state.pt").open("wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        manifest = {**about, "step": step, "bytes": (partial / "state.pt").stat().st_size}
        manifest["sha256"] = _sha256(partial / "state.pt")
        with (partial / "manifest.json").open("w", encoding="utf-8") as text:
            json.dump(manifest, text, indent=2, default=str)
            os.fsync(text.fileno())
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        _flush_folder(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
            raise
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"cannot save {target} ({error}): free some space; older checkpoints are untouched") from error
    for old in all_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def set_aside_after(checkpoint: Path) -> None:
    """Rename what is newer than the checkpoint that a run goes on from, so that nobody takes it for the run's own."""
    for newer in all_checkpoints(checkpoint.parent):
        if newer.name > checkpoint.name:
            aside = newer.with_name(f"abandoned-{newer.name}")
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)


def all_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in the folder, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*"))


def find(path: Path) -> Path | None:
    """Return the newest good checkpoint of a run's folder, or the one that `path` is; warn of a damaged one."""
    path = path.resolve()
    candidates = [path] if (path / "manifest.json").exists() else all_checkpoints(path / "checkpoints")
    for candidate in reversed(candidates):
        problem = damage(candidate)
        if problem is None:
            return candidate
        warnings.warn(f"passing over the checkpoint {candidate}: {problem}", stacklevel=2)
    return None


def damage(checkpoint: Path) -> str | None:
    """Say what is wrong with a checkpoint's files; None for nothing."""
    try:
        manifest = read_manifest(checkpoint)
        state = checkpoint / "state.pt"
        if state.stat().st_size != manifest["bytes"]:
            return f"state.pt has {state.stat().st_size} bytes, not {manifest['bytes']}"
        if _sha256(state) != manifest["sha256"]:
            return "state.pt does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """What was written beside the state: step, metrics, config."""
    return dict(json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8")))


def read_state(checkpoint: Path, device: torch.device) -> dict[str, Any]:
    """Load the state onto the device; nothing but tensors and plain values is ever unpickled.

    Raises:
        UserError: it holds anything else.
    """
    try:
        state: dict[str, Any] = torch.load(checkpoint / "state.pt", map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"cannot load {checkpoint}: it holds more than tensors, so it is not one of ours") from error
    return state


def check_same(checkpoint: Path, fixed: dict[str, Any]) -> None:
    """Hold what may not change within a run against what the checkpoint was made with.

    Raises:
        UserError: a value differs; names the first few.
    """
    here = _leaves(json.loads(json.dumps(fixed, default=str)))
    there = _leaves(read_manifest(checkpoint).get("fixed", {}))
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if keys:
        differing = ", ".join(f"{key} {there.get(key)} there and {here.get(key)} here" for key in keys[:3])
        raise UserError(f"{checkpoint} is of another model or run ({differing}): use its values, or start a new run")


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def load_weights(model: torch.nn.Module, weights: dict[str, Any], checkpoint: Path) -> None:
    """Fill the model.

    Raises:
        UserError: the weights are of another model.
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        detail = str(error).strip().splitlines()[1 if "\n" in str(error).strip() else 0].strip()
        raise UserError(f"{checkpoint} is of another model ({detail}): restore its model.py, or start anew") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
