"""From a dataset to batches on the device: the run's plan, sample order, workers, pinned memory, prefetch."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .config import MOST_WORKERS, LoaderConfig, TrainConfig
from .contracts import Batch, Dataset, map_tensors, tensors
from .distributed import World, has_streams
from .errors import UserError


class Batches(Protocol):
    """Batches on the device; each iteration starts at the beginning of the order."""

    def __iter__(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class Plan:
    """How the samples are divided into micro-batches, optimizer steps and epochs."""

    samples: int
    micro_batch: int
    accumulate: int
    world_size: int
    total_steps: int

    @classmethod
    def make(cls, cfg: TrainConfig, samples: int, world_size: int) -> "Plan":
        """Compute the number of steps.

        Raises:
            UserError: the global batch is not divisible by ranks x micro-batch, or is larger than the dataset.
        """
        one_pass = cfg.micro_batch * world_size
        accumulate = cfg.accumulate if cfg.global_batch is None else cfg.global_batch // one_pass
        global_batch = one_pass * accumulate
        if cfg.global_batch not in (None, global_batch):
            nearest = f"{global_batch} or {global_batch + one_pass}" if accumulate else f"{one_pass}"
            parts = f"{world_size} ranks x " * (world_size > 1) + f"train.micro_batch={cfg.micro_batch}"
            cfg.refuse("global_batch", f"it must be a multiple of {parts}; the nearest is {nearest}")
        if cfg.global_batch is not None and cfg.accumulate not in (1, accumulate):
            cfg.refuse(
                "accumulate", f"train.global_batch={cfg.global_batch} makes it {accumulate}; give one of the two"
            )
        if global_batch > samples:
            raise UserError(
                f"the global batch of {global_batch} samples ({world_size} ranks x train.micro_batch={cfg.micro_batch} "
                f"x train.accumulate={accumulate}) is larger than the {samples} training samples: make it smaller"
            )
        steps = cfg.steps or math.ceil(cfg.epochs * (samples // global_batch))
        return cls(samples, cfg.micro_batch, accumulate, world_size, steps)

    @property
    def global_batch(self) -> int:
        """Samples in one optimizer step, over all ranks."""
        return self.micro_batch * self.accumulate * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Whole global batches in one epoch; the remaining samples are skipped, other ones in each epoch."""
        return self.samples // self.global_batch


class TrainOrder:
    """The indices of each micro-batch of one rank, from `first_step` to the run's end.

    A function of (seed, epoch, position) alone, so it is the same for any number of workers. Ranks take the micro-
    batches of a global batch in turn, so a step has the same samples on any number of ranks with an equal global batch.
    """

    def __init__(self, plan: Plan, rank: int, seed: int, first_step: int = 0, samples: object = None) -> None:
        self.plan, self.rank, self.seed, self.first_step = plan, rank, seed, first_step
        self.epoch_order: Callable[[int, int], Any] = getattr(samples, "epoch_order", self._any_order)

    def _any_order(self, seed: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return torch.randperm(self.plan.samples, generator=generator)

    def __iter__(self) -> Iterator[list[int]]:
        plan, epoch, order = self.plan, -1, torch.empty(0)
        for step in range(self.first_step, plan.total_steps):
            if step // plan.steps_per_epoch != epoch:
                epoch = step // plan.steps_per_epoch
                order = self.epoch_order(self.seed, epoch)
            base = step % plan.steps_per_epoch * plan.global_batch
            for micro in range(plan.accumulate):
                begin = base + (micro * plan.world_size + self.rank) * plan.micro_batch
                yield order[begin : begin + plan.micro_batch].tolist()


class EvalOrder:
    """Every index once over all ranks, in batches of at most `micro_batch`, of which the first `counted` count.

    Raises:
        UserError: there are fewer samples than ranks.
    """

    def __init__(self, samples: int, micro_batch: int, rank: int, world_size: int) -> None:
        if samples < world_size:
            raise UserError(
                f"there are only {samples} validation samples for {world_size} ranks: use more of them, or fewer ranks"
            )
        self.indices = range(rank, samples, world_size)
        self.micro_batch = micro_batch
        self.counted = math.ceil(len(self.indices) / micro_batch)
        """Batches with samples of this rank's own."""
        self.rounds = math.ceil(math.ceil(samples / world_size) / micro_batch)
        """Batches of every rank; a rank with fewer repeats a sample, as the ranks of FSDP run forward together."""

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, len(self.indices), self.micro_batch):
            yield list(self.indices[begin : begin + self.micro_batch])
        for _ in range(self.counted, self.rounds):
            yield [self.indices[0]]


