"""Writes checkpoints: under a temporary name, hashed on the way, flushed to the disk, then renamed."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..checkpoint import BEST, PREFIX, all_checkpoints, best_of, checksum, step_name
from ..config import CheckpointConfig
from ..distributed import World
from ..errors import UserError

CHUNK = 2**20
"""Bytes that are hashed and written at once."""

Pace = Callable[[], object]
"""Called after each chunk; may wait."""

WriteShards = Callable[[Path, Pace | None], dict[str, Any]]
"""Writes each rank's shards to files in a new folder; called on all ranks. Returns what `write` does, by name."""


def save(
    folder: Path,
    state: dict[str, Any],
    about: dict[str, Any],
    cfg: CheckpointConfig,
    best: int,
    world: World,
    write_shards: WriteShards | None = None,
    pace: Pace | None = None,
) -> None:
    """Write a checkpoint under a temporary name, flush it to disk, rename it, then prune the oldest.

    All ranks call it. Rank 0 writes; with `write_shards`, which FSDP needs, each rank writes its shards. The file
    `best` names the checkpoint of step `best`, which is kept too.

    Raises:
        UserError: the disk is full or not writable; older checkpoints are untouched.
    """
    target = folder / step_name(state["step"])
    partial = folder / f".{target.name}.partial"
    files = write_shards(partial, pace) if write_shards else {}
    if not world.is_main:
        return
    try:
        if write_shards is None:
            make_empty(partial)
        files["state.pt"] = write(partial / "state.pt", state, pace)
        manifest = sealed({**about, "step": state["step"], "files": files})
        (partial / "manifest.json").write_text(manifest, encoding="utf-8")
        for path in (partial / "manifest.json", partial):
            flush(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        if cfg.best and (folder / step_name(best)).is_dir():
            name_best(folder, best)
        flush(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
            raise
        shutil.rmtree(partial, ignore_errors=True)
        raise cannot_save(target, error) from error
    prune(folder, cfg.keep)


def cannot_save(target: Path, why: object) -> UserError:
    """Return the error of a checkpoint that could not be written."""
    return UserError(f"cannot save {target} ({why}): free some space; older checkpoints are untouched")


def make_empty(partial: Path) -> None:
    """Create the folder of an unfinished checkpoint, and remove those that earlier runs have left."""
    for unfinished in partial.parent.glob(f".{PREFIX}*.partial"):
        shutil.rmtree(unfinished, ignore_errors=True)
    partial.mkdir(parents=True)


def name_best(folder: Path, step: int) -> None:
    """Write the name of a step's checkpoint to the file `best`; a folder of that name is set aside."""
    if (folder / BEST).is_dir():
        shutil.rmtree(folder / f"abandoned-{BEST}", ignore_errors=True)
        (folder / BEST).rename(folder / f"abandoned-{BEST}")
    (folder / ".best").write_text(f"{step_name(step)}\n", encoding="utf-8")
    (folder / ".best").rename(folder / BEST)


def prune(folder: Path, keep: int) -> None:
    """Delete all checkpoints but the newest `keep` and the best."""
    kept, complete = best_of(folder), [it for it in all_checkpoints(folder) if (it / "manifest.json").exists()]
    for old in complete[:-keep]:
        if old != kept:
            shutil.rmtree(old, ignore_errors=True)


def write(file: Path, state: object, pace: Pace | None = None) -> dict[str, str | int]:
    """Write a state to a file, wait until it is on the disk, and return what `checkpoint.fingerprint` would."""
    with file.open("wb") as stream:
        hashed: Any = _Hashed(stream, pace or (lambda: None))
        torch.save(state, hashed)
    flush(file)
    return {"bytes": hashed.bytes, "sha256": hashed.digest.hexdigest()}


class _Hashed:
    """A file for `torch.save`, which only appends to it."""

    def __init__(self, stream: BinaryIO, pace: Pace) -> None:
        self.stream, self.pace, self.digest, self.bytes = stream, pace, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self.digest.update(chunk)
            self.stream.write(chunk)
            self.bytes += len(chunk)
            self.pace()
        return len(view)

    def flush(self) -> None:
        self.stream.flush()


def sealed(manifest: dict[str, Any]) -> str:
    """Return a manifest as JSON, with its own checksum."""
    text = json.dumps(manifest, indent=2, default=str)
    return json.dumps({**json.loads(text), "sha256": checksum(text)}, indent=2)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
