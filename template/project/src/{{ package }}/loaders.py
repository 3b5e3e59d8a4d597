"""From a data set to batches on the device: the run's plan, the order of samples, workers, pinned memory, prefetch."""

import math
import os
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .config import LoaderConfig, TrainConfig
from .distributed import World
from .errors import UserError

Batch = tuple[Tensor, ...]


class Samples(Sized, Protocol):
    """A data set that answers a whole batch in one call."""

    def __getitems__(self, indices: list[int]) -> Batch: ...


@dataclass(frozen=True)
class Plan:
    """How samples divide into micro-batches, steps and epochs. A step is one optimizer step."""

    samples: int
    micro_batch: int
    accumulate: int
    world_size: int
    total_steps: int

    @classmethod
    def make(cls, cfg: TrainConfig, samples: int, world_size: int) -> "Plan":
        """Work out the run's length.

        Raises:
            UserError: one global batch is larger than the data set.
        """
        global_batch = cfg.micro_batch * cfg.accumulate * world_size
        if global_batch > samples:
            raise UserError(
                f"the global batch of {global_batch} samples ({world_size} ranks x train.micro_batch={cfg.micro_batch} "
                f"x train.accumulate={cfg.accumulate}) is larger than the {samples} training samples: make it smaller"
            )
        steps = cfg.steps or math.ceil(cfg.epochs * (samples // global_batch))
        return cls(samples, cfg.micro_batch, cfg.accumulate, world_size, steps)

    @property
    def global_batch(self) -> int:
        """Samples in one optimizer step, over all ranks."""
        return self.micro_batch * self.accumulate * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in one pass; the few samples left over differ in each epoch."""
        return self.samples // self.global_batch


class TrainOrder:
    """The indices of each micro-batch of one rank, from `first_step` to the run's end.

    A function of (seed, epoch, position) alone: the same for any number of workers. As the chunks of a global batch are
    dealt to the ranks in turn, a step has the same samples for any number of ranks with an equal global batch.
    """

    def __init__(self, plan: Plan, rank: int, seed: int, first_step: int) -> None:
        self.plan, self.rank, self.seed, self.first_step = plan, rank, seed, first_step

    def __iter__(self) -> Iterator[list[int]]:
        plan, epoch, order = self.plan, -1, torch.empty(0)
        for step in range(self.first_step, plan.total_steps):
            if step // plan.steps_per_epoch != epoch:
                epoch = step // plan.steps_per_epoch
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(plan.samples, generator=generator)
            base = step % plan.steps_per_epoch * plan.global_batch
            for micro in range(plan.accumulate):
                begin = base + (micro * plan.world_size + self.rank) * plan.micro_batch
                yield order[begin : begin + plan.micro_batch].tolist()


class EvalOrder:
    """Every index once over all ranks, in batches of at most `micro_batch`; a rank may have fewer than another.

    Raises:
        UserError: there are fewer samples than ranks.
    """

    def __init__(self, samples: int, micro_batch: int, rank: int, world_size: int) -> None:
        if samples < world_size:
            raise UserError(
                f"there are {samples} held-out samples for {world_size} ranks: hold out more, or use fewer ranks"
            )
        self.indices = range(rank, samples, world_size)
        self.micro_batch = micro_batch

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, len(self.indices), self.micro_batch):
            yield list(self.indices[begin : begin + self.micro_batch])


def batches(
    samples: Samples, order: Iterable[list[int]], cfg: LoaderConfig, workers: int, world: World
) -> Iterator[Batch]:
    """Load the batches of `order` and bring each to the device, one ahead of the one in use on a GPU."""
    pin = cfg.pin_memory and world.device.type == "cuda"
    loaded: Iterable[Batch]
    if workers == 0 and not pin:
        loaded = map(samples.__getitems__, order)  # a DataLoader without workers would add 60 us a batch
    else:
        loaded = DataLoader(
            samples,  # type: ignore[arg-type]  # torch's Dataset is a class; ours need only the two methods
            batch_sampler=order,
            num_workers=workers,
            collate_fn=tuple,
            pin_memory=pin,
            prefetch_factor=cfg.prefetch if workers else None,
            generator=torch.Generator(),  # else it would draw from the generator that the batch's noise comes from
        )
    if world.device.type == "cuda":
        return _on_gpu(loaded, world.device)
    return (tuple(part.to(world.device) for part in batch) for batch in loaded)


def _on_gpu(loaded: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Copy each batch on a side stream while the one before it is computed on."""
    side = torch.cuda.Stream(device)
    ready: Batch | None = None
    for batch in loaded:
        with torch.cuda.stream(side):
            coming = tuple(part.to(device, non_blocking=True) for part in batch)
        if ready is not None:
            yield ready
        torch.cuda.current_stream(device).wait_stream(side)
        for part in coming:  # the allocator must not hand this memory on while the main stream reads it
            part.record_stream(torch.cuda.current_stream(device))
        ready = coming
    if ready is not None:
        yield ready


def worker_count(cfg: LoaderConfig, in_memory: bool) -> int:
    """Loader processes of one rank: as configured, or by the cores that the ranks of this machine share."""
    if cfg.workers != "auto":
        return cfg.workers
    if in_memory:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(4, cores // ranks_here - 1))
