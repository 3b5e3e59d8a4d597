"""From a dataset to batches on the device: the plan of a run, sample order, workers, prefetch."""

import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .config import LoaderConfig, TrainConfig
from .contracts import Dataset, collate, collate_fn, is_in_memory, load_batch, own_loader
from .distributed import World
from .errors import UserError, kill_workers
from .workers import init_worker, limit_time, to_shared_memory


@dataclass(frozen=True)
class BatchPlan:
    """How the samples are divided into micro-batches, optimizer steps and epochs."""

    samples: int
    batch_size: int
    accumulation_steps: int
    global_batch_size: int
    steps_per_epoch: int
    """Whole global batches in an epoch; the remaining samples are skipped, others in each epoch."""
    total_steps: int
    eval_every: int

    @classmethod
    def make(
        cls,
        cfg: TrainConfig,
        samples: int,
        ranks: int,
    ) -> "BatchPlan":
        """Compute the number of steps; refuse a global batch that does not fit."""
        accumulation_steps = cfg.accumulation_steps(ranks)
        global_batch_size = cfg.samples_per_step(ranks)
        if global_batch_size > samples:
            fix = "lower train.global_batch_size"
            if not cfg.global_batch_size:
                largest = samples * cfg.batch_size // global_batch_size
                fix = f"lower train.batch_size to {largest} or less"
            raise UserError(
                f"the global batch of {global_batch_size} samples is larger than the training set "
                f"of {samples}: {fix}"
            )
        per_epoch = samples // global_batch_size
        return cls(
            samples=samples,
            batch_size=cfg.batch_size,
            accumulation_steps=accumulation_steps,
            global_batch_size=global_batch_size,
            steps_per_epoch=per_epoch,
            total_steps=cfg.steps or math.ceil(round(cfg.epochs * per_epoch, 6)),
            eval_every=cfg.eval_every or per_epoch,
        )

    def validates(self, step: int) -> bool:
        """Whether a validation follows this step."""
        return step > 0 and (step % self.eval_every == 0 or step == self.total_steps)


def train_batches(
    plan: BatchPlan,
    world: World,
    seed: int,
    first_step: int,
) -> Iterator[list[int]]:
    """Yield the indices of each micro-batch of this rank.

    A step has the same samples on any number of ranks: the ranks take the micro-batches of one
    order in turn, which depends on the seed and the epoch.
    """
    epoch = -1
    order = torch.empty(0)
    for step in range(first_step, plan.total_steps):
        if step // plan.steps_per_epoch != epoch:
            epoch = step // plan.steps_per_epoch
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            order = torch.randperm(plan.samples, generator=generator)
        first = step % plan.steps_per_epoch * plan.global_batch_size
        for micro in range(plan.accumulation_steps):
            begin = first + (micro * world.size + world.rank) * plan.batch_size
            yield order[begin : begin + plan.batch_size].tolist()


def val_batches(
    samples: int,
    batch_size: int,
    world: World,
) -> tuple[list[list[int]], int]:
    """Return the indices of each validation batch of this rank, and how many of the batches count.

    The ranks share the samples. A rank with one batch less repeats a sample, which does not count,
    so that every rank runs the same number of forward passes: those may communicate.
    """
    if samples < world.size:
        few = f"there are only {samples} validation samples for {world.size} ranks"
        raise UserError(f"{few}: use fewer ranks")
    own = range(world.rank, samples, world.size)
    batches = [
        list(own[begin : begin + batch_size])
        for begin in range(
            0,
            len(own),
            batch_size,
        )
    ]
    most = math.ceil(math.ceil(samples / world.size) / batch_size)
    return batches + [[0]] * (most - len(batches)), len(batches)


class Loader:
    """Batches on the device, of a `Dataset`.

    On a GPU the next one is copied on a side stream while the present one is in use.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Iterable[list[int]],
        cfg: LoaderConfig,
        world: World,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.device = world.device
        self.timeout = cfg.timeout
        self.has_streams = world.device.type not in ("cpu", "mps")
        on_device = getattr(dataset, "on_device", False)  # its batches are in GPU memory
        self.pin_memory = cfg.pin_memory and self.has_streams and not on_device
        self.workers, self.reason = choose_workers(cfg, dataset, world.device)
        self.loader: Iterable[Any] | None = None
        batches = own_loader(dataset)
        if batches is not None:
            self.loader = batches(cfg, self.workers, self.pin_memory)
        elif self.workers > 0:
            untyped: Any = dataset
            self.loader = DataLoader(
                untyped,
                batch_sampler=order,
                num_workers=self.workers,
                collate_fn=to_shared_memory(collate_fn(dataset) or collate, cfg.prefetch_factor),
                pin_memory=self.pin_memory,
                prefetch_factor=cfg.prefetch_factor,
                timeout=cfg.timeout,
                persistent_workers=True,
                worker_init_fn=init_worker,
                # not the default one, which dropout draws from; workers of each rank have their own
                generator=torch.Generator().manual_seed(torch.initial_seed() + 10_007 * world.rank),
            )

    def close(self) -> None:
        """End all loader workers, those of other loaders too: they may be busy."""
        kill_workers()
        self.loader = None

    def __iter__(self) -> Generator[Any, None, None]:
        batches = self._load_here() if self.loader is None else self.loader
        loaded = limit_time(batches, self.timeout)
        if self.has_streams:
            yield from self._prefetch(loaded)
        else:
            for batch in loaded:
                yield map_tensors(lambda part: part.to(self.device), batch)

    def _load_here(self) -> Iterator[Any]:
        for indices in self.order:
            batch = load_batch(self.dataset, indices)
            yield map_tensors(Tensor.pin_memory, batch) if self.pin_memory else batch

    def _prefetch(self, loaded: Iterator[Any]) -> Iterator[Any]:
        side = torch.Stream(self.device)
        ready = None
        for batch in loaded:
            with side:
                coming = map_tensors(lambda part: part.to(self.device, non_blocking=True), batch)
            if ready is not None:
                yield ready
            main = torch.accelerator.current_stream(self.device)
            main.wait_stream(side)
            # keeps the memory until `main` has read it
            map_tensors(partial(Tensor.record_stream, s=main), coming)
            ready = coming
        if ready is not None:
            yield ready


def map_tensors(change: Callable[[Tensor], Any], batch: Any) -> Any:
    """Return a batch with each of its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: map_tensors(change, part) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(map_tensors(change, part) for part in batch)
    return batch


def choose_workers(
    cfg: LoaderConfig,
    dataset: Dataset,
    device: torch.device,
) -> tuple[int, str]:
    """Return the number of loader processes, and why if the config leaves it open."""
    if cfg.num_workers != "auto":
        return cfg.num_workers, ""
    if is_in_memory(dataset):
        return 0, "0 workers: the data are in memory"
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cpu" and cores <= min(2, torch.get_num_threads()):
        return 0, f"0 workers: torch uses all {cores} cores"
    workers = max(1, min(32, cores))
    return workers, f"{workers} workers: one per core of the rank, at most 32"
