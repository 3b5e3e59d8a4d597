"""How a run came about: code, command, versions, machine and data, in the manifest of each checkpoint.

`tools/reproduce.py` compares it with what is here today.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..contracts import Data, Dataset, in_memory, tensors
from ..distributed import World
from ..environment import PACKAGE, cpu, environment, versions
from ..hooks import Hook
from .repository import Repository

IN_MEMORY_BYTES, BY_SAMPLE, FROM_DISK = 2**24, 1024, 8
"""What is read of each split: so much of data in memory, or samples of data that answer single ones, or are on disk."""
FILES = 256
"""Files of each split whose sizes are compared."""


class Provenance(Hook):
    """Finds out how this run came about: the code at its start, the rest for its first checkpoint. Rank 0 only."""

    def __init__(self, data: Data, world: World) -> None:
        self.data, self.world = data, world
        self.found: dict[str, Any] = {}

    @contextmanager
    def running(self, model: nn.Module, folder: Path) -> Iterator[None]:
        if not self.world.is_main:
            yield
            return
        self.folder, self.code, self.repository = folder, code(), Repository(PACKAGE)
        try:
            yield
        finally:
            self.repository.close()

    def manifest(self) -> dict[str, Any]:
        if not self.world.is_main:
            return {}
        if not self.found:
            git, diff = self.repository.read()
            if diff:
                git["diff"]["file"] = _keep(diff, self.folder, git["diff"]["sha256"])
            self.found = {
                "git": git,
                "code": self.code,
                "command": sys.orig_argv,
                "ranks": self.world.world_size,
                "ranks_here": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
                "versions": versions(),
                "machine": machine(self.world.device),
                "environment": environment(),
                "data": fingerprint(self.data),
            }
        return {"provenance": self.found}


def _keep(diff: bytes, folder: Path, digest: str) -> str | None:
    """Write a diff into the run's folder, under a name of its own content, and return the name; None if that fails."""
    file = folder / f"uncommitted-{digest[:8]}.diff"
    with suppress(OSError):  # a checkpoint that cannot be written either says so
        file.write_bytes(diff)
        return file.name
    return None


def code() -> str:
    """Return a hash of the package's Python files, without its tests."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if not name.startswith("tests/"):
            digest.update(f"{name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def machine(device: torch.device) -> dict[str, Any]:
    """Return what may change the results, and the name of the machine."""
    found: dict[str, Any] = {"host": platform.node(), "system": platform.platform(), "cpu": cpu()}
    found |= {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "device": device.type}
    if device.type not in ("cpu", "mps"):
        module = torch.get_device_module(device)
        found["gpus"] = [module.get_device_name(index) for index in range(torch.accelerator.device_count())]
    if device.type == "cuda":
        from .. import cuda

        found |= cuda.versions()
    return found


def fingerprint(data: Data) -> str:
    """Return a hash of the data: what is known of all samples, and the content of some.

    That is the `Spec`, with its statistics of the training split; the number of samples; up to 16 MiB of a split in
    memory (1,024 samples of a dataset that answers single ones), or 8 samples and the sizes of 256 files of another.
    Where the files are, and their times, do not matter.
    """
    digest = hashlib.sha256(json.dumps(asdict(data.spec), sort_keys=True, default=str).encode())
    try:
        for split in (data.train, data.val):
            _add(split, in_memory(data), digest)
    except Exception as error:  # of a dataset of your own, or a file that is gone: training has its own opinion
        return f"unknown: {' '.join(str(error).split()) or type(error).__name__}"
    return digest.hexdigest()


def _add(split: Dataset, whole: bool, digest: Any) -> None:
    """Add a split to a hash."""
    count, most = len(split), FROM_DISK
    if whole:
        first = split.__getitems__([0])
        most = IN_MEMORY_BYTES // max(1, sum(part.nbytes for part in filter(torch.is_tensor, tensors(first))))
        most = min(most, BY_SAMPLE) if getattr(split, "by_sample", False) else most
    digest.update(f"{count}\n".encode())
    sequential = getattr(split, "sequential", False)  # a stream, of which only the beginning is read
    for index in [list(range(min(count, most)))] if sequential else _spread(count, most):
        for part in filter(torch.is_tensor, tensors(split.__getitems__(index))):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.contiguous().view(torch.uint8).numpy().tobytes() if part.numel() else b"")
    files: list[Path] = getattr(split, "files", [])
    for chunk in _spread(len(files), FILES):
        for number in chunk:
            size = files[number].stat().st_size if files[number].exists() else None  # of one that is gone
            digest.update(f"{files[number].name}\0{size}\n".encode(errors="surrogateescape"))


def _spread(count: int, most: int) -> Iterator[list[int]]:
    """Return up to `most` indices below `count`, evenly spread, in chunks."""
    most = min(count, max(most, 1))
    for begin in range(0, most, 4096):
        yield [number * count // most for number in range(begin, min(begin + 4096, most))]
