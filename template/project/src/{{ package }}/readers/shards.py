"""Data sets larger than memory or a disk: tar, Parquet and JSON-lines shards, in folders or buckets, read by position.

An index of where each sample begins is built once. With it, shards are a dataset as any other, so a run has each sample
once per epoch, in an order that follows from (seed, epoch, position): the same for any number of ranks and workers, and
after a resume within an epoch. Loader workers read and decode ahead.

    def decode(sample):  # {"__key__": "0017", "png": bytes, "cls": bytes}
        return image_of(sample["png"]), int(sample["cls"])

    train = Shards("data/train-*.tar", decode)
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .shard_files import Storage, location
from .shard_index import FORMATS, build_index

CHUNK = 256
"""Samples that stay together until the window shuffles them; a row group, in Parquet."""


class Shards:
    """The samples of all shards, by number in the order of the files' names.

    `decode` gets a sample as a dict and returns tensors, arrays or numbers; without it, that dict is the sample. Of a
    tar file in the layout of WebDataset, a sample is the files with one name up to the first dot, by their extensions,
    as bytes, and that name as `__key__`; of JSON lines, an object; of Parquet, a row of `columns`, or of all of them.

    An epoch's order: chunks of `CHUNK` samples, or row groups, are shuffled as a whole, then the samples within windows
    of `window`. Samples far apart in the files thus meet, those of a chunk stay within a window, and what is read at a
    time fits into memory: about `window` samples. With `window` 1 nothing but the chunks is shuffled.

    Raises:
        UserError: there are no such files, or they are of another format, damaged or empty.
    """

    def __init__(
        self,
        files: str | Path | list[str] | list[Path],
        decode: Callable[[dict[str, Any]], Any] | None = None,
        window: int = 8192,
        columns: list[str] | None = None,
        cache_dir: str | Path = ".cache",
    ) -> None:
        if window < 1:
            raise UserError(f"window of Shards is {window}: it must be at least 1")
        self.decode, self.window, self.columns = decode, window, columns
        self.storage = Storage.find(files)
        self.format = FORMATS[self.storage.suffix]
        self.counts, self.index = build_index(self.storage, Path(cache_dir))
        self.first = np.concatenate([[0], np.cumsum([sum(groups) for groups in self.counts])])
        """Number of the first sample of each shard, and of all samples."""
        self.readers: dict[int, Any] = {}
        self.files = self.storage.local
        """Shards on this machine, whose sizes are in the record of a run."""

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "readers": {}}  # open files stay in the process

    def epoch_order(self, seed: int, epoch: int) -> "EpochOrder":
        """Return the order of an epoch."""
        lengths = [piece for groups in self.counts for group in groups for piece in self._pieces(group)]
        return EpochOrder(np.asarray(lengths, np.int64), self.window, seed, epoch)

    def _pieces(self, group: int) -> list[int]:
        if self.format.by_group:
            return [group]
        whole, rest = divmod(group, CHUNK)
        return [CHUNK] * whole + [rest] * (rest > 0)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        found: dict[int, Any] = {}
        numbers = np.asarray(indices)
        shards = np.searchsorted(self.first, numbers, side="right") - 1
        for shard in np.unique(shards).tolist():
            chosen = np.unique(numbers[shards == shard])
            rows = (chosen - self.first[shard]).tolist()
            for number, row, sample in zip(chosen.tolist(), rows, self._read(shard, rows), strict=True):
                found[number] = self._decoded(sample, shard, row)
        return [found[index] for index in indices]

    def _read(self, shard: int, rows: list[int]) -> Iterator[dict[str, Any]]:
        return self.format.read(self, shard, rows)

    def _decoded(self, sample: dict[str, Any], shard: int, row: int) -> Any:
        if self.decode is None:
            return sample
        try:
            return self.decode(sample)
        except (UserError, MemoryError):
            raise
        except Exception as error:
            name = sample.get("__key__", f"sample {row}")
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            where = f"{location(self.storage.paths[shard])}, {name}"
            raise UserError(f"{where}: `decode` of the shards failed ({reason}): correct it, or the sample") from error


class EpochOrder:
    """All numbers below a sum of `lengths`, shuffled: sliced as a tensor is, with only a window in memory."""

    def __init__(self, lengths: np.ndarray[Any, Any], window: int, seed: int, epoch: int) -> None:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(lengths), generator=generator).numpy()
        self.seed = int(torch.randint(2**62, (), generator=generator))
        self.window = window
        starts = np.cumsum(lengths) - lengths
        self.starts, lengths = starts[order], lengths[order]
        self.ends = np.cumsum(lengths)
        self.begins = self.ends - lengths
        self.count = int(lengths.sum())
        self.present: tuple[int, Tensor] = (-1, torch.empty(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: slice) -> Tensor:
        begin, end, _ = place.indices(self.count)
        parts = []
        for number in range(begin // self.window, math.ceil(end / self.window)):
            first = number * self.window
            parts.append(self._window(number)[max(begin - first, 0) : end - first])
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def _window(self, number: int) -> Tensor:
        if self.present[0] != number:
            begin, end = number * self.window, min((number + 1) * self.window, self.count)
            places = np.arange(begin, end)
            chunk = np.searchsorted(self.ends, places, side="right")
            samples = torch.from_numpy(self.starts[chunk] + places - self.begins[chunk])
            generator = torch.Generator().manual_seed((self.seed + number) % 2**63)
            self.present = number, samples[torch.randperm(len(samples), generator=generator)]
        return self.present[1]
