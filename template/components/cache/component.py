"""Decoded samples on disk, in host memory or in GPU memory: each sample is decoded once."""

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
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
from ..contracts import collate_fn, is_in_memory, own_loader, spec_fields, whole_batches
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
    """disk: files, for all runs and ranks; device: GPU memory; memory: host memory, filled at the
    start like device."""
    folder: Path | None = None
    """Folder of the files; null: `.cache` in `run.dir`."""
    max_gb: float = within("(0, inf)", 8.0)
    """Maximum size in GB of both sets; per rank for device and memory."""


class Cache(Component):
    """Wraps the datasets."""

    name = "cache"

    def __init__(
        self,
        cfg: CacheConfig,
        world: World,
    ) -> None:
        self.cfg = cfg
        self.world = world
        self.sets: list[Any] = []

    def wrap_dataset(self, dataset: Any) -> Any:
        """Wrap a map-style dataset; a stream stays as it is."""
        if own_loader(dataset) is not None:
            return dataset
        if self.cfg.where == "disk":
            self.sets.append(OnDisk(dataset))
        else:
            on_device = self.cfg.where == "device"
            self.sets.append(InMemory(dataset, on_device))
        return self.sets[-1]

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        on_gpu = self.cfg.where == "device" and self.world.device.type != "cpu"
        if on_gpu and cfg.loader.num_workers not in ("auto", 0):
            raise UserError(
                "cache.where is device: set loader.num_workers to 0, "
                "as workers cannot read GPU memory"
            )

    def on_train_start(self, run: Run) -> None:
        sizes = [len(cached) * cached.source.learn() for cached in self.sets]
        total = sum(sizes) / 1e9
        if total > self.cfg.max_gb:
            why = f"the samples take {total:.3g} GB, so raise it, or use another cache.where"
            self.cfg.refuse("max_gb", why)
        if self.cfg.where == "disk":
            key = self.world.run_on_rank_zero(lambda: self._fingerprint(run.cfg.data, run.spec))
            folder = self.cfg.folder or run.cfg.run.dir / ".cache"
            for number, cached in enumerate(self.sets):
                cached.open(folder / f"{key}-{number}.bin")
            return
        device = torch.device("cpu") if self.cfg.where == "memory" else self.world.device
        if self.world.rank == 0:
            count = sum(map(len, self.sets))
            print(f"reading {count:,} samples, {total:.3g} GB, into the memory of {device}")
        one_rank = World(0, 1, torch.device("cpu"))
        for cached in self.sets:
            chunks = []
            for first in range(0, len(cached), 32):
                after = min(first + 32, len(cached))
                chunks.append(list(range(first, after)))
            with closing(Loader(cached.source, chunks, run.cfg.loader, one_rank)) as loader:
                cached.fill(loader, device)

    def _fingerprint(self, cfg: Any, spec: Any) -> str:
        """Return what differs if data.py, its config, its Spec or a file that this names changed.

        A resumed run keeps its Spec, such as its classes.
        """
        digest = sha256(Path(data.__file__).read_bytes())
        lines = [repr(cfg), repr(spec_fields(spec))]
        for value in vars(cfg).values():
            if isinstance(value, str | Path) and str(value):
                lines += _below(Path(value).expanduser())
        for line in lines:
            digest.update(line.encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]


