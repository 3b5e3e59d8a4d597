"""Sample order, and a DataLoader that continues with the next sample after a restart."""

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
    """Whole global batches, in an order that depends on (seed, epoch); the ranks take micro-batches in turn."""

    def __init__(
        self, samples: int, batch_size: int, accumulate: int, ranks: int, rank: int, seed: int
    ) -> None:
        self.samples, self.batch_size, self.ranks, self.rank, self.seed = (
            samples,
            batch_size,
            ranks,
            rank,
            seed,
        )
        self.batches = samples // (batch_size * accumulate * ranks) * accumulate
        self.epoch = self.first = 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle again: Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches * self.batch_size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(self.samples, generator=generator)[: len(self) * self.ranks]
        own = order.view(self.batches, self.ranks, self.batch_size)[:, self.rank]
        return iter(own[self.first :].flatten().tolist())


class TrainLoader(DataLoader[Any]):
    """A DataLoader that may begin within an epoch, and measures how long the loop waits for its batches."""

    first = 0  # batches to skip in the first epoch
    waited = 0.0  # seconds

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        begin = time.perf_counter()
        self.sampler.first, self.first = self.first, 0  # type: ignore[attr-defined]
        for (
            batch
        ) in super().__iter__():  # begins with the first `next`, after Lightning's `set_epoch`
            self.waited += time.perf_counter() - begin
            yield batch
            begin = time.perf_counter()

    def state_dict(self) -> dict[str, int]:
        """Return nothing: the data module saves the position.

        Lightning warns if a loader has no such method.
        """
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing."""


class Batches(list[list[int]]):
    """The indices of each batch; Lightning's predict copies the attributes of a batch sampler, which a list lacks."""


def even_batches(samples: int, batch_size: int, ranks: int, rank: int) -> Batches:
    """Split each sample once over the ranks, in equally many batches per rank, as collectives need."""
    own, count = range(rank, samples, ranks), math.ceil(samples / (ranks * batch_size))
    ends = [len(own) * part // count for part in range(count + 1)]
    return Batches(list(own[begin:end]) for begin, end in pairwise(ends))


def load_batch(dataset: Any, indices: list[int]) -> Any:
    """Load a batch in this process."""
    whole = whole_batches(dataset)
    samples = whole(indices) if whole else [dataset[index] for index in indices]
    return (collate_fn(dataset) or collate)(samples)


def collate(batch: Any) -> Any:
    """Stack a list of samples; what `__getitems__` returned as a tuple or a dict is a batch already."""
    found = default_collate(batch) if isinstance(batch, list) else batch
    return (
        found
        if isinstance(found, dict)
        else (found,)
        if isinstance(found, Tensor)
        else tuple(found)
    )