class Loader:
    """Batches of an order on the device; with streams, the next one is copied while the present one is in use."""

    def __init__(
        self, samples: Dataset, order: Iterable[list[int]], cfg: LoaderConfig, workers: int, world: World, seed: int = 0
    ) -> None:
        self.samples, self.order, self.device = samples, order, world.device
        self.options = (cfg, workers, world, seed)
        asynchronous = has_streams(world.device)
        self.pin, self.prefetch = asynchronous and cfg.pin_memory, asynchronous and cfg.side_stream
        self.loader: Iterable[Batch] | None = None  # a DataLoader without workers would add 60 us per batch
        if workers > 0:
            from . import loader_worker

            self.watched = loader_worker.watched
            self.loader = DataLoader(
                samples,  # type: ignore[arg-type]  # torch's Dataset is a class; ours needs only the two methods
                batch_sampler=order,
                num_workers=workers,
                collate_fn=_as_loaded,
                pin_memory=self.pin,
                prefetch_factor=cfg.prefetch_factor,
                persistent_workers=cfg.persistent_workers,
                worker_init_fn=loader_worker.initializer(),
                # Without a generator, workers would be seeded from the one that augmentation and dropout draw from.
                generator=torch.Generator().manual_seed(seed * 1_000_003 + world.rank),
            )

    def with_order(self, order: Iterable[list[int]]) -> "Loader":
        """Return a loader of the same samples in another order."""
        return Loader(self.samples, order, *self.options)

    def __iter__(self) -> Iterator[Batch]:
        loaded = map(self._load, self.order) if self.loader is None else self.watched(iter(self.loader))
        if self.prefetch:
            return _prefetch(loaded, self.device)
        if self.device.type == "cpu":
            return loaded
        # To Apple's GPUs an asynchronous copy from memory that is freed meanwhile is wrong (pytorch issue 139550).
        return (map_tensors(lambda part: part.to(self.device, non_blocking=self.pin), batch) for batch in loaded)

    def _load(self, indices: list[int]) -> Batch:
        """Without workers this thread pins the memory, while the device computes what was queued before."""
        batch = self.samples.__getitems__(indices)
        return map_tensors(_pinned, batch) if self.pin else batch


def _as_loaded(batch: Batch) -> Batch:
    return batch


def _pinned(part: Any) -> Any:
    return part.pin_memory() if hasattr(part, "pin_memory") else part  # an object of another library


_side_stream = cache(torch.Stream)  # one per device, as the allocator keeps separate memory for each stream


def _prefetch(loaded: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Copy each batch on a side stream while the one before it is in use."""
    side, ready = _side_stream(device), None
    for batch in loaded:
        if not all(hasattr(part, "record_stream") for part in tensors(batch)):  # see below
            side.wait_stream(torch.accelerator.current_stream(device))
        with side:
            coming = map_tensors(lambda part: part.to(device, non_blocking=True), batch)
        if ready is not None:
            yield ready
        main = torch.accelerator.current_stream(device)
        main.wait_stream(side)
        for part in tensors(coming):  # keeps the allocator from reusing the memory while the main stream reads it
            if hasattr(part, "record_stream"):
                part.record_stream(main)
        ready = coming
    if ready is not None:
        yield ready


def worker_count(cfg: LoaderConfig, in_memory: bool, device: torch.device, own_cores: bool = False) -> int:
    """Return the loader processes per rank: as configured, or by the cores per rank of this machine.

    The ranks here share the cores of this process, unless it has `own_cores`.

    On the CPU, torch computes with a thread per core, and a step waits for the slowest: a single worker, which takes
    one of at most two cores from them, costs more than it loads.

    Raises:
        UserError: there are fewer cores than workers.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks_here = 1 if own_cores else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if cfg.workers == "auto":
        most = max(1, min(MOST_WORKERS, cores // ranks_here - 1))
        crowded = device.type == "cpu" and most == 1 and torch.get_num_threads() >= cores // ranks_here
        return 0 if in_memory or crowded else most
    if cfg.workers * ranks_here > max(cores, ranks_here):
        most = max(cores // ranks_here, 1)
        cfg.refuse("workers", f"the ranks here share {cores} cores; use auto, or at most {most}")
    return cfg.workers
