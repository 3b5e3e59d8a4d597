"""Decoded samples on disk, in host memory or in GPU memory: each sample is decoded once."""

import os
from collections.abc import Collection, Sequence
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
from ..component import Component
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import collate_fn, is_in_memory, own_loader, whole_batches
from ..distributed import World
from ..errors import UserError
from ..loader import Loader, map_tensors
from ..run import Run


@dataclass(frozen=True)
class CacheConfig(Section):
    """A cache of decoded samples."""

    enabled: bool = False
    """Keep the samples of both sets as the dataset returns them, before augmentation."""
    where: Literal["disk", "device", "memory"] = "disk"
    """disk: files, for all runs and ranks; device: GPU memory; memory: host memory, filled at the start like device."""
    folder: Path | None = None
    """Folder of the files; null: `.cache` in `run.dir`."""
    max_gb: float = within("(0, inf)", 8.0)
    """Maximum size in GB of both sets; per rank for device and memory."""


class Cache(Component):
    """Wraps the datasets."""

    name = "cache"

    def __init__(self, cfg: CacheConfig, world: World) -> None:
        self.cfg, self.world = cfg, world
        self.sets: list[Any] = []

    def wrap_dataset(self, dataset: Any) -> Any:
        """Wrap a map-style dataset; a stream stays as it is."""
        if own_loader(dataset) is not None:
            return dataset
        on_device = self.cfg.where == "device"
        cached = OnDisk(dataset) if self.cfg.where == "disk" else InMemory(dataset, on_device)
        self.sets.append(cached)
        return cached

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        on_gpu = self.cfg.where == "device" and self.world.device.type != "cpu"
        if on_gpu and cfg.loader.workers not in ("auto", 0):
            raise UserError(
                "cache.where is device: set loader.workers to 0, as workers cannot read GPU memory"
            )

    def on_train_start(self, run: Run) -> None:
        total = sum(len(cached) * cached.source.learn() for cached in self.sets) / 1e9
        if total > self.cfg.max_gb:
            self.cfg.refuse(
                "max_gb",
                f"the samples take {total:.3g} GB, so raise it, or use another cache.where",
            )
        if self.cfg.where == "disk":
            key = self.world.broadcast(_fingerprint(run.cfg.data) if self.world.rank == 0 else "")
            for number, cached in enumerate(self.sets):
                cached.open((self.cfg.folder or run.cfg.run.dir / ".cache") / f"{key}-{number}.bin")
            return
        device = torch.device("cpu") if self.cfg.where == "memory" else self.world.device
        if self.world.rank == 0:
            print(
                f"reading {sum(map(len, self.sets)):,} samples, {total:.3g} GB, into the memory of {device}"
            )
        for cached in self.sets:
            chunks = [
                list(range(len(cached))[begin : begin + 256])
                for begin in range(0, len(cached), 256)
            ]
            cached.fill(
                Loader(cached.source, chunks, run.cfg.loader, World(0, 1, torch.device("cpu"))),
                device,
            )


