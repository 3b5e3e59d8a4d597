"""Decoded samples, kept on disk, in memory or in GPU memory, so that each is decoded once."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import torch
from torch import Tensor
from torch.utils.data import default_collate

from .. import data
from ..component import Component, Run
from ..config_base import Section, within
from ..distributed import World
from ..errors import UserError
from ..loader import Loader, map_tensors


@dataclass(frozen=True)
class CacheConfig(Section):
    """Decoded samples, kept."""

    enabled: bool = False
    """Keep the samples of the training and the validation set as the dataset returns them, before augmentation."""
    where: Literal["disk", "device", "memory"] = "disk"
    """disk: files that all runs, ranks and workers share; device: the memory of each rank's GPU; memory: of the host.
    The last two read all samples at the start of each run."""
    folder: Path | None = None
    """Folder of the files; null: `.cache` in `run.dir`."""
    max_gb: float = within("(0, inf)", 8.0)
    """Maximum size in GB (10^9 bytes), of both sets; per rank for device and memory."""


class Cache(Component):
    """Wraps the datasets."""

    name = "cache"

    def __init__(self, cfg: CacheConfig, world: World) -> None:
        self.cfg, self.world = cfg, world
        self.sets: list[Any] = []

    def wrap_dataset(self, dataset: Any) -> Any:
        """Wrap a map-style dataset; a stream stays as it is."""
        if hasattr(dataset, "batches"):
            return dataset
        self.sets.append((OnDisk if self.cfg.where == "disk" else InMemory)(dataset))
        return self.sets[-1]

    def on_train_start(self, run: Run) -> None:
        """Open or read the cache."""
        total = sum(len(cached) * cached.source.learn() for cached in self.sets) / 1e9
        if total > self.cfg.max_gb:
            self.cfg.refuse("max_gb", f"the samples take {total:.3g} GB, so raise it, or use another cache.where")
        device = torch.device("cpu") if self.cfg.where == "memory" else self.world.device
        if self.cfg.where == "disk":
            key = self.world.broadcast(_fingerprint(run.cfg.data) if self.world.rank == 0 else "")
            for number, cached in enumerate(self.sets):
                cached.open((self.cfg.folder or run.cfg.run.dir / ".cache") / f"{key}-{number}.bin")
            return
        if device.type != "cpu" and run.cfg.loader.workers not in ("auto", 0):
            raise UserError("cache.where is device: set loader.workers to 0, as workers cannot read GPU memory")
        if self.world.rank == 0:
            print(f"cache: reading {sum(map(len, self.sets)):,} samples, {total:.3g} GB, into the memory of {device}")
        for cached in self.sets:
            chunks = [chunk.tolist() for chunk in torch.arange(len(cached)).split(256)]
            cached.fill(Loader(cached.source, chunks, run.cfg.loader, World(0, 1, torch.device("cpu"))), device)


class Source:
    """The samples of a dataset as their tensors."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.in_memory = dataset, getattr(dataset, "in_memory", False)
        self.batched = False
        """Whether the dataset returns whole batches."""
        self.example: Any = None
        """The first sample, for its structure."""
        self.layout: list[tuple[torch.dtype, torch.Size]] = []

    def learn(self) -> int:
        """Find out what a sample is made of; return its size in bytes."""
        self.example, again = self._samples([0])[0], self._samples([0])[0]
        parts = _parts(self.example)
        if any(not torch.equal(a, b) for a, b in zip(parts, _parts(again), strict=True)):
            raise UserError("cache.enabled needs samples that stay the same: augment them in `Prepare` of data.py")
        self.layout = [(part.dtype, part.shape) for part in parts]
        return sum(part.nbytes for part in parts)

    def rows(self, indices: list[int]) -> list[list[Tensor]]:
        """Return the tensors of each sample."""
        found = [_parts(sample) for sample in self._samples(indices)]
        for index, parts in zip(indices, found, strict=True):
            if [(part.dtype, part.shape) for part in parts] != self.layout:
                raise UserError(f"cache.enabled needs samples of one shape, and sample {index} differs from sample 0")
        return found

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return tuple(map(torch.stack, zip(*self.rows(indices), strict=True)))

    def _samples(self, indices: list[int]) -> list[Any]:
        whole = getattr(self.dataset, "__getitems__", None)
        found = whole(indices) if whole else [self.dataset[index] for index in indices]
        self.batched = not isinstance(found, list)
        return [map_tensors(itemgetter(row), found) for row in range(len(indices))] if self.batched else found


