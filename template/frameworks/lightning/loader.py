"""Sample order, and a DataLoader that may begin within an epoch."""

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from .contracts import collate_fn, whole_batches


class TrainSampler(Sampler[int]):
    """Whole global batches, in an order that depends on (seed, epoch).

    The ranks take micro-batches in turn.
    """

    first_batch = 0

    def __init__(
        self,
        samples: int,
        shape: tuple[int, int, int],
        rank: int,
        seed: int,
    ) -> None:
        """Take the shape of an epoch: micro-batches per rank, ranks, and samples of a batch."""
        self.samples = samples
        self.shape = shape
        self.rank = rank
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle again: Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches, _, batch_size = self.shape
        return batches * batch_size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.samples, generator=generator)[: math.prod(self.shape)]
        own = order.view(self.shape)[self.first_batch :, self.rank]
        return iter(own.flatten().tolist())


class TrainLoader(DataLoader[Any]):
    """A DataLoader that may begin within an epoch, and measures how long the loop waits for it."""

    first_batch = 0
    """Of the first epoch."""
    waited = 0.0
    """Seconds."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        sampler: Any = self.sampler
        sampler.first_batch = self.first_batch
        self.first_batch = 0
        begin = time.perf_counter()
        # begins with the first `next`, after Lightning's `set_epoch`
        for batch in super().__iter__():
            self.waited += time.perf_counter() - begin
            yield batch
            begin = time.perf_counter()


class Batches(list[list[int]]):
    """The indices of each batch: Lightning's predict sets attributes, which a list lacks."""


def even_batches(
    samples: int,
    batch_size: int,
    ranks: int,
    rank: int,
) -> Batches:
    """Give each rank other samples, in equally many batches, as collectives need."""
    own = range(rank, samples, ranks)
    count = math.ceil(samples / (ranks * batch_size))
    ends = [len(own) * part // count for part in range(count + 1)]
    return Batches(list(own[begin:end]) for begin, end in pairwise(ends))


def load_batch(dataset: Any, indices: list[int]) -> Any:
    """Load a batch in this process."""
    collate_samples = collate_fn(dataset) or collate
    load_whole = whole_batches(dataset)
    if load_whole:
        return collate_samples(load_whole(indices))
    return collate_samples([dataset[index] for index in indices])


def collate(samples: Any) -> Any:
    """Return a tuple or a dict; what `__getitems__` returned as one of these is a batch already."""
    batch = samples
    if isinstance(samples, list):
        batch = default_collate(samples)
    if isinstance(batch, Tensor):
        return (batch,)
    if isinstance(batch, dict):
        return batch
    return tuple(batch)
