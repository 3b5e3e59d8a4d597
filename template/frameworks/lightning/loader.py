"""Sample order, and batches."""

import math
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from .workers import limit_time


class TrainSampler(Sampler[int]):
    """Whole global batches, in an order that depends on (seed, epoch).

    The ranks take micro-batches in turn.
    """

    def __init__(
        self,
        samples: int,
        shape: tuple[int, int, int],
        rank: int,
        seed: int,
        first: tuple[int, int] = (0, 0),
    ) -> None:
        """Take the shape of an epoch: micro-batches per rank, ranks, and samples of a batch.

        A resumed run begins with `first`: an epoch, and a batch of it.
        """
        self.samples = samples
        self.shape = shape
        self.rank = rank
        self.seed = seed
        self.first_epoch, self.first_batch = first
        self.epoch = self.first_epoch

    def set_epoch(self, epoch: int) -> None:
        """Shuffle again: Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches, _, batch_size = self.shape
        return batches * batch_size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.samples, generator=generator)[: math.prod(self.shape)]
        first = self.first_batch if self.epoch == self.first_epoch else 0
        own = order.view(self.shape)[first:, self.rank]
        return iter(own.flatten().tolist())


class LimitedLoader(DataLoader[Any]):
    """A DataLoader with a limit in seconds for each batch, also without worker processes."""

    def __init__(
        self,
        *given: Any,
        limit: float,
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self.limit = limit

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return limit_time(super().__iter__(), self.limit)


class TrainLoader(LimitedLoader):
    """A loader that measures how long the loop waits for it."""

    waited = 0.0
    """Seconds."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        begin = time.perf_counter()
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