class Cached:
    """A dataset whose samples are kept; a batch is as without."""

    def __init__(self, dataset: Any) -> None:
        self.source = Source(dataset)
        self.in_memory = self.source.in_memory
        if hasattr(dataset, "collate_fn"):
            self.collate_fn = dataset.collate_fn

    def __len__(self) -> int:
        return len(self.source.dataset)

    def parts(self, indices: list[int]) -> list[Tensor]:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Any:
        parts, example = self.parts(indices), self.source.example
        if self.source.batched or not hasattr(self, "collate_fn"):
            return _like(example, iter(parts), lambda part, _: part)
        return [_like(example, iter([part[row] for part in parts]), _as_before) for row in range(len(indices))]


class InMemory(Cached):
    """Samples in tensors on a device."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.in_memory = self.on_device = True

    def fill(self, batches: Any, device: torch.device) -> None:
        """Copy all samples to the device."""
        layout, begin = self.source.layout, 0
        self.whole = [torch.empty((len(self), *shape), dtype=dtype, device=device) for dtype, shape in layout]
        for parts in batches:
            for whole, part in zip(self.whole, parts, strict=True):
                whole[begin : begin + len(part)] = part
            begin += len(parts[0])

    def parts(self, indices: list[int]) -> list[Tensor]:
        chosen, device = torch.tensor(indices), self.whole[0].device
        if device.type == "cuda":
            chosen = chosen.pin_memory()
        chosen = chosen.to(device, non_blocking=True)
        return [whole.index_select(0, chosen) for whole in self.whole]


class OnDisk(Cached):
    """Samples in records of one file: a checksum, 0 if there is none yet, and the bytes.

    Processes that write the same record write the same bytes. A damaged record is decoded again.
    """

    def open(self, file: Path) -> None:
        """Create the file, or find that of an earlier run."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self.file = file
        self.size = 8 + sum(dtype.itemsize * shape.numel() for dtype, shape in self.source.layout)

    def parts(self, indices: list[int]) -> list[Tensor]:
        with self.file.open("r+b", buffering=0) as file:
            records = [os.pread(file.fileno(), self.size, index * self.size) for index in indices]
            missing = [number for number, record in enumerate(records) if record[:8] != _checksum(record[8:])]
            decoded = self.source.rows([indices[number] for number in missing]) if missing else []
            for number, row in zip(missing, decoded, strict=True):
                content = b"".join(part.reshape(-1).view(torch.uint8).numpy().tobytes() for part in row)
                records[number] = _checksum(content) + content
                os.pwrite(file.fileno(), records[number], indices[number] * self.size)
        rows = torch.frombuffer(bytearray(b"".join(records)), dtype=torch.uint8).view(len(indices), self.size)
        found, place = [], 8
        for dtype, shape in self.source.layout:
            end = place + dtype.itemsize * shape.numel()
            found.append(rows[:, place:end].clone().view(dtype).view(len(indices), *shape))
            place = end
        return found


def _checksum(content: bytes) -> bytes:
    return (crc32(content) + 1).to_bytes(8, "little")


def _parts(sample: Any) -> list[Tensor]:
    """Return the tensors of a sample, and its numbers as `default_collate` makes tensors of them."""
    if isinstance(sample, Mapping | tuple | list):
        values = sample.values() if isinstance(sample, Mapping) else sample
        return [part for value in values for part in _parts(value)]
    found = sample if isinstance(sample, Tensor) else default_collate([sample])[0]
    if not isinstance(found, Tensor):
        raise UserError(f"cache.enabled needs samples of tensors and numbers, and one has a {type(sample).__name__}")
    return [found]


def _like(example: Any, parts: Iterator[Tensor], make: Callable[[Tensor, Any], Any]) -> Any:
    """Return parts in the structure of a sample."""
    if isinstance(example, Mapping):
        return {name: _like(value, parts, make) for name, value in example.items()}
    if isinstance(example, tuple | list):
        found = [_like(value, parts, make) for value in example]
        return found if isinstance(example, list) else tuple(found)
    return make(next(parts), example)


def _as_before(part: Tensor, old: Any) -> Any:
    """Return a part of a sample in its type: a tensor, an array or a number."""
    return part if isinstance(old, Tensor) else part.numpy() if hasattr(old, "shape") else part.item()


def _fingerprint(cfg: Any) -> str:
    """Return what differs if data.py, a value of its config, or a file in a folder that this names has changed."""
    digest = sha256(Path(data.__file__).read_bytes() + repr(cfg).encode())
    for item in fields(cfg):
        value = getattr(cfg, item.name)
        if isinstance(value, str | Path) and str(value) and (path := Path(value).resolve()).exists():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                found = file.stat()
                digest.update(f"{file} {found.st_size} {found.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]