class Source:
    """The tensors of a dataset's samples; a number is one as well."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.in_memory = dataset, is_in_memory(dataset)
        self.batched, self.example = False, None
        self.layout: list[tuple[torch.dtype, torch.Size]] = []

    def learn(self) -> int:
        """Find out what a sample is made of; return its size in bytes."""
        sample, again = self._samples([0])[0], self._samples([0])[0]
        parts = [default_collate([leaf])[0] for leaf in _leaves(sample)]
        if kinds := [type(part).__name__ for part in parts if not isinstance(part, Tensor)]:
            raise UserError(
                f"cache.enabled needs samples of tensors and numbers, and one has a {kinds[0]}"
            )
        self.layout, self.example = (
            [(part.dtype, part.shape) for part in parts],
            default_collate([sample]),
        )
        self.numbers = [isinstance(leaf, int | float) for leaf in _leaves(sample)]
        if any(not torch.equal(a, b) for a, b in zip(parts, self._checked(0, again), strict=True)):
            raise UserError(
                "cache.enabled needs samples that stay the same: augment them in `Prepare` of data.py"
            )
        return sum(part.nbytes for part in parts)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return tuple(
            map(torch.stack, zip(*map(self._checked, indices, self._samples(indices)), strict=True))
        )

    def _samples(self, indices: list[int]) -> list[Any]:
        whole = whole_batches(self.dataset)
        found = whole(indices) if whole else [self.dataset[index] for index in indices]
        self.batched = not isinstance(found, list)
        return (
            [map_tensors(itemgetter(row), found) for row in range(len(indices))]
            if self.batched
            else found
        )

    def _checked(self, index: int, sample: Any) -> list[Tensor]:
        parts = [default_collate([leaf])[0] for leaf in _leaves(sample)]
        if [(part.dtype, part.shape) for part in parts] != self.layout:
            raise UserError(
                f"cache.enabled needs samples of one shape, and sample {index} differs from sample 0"
            )
        return parts


class Cached:
    """A dataset whose samples are kept; a batch, or what its `collate_fn` gets, is as without."""

    def __init__(self, dataset: Any) -> None:
        self.source = Source(dataset)
        self.in_memory = self.source.in_memory
        self.collate_fn = collate_fn(dataset)

    def __len__(self) -> int:
        return len(self.source.dataset)

    def parts(self, indices: list[int]) -> list[Tensor]:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Any:
        parts, example = self.parts(indices), self.source.example
        if self.source.batched or self.collate_fn is None:
            return _filled(example, parts)
        columns = [
            part.tolist() if number else part
            for part, number in zip(parts, self.source.numbers, strict=True)
        ]
        return [_filled(example, row) for row in zip(*columns, strict=True)]


class InMemory(Cached):
    """Samples in tensors on a device."""

    def __init__(self, dataset: Any, on_device: bool = False) -> None:
        super().__init__(dataset)
        self.in_memory = True
        self.on_device = on_device  # else the loader pins the batches

    def fill(self, batches: Any, device: torch.device) -> None:
        begin, layout = 0, self.source.layout
        self.whole = [
            torch.empty((len(self), *shape), dtype=dtype, device=device) for dtype, shape in layout
        ]
        for parts in batches:
            for whole, part in zip(self.whole, parts, strict=True):
                whole[begin : begin + len(part)] = part
            begin += len(parts[0])

    def parts(self, indices: list[int]) -> list[Tensor]:
        chosen, device = torch.tensor(indices), self.whole[0].device
        chosen = (chosen.pin_memory() if device.type == "cuda" else chosen).to(
            device, non_blocking=True
        )
        return [whole.index_select(0, chosen) for whole in self.whole]


class OnDisk(Cached):
    """Samples in records of one file: a checksum, and the bytes; processes at the same time write the same ones."""

    def open(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self.file, self.sizes = (
            file,
            [dtype.itemsize * shape.numel() for dtype, shape in self.source.layout],
        )
        self.size = 8 + sum(self.sizes)

    def parts(self, indices: list[int]) -> list[Tensor]:
        with self.file.open("r+b", buffering=0) as file:
            records = [os.pread(file.fileno(), self.size, index * self.size) for index in indices]
            missing = [
                number
                for number, record in enumerate(records)
                if record[:8] != _checksum(record[8:])
            ]
            decoded = (
                self.source.__getitems__([indices[number] for number in missing]) if missing else ()
            )
            for number, row in zip(missing, zip(*decoded, strict=True), strict=True):
                content = b"".join(
                    part.reshape(-1).view(torch.uint8).numpy().tobytes() for part in row
                )
                records[number] = _checksum(content) + content
                os.pwrite(file.fileno(), records[number], indices[number] * self.size)
        rows = torch.frombuffer(bytearray(b"".join(records)), dtype=torch.uint8).view(
            len(indices), self.size
        )
        layout = zip(rows[:, 8:].split(self.sizes, 1), self.source.layout, strict=True)
        return [
            part.clone().reshape(-1).view(dtype).view(len(indices), *shape)
            for part, (dtype, shape) in layout
        ]


def _checksum(content: bytes) -> bytes:
    return (crc32(content) + 1).to_bytes(8, "little")


def _leaves(sample: Any) -> list[Any]:
    parts = list(sample.values()) if isinstance(sample, dict) else sample
    return (
        [leaf for part in parts for leaf in _leaves(part)]
        if isinstance(parts, tuple | list)
        else [parts]
    )


def _filled(example: Any, parts: Sequence[Any]) -> Any:
    remaining = iter(parts)
    return map_tensors(lambda _: next(remaining), example)


def _fingerprint(cfg: Any) -> str:
    """Return what differs if data.py, a value of its config, or a file in a folder that this names has changed."""
    digest = sha256(Path(data.__file__).read_bytes() + repr(cfg).encode())
    for item in fields(cfg):
        value = getattr(cfg, item.name)
        if (
            isinstance(value, str | Path)
            and str(value)
            and (path := Path(value).resolve()).exists()
        ):
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                found = file.stat()
                digest.update(
                    f"{file} {found.st_size} {found.st_mtime_ns}".encode(errors="surrogateescape")
                )
    return digest.hexdigest()[:16]