class Source:
    """The tensors of a dataset's samples; a number is one as well."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.in_memory = is_in_memory(dataset)
        self.batched = False
        """Whether the dataset returns whole batches."""
        self.example: Any = None
        self.numbers: list[bool] = []
        self.layout: list[tuple[torch.dtype, torch.Size]] = []

    def learn(self) -> int:
        """Find out what a sample is made of; return its size in bytes."""
        sample, again = self._samples([0, 0])
        parts = _parts(sample)
        for part in parts:
            if not isinstance(part, Tensor):
                kind = type(part).__name__
                raise UserError(
                    f"cache.enabled needs samples of tensors and numbers, and one has a {kind}"
                )
        self.example = default_collate([sample])
        self.numbers = [isinstance(leaf, int | float) for leaf in _leaves(sample)]
        self.layout = [(part.dtype, part.shape) for part in parts]
        if not all(map(torch.equal, parts, self._checked(0, again))):
            raise UserError(
                "cache.enabled needs samples that stay the same: "
                "augment them in `Prepare` of data.py"
            )
        return sum(part.nbytes for part in parts)

    def __getitems__(
        self,
        indices: list[int],
    ) -> tuple[Tensor, ...]:
        rows = map(self._checked, indices, self._samples(indices))
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    def _samples(
        self,
        indices: list[int],
    ) -> list[Any]:
        whole = whole_batches(self.dataset)
        if whole is None:
            return [self.dataset[index] for index in indices]
        samples = whole(indices)
        if isinstance(samples, list):
            return samples
        self.batched = True
        return [map_tensors(itemgetter(row), samples) for row in range(len(indices))]

    def _checked(
        self,
        index: int,
        sample: Any,
    ) -> list[Any]:
        parts = _parts(sample)
        if [(part.dtype, part.shape) for part in parts] != self.layout:
            raise UserError(
                "cache.enabled needs samples of one shape, "
                f"and sample {index} differs from sample 0"
            )
        return parts


class Cached:
    """A dataset whose samples are kept; a batch, or what `collate_fn` gets, is as without."""

    def __init__(self, dataset: Any) -> None:
        self.source = Source(dataset)
        self.in_memory = self.source.in_memory
        self.collate_fn = collate_fn(dataset)

    def __len__(self) -> int:
        return len(self.source.dataset)

    def parts(
        self,
        indices: list[int],
    ) -> list[Tensor]:
        """Return the parts of samples, stacked."""
        raise NotImplementedError

    def __getitems__(
        self,
        indices: list[int],
    ) -> Any:
        source = self.source
        columns: list[Any] = self.parts(indices)
        if source.batched or self.collate_fn is None:
            return _filled(source.example, columns)
        for place, is_number in enumerate(source.numbers):
            if is_number:
                columns[place] = columns[place].tolist()
        return [_filled(source.example, row) for row in zip(*columns, strict=True)]


class InMemory(Cached):
    """Samples in tensors on a device."""

    def __init__(
        self,
        dataset: Any,
        on_device: bool = False,
    ) -> None:
        super().__init__(dataset)
        self.in_memory = True
        self.on_device = on_device  # else the loader pins the batches
        self.whole: list[Tensor] = []

    def fill(
        self,
        batches: Iterable[Sequence[Tensor]],
        device: torch.device,
    ) -> None:
        """Read all samples."""
        for dtype, shape in self.source.layout:
            whole = torch.empty(
                (len(self), *shape),
                dtype=dtype,
                device=device,
            )
            self.whole.append(whole)
        begin = 0
        for parts in batches:
            end = begin + len(parts[0])
            for whole, part in zip(self.whole, parts, strict=True):
                whole[begin:end] = part
            begin = end

    def parts(
        self,
        indices: list[int],
    ) -> list[Tensor]:
        chosen = torch.tensor(indices)
        device = self.whole[0].device
        if device.type == "cuda":
            chosen = chosen.pin_memory()
        chosen = chosen.to(device, non_blocking=True)
        return [whole.index_select(0, chosen) for whole in self.whole]


class OnDisk(Cached):
    """Samples in records of one file: a checksum, and the bytes.

    Processes at the same time write the same ones.
    """

    def open(self, file: Path) -> None:
        """Create the file, unless it exists."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self.file = file
        self.sizes = [dtype.itemsize * shape.numel() for dtype, shape in self.source.layout]
        self.size = 8 + sum(self.sizes)

    def parts(
        self,
        indices: list[int],
    ) -> list[Tensor]:
        with self.file.open("r+b", buffering=0) as file:
            records = [os.pread(file.fileno(), self.size, row * self.size) for row in indices]
            missing = []
            for place, record in enumerate(records):
                if record[:8] != _checksum(record[8:]):
                    missing.append(place)
            decoded = self._decode([indices[place] for place in missing])
            for place, sample in zip(missing, decoded, strict=True):
                records[place] = _checksum(sample) + sample
                os.pwrite(
                    file.fileno(),
                    records[place],
                    indices[place] * self.size,
                )
        whole = torch.frombuffer(bytearray(b"".join(records)), dtype=torch.uint8)
        rows = whole.view(len(indices), self.size)
        parts = []
        columns = rows[:, 8:].split(self.sizes, 1)
        for column, (dtype, shape) in zip(columns, self.source.layout, strict=True):
            part = column.clone().reshape(-1).view(dtype)
            parts.append(part.view(len(indices), *shape))
        return parts

    def _decode(
        self,
        indices: list[int],
    ) -> list[bytes]:
        """Return the bytes of samples."""
        if not indices:
            return []
        columns = []
        for part, size in zip(self.source.__getitems__(indices), self.sizes, strict=True):
            content = part.reshape(-1).view(torch.uint8)
            columns.append(content.view(len(indices), size))
        rows = torch.cat(columns, 1)
        return [row.numpy().tobytes() for row in rows]


def _checksum(content: bytes) -> bytes:
    return (crc32(content) + 1).to_bytes(8, "little")


def _leaves(sample: Any) -> list[Any]:
    if isinstance(sample, dict):
        sample = list(sample.values())
    if not isinstance(sample, tuple | list):
        return [sample]
    leaves: list[Any] = []
    for part in sample:
        leaves += _leaves(part)
    return leaves


def _parts(sample: Any) -> list[Any]:
    return [default_collate([leaf])[0] for leaf in _leaves(sample)]


def _filled(
    example: Any,
    parts: Iterable[Any],
) -> Any:
    remaining = iter(parts)
    return map_tensors(lambda _: next(remaining), example)


def _below(path: Path) -> list[str]:
    """Return where each folder below a path leads, and the size and the times of each file.

    Links are followed, and the files of a folder with several names are looked at once.
    """
    lines = []
    files = [path]
    known = set()
    for folder, subfolders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        lines.append(f"{folder} {real}")
        if real in known:
            subfolders.clear()
            continue
        known.add(real)
        files += [Path(folder, name) for name in names]
    for file in files:
        if file.is_file():
            found = file.stat()
            lines.append(f"{file} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}")
    return sorted(lines)
