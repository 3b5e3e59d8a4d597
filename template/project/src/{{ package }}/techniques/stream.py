"""Datasets that are iterated over, such as torch's `IterableDataset`: the position of a sample is its number.

The stream must yield the same samples in the same order on every rank, and in every pass, or as its `set_epoch(epoch)`
says. Each rank reads all of it and skips the samples of other ranks, and after a resume those that were trained on. An
epoch is its first `len` samples. `readers/shards.py` reads in parallel, and in another order.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..config import LoaderConfig
from ..contracts import Batch, tensors
from ..distributed import World
from ..errors import UserError
from .collate import CollateFn, check, collated


class Stream:
    """The samples of a stream by their number over all epochs; one before the present begins the pass again.

    Raises:
        UserError: it does not say how many samples it has, or has fewer.
    """

    sequential = True
    """Whether samples far from each other cannot be read without those between them."""

    def __init__(self, place: str, split: Any, collate_fn: CollateFn | None) -> None:
        try:
            self.count = len(split)
        except (TypeError, NotImplementedError) as error:
            how = "add it: how many of its samples, of all ranks together, an epoch has"
            raise UserError(f"{place} is iterated over and has no __len__: {how}") from error
        self.place, self.split, self.collate_fn = place, split, collate_fn
        self.samples: Iterator[Any] = iter(())
        self.reading: tuple[int, int] | None = None
        """The process that reads, as a loader worker must not share open files, and the epoch."""
        self.next = 0
        """Number of the sample that comes next."""

    def __len__(self) -> int:
        return self.count

    def epoch_order(self, seed: int, epoch: int) -> torch.Tensor:
        """Return the order in which the stream yields its samples."""
        return torch.arange(epoch * self.count, (epoch + 1) * self.count)

    def __getitems__(self, indices: list[int]) -> Batch:
        new = self.reading is None
        batch = collated([self._sample(index) for index in indices], self.collate_fn, self.place)
        if new:
            check(batch, self.place)
        return batch

    def _sample(self, index: int) -> Any:
        epoch, reading = index // self.count, (os.getpid(), index // self.count)
        if self.reading != reading or index < self.next:
            if hasattr(self.split, "set_epoch"):
                self.split.set_epoch(epoch)
            self.samples, self.next, self.reading = iter(self.split), epoch * self.count, reading
        for sample in self.samples:
            self.next += 1
            if self.next > index:
                return sample
        ended = f"ended after {self.next - epoch * self.count} of the {self.count} samples that its __len__ says"
        raise UserError(f"{self.place} {ended}: correct it, as an epoch is planned by it")


def check_readers(streams: list[Any], cfg: LoaderConfig, workers: int, world: World) -> int:
    """Return the loader workers for streams: at most one. All ranks must call it.

    Raises:
        UserError: more were asked for, or a stream yields other samples on another rank.
    """
    for stream in streams:
        if cfg.workers != "auto" and cfg.workers > 1:
            each = f"each would read all of {stream.place} which is iterated over"
            cfg.refuse("workers", f"{each}; use 1 or 0, or shards (readers/shards.py)")
        if world.world_size > 1:
            firsts: list[Any] = [None] * world.world_size
            first = [part.tolist() for part in tensors(stream.__getitems__([0])) if isinstance(part, torch.Tensor)]
            dist.all_gather_object(firsts, first)
            if any(other != first for other in firsts):
                every = "it must yield all samples on every rank, as each rank takes its own of them"
                raise UserError(f"{stream.place} yields other samples on other ranks: {every}")
    return min(workers, 1)
