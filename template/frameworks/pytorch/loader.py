"""From a dataset to batches on the device: the plan of a run, sample order, workers, pinned memory, prefetch."""

import math
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from .config import LoaderConfig, TrainConfig
from .distributed import World
from .errors import UserError


@dataclass(frozen=True)
class BatchPlan:
    """How the samples are divided into micro-batches, optimizer steps and epochs."""

    samples: int
    micro_batch: int
    accumulate: int
    global_batch: int
    steps_per_epoch: int
    """Whole global batches in one epoch; the remaining samples are skipped, other ones in each epoch."""
    total_steps: int
    eval_every: int

    @classmethod
    def make(cls, cfg: TrainConfig, samples: int, ranks: int) -> "BatchPlan":
        """Compute the number of steps; refuse a global batch that does not fit the ranks or the training set."""
        once = cfg.micro_batch * ranks
        accumulate = cfg.accumulate if cfg.global_batch is None else cfg.global_batch // once
        global_batch = once * accumulate
        if cfg.global_batch not in (None, global_batch) or not global_batch:
            cfg.refuse("global_batch", f"it must be a multiple of micro_batch x ranks = {once}")
        if global_batch > samples:
            too_large = f"the global batch of {global_batch} samples is larger than the training set of {samples}"
            raise UserError(f"{too_large}: lower train.micro_batch")
        per_epoch = samples // global_batch
        steps = cfg.steps or math.ceil(cfg.epochs * per_epoch)
        return cls(
            samples,
            cfg.micro_batch,
            accumulate,
            global_batch,
            per_epoch,
            steps,
            cfg.eval_every or per_epoch,
        )

    def validates(self, step: int) -> bool:
        """Whether a validation follows this step."""
        return step % self.eval_every == 0 or step == self.total_steps


def train_batches(plan: BatchPlan, world: World, seed: int, first_step: int) -> Iterator[list[int]]:
    """Yield the indices of each micro-batch of this rank; a step has the same samples on any number of ranks."""
    epoch, order = -1, torch.empty(0)
    for step in range(first_step, plan.total_steps):
        if step // plan.steps_per_epoch != epoch:
            epoch = step // plan.steps_per_epoch
            generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
            order = torch.randperm(plan.samples, generator=generator)
        base = step % plan.steps_per_epoch * plan.global_batch
        for micro in range(plan.accumulate):
            begin = base + (micro * world.size + world.rank) * plan.micro_batch
            yield order[begin : begin + plan.micro_batch].tolist()


def val_batches(samples: int, micro_batch: int, world: World) -> tuple[list[list[int]], int]:
    """Return the indices of each validation batch of this rank, and how many of the batches count.

    The ranks share the samples. A rank with one batch less repeats a sample, which does not count,
    so that every rank runs the same number of forward passes: those may communicate.
    """
    if samples < world.size:
        raise UserError(
            f"there are only {samples} validation samples for {world.size} ranks: use fewer ranks"
        )
    own = range(world.rank, samples, world.size)
    batches = [list(own[begin : begin + micro_batch]) for begin in range(0, len(own), micro_batch)]
    most = math.ceil(math.ceil(samples / world.size) / micro_batch)
    return batches + [[0]] * (most - len(batches)), len(batches)


class Loader:
    """Batches on the device; on a GPU the next one is copied on a side stream while the present one is in use.

    The dataset is any map-style one, with its `collate_fn` if it has one; or its `__getitems__`
    returns a whole batch. A batch is a tuple or a dict of tensors, at any depth. One with
    `batches`, such as a stream, has its own loader.
    """

    def __init__(
        self, dataset: Any, order: Iterable[list[int]], cfg: LoaderConfig, world: World
    ) -> None:
        self.dataset, self.order, self.device = dataset, order, world.device
        self.has_streams = world.device.type not in ("cpu", "mps")
        self.pin = cfg.pin_memory and self.has_streams and not getattr(dataset, "on_device", False)
        self.workers = (
            _auto_workers(dataset, world.device) if cfg.workers == "auto" else cfg.workers
        )
        self.loader: Iterable[Any] | None = None
        if hasattr(dataset, "batches"):
            self.loader = dataset.batches(cfg, self.workers, self.pin)
        elif self.workers > 0:
            self.loader = DataLoader(
                dataset,
                batch_sampler=order,
                num_workers=self.workers,
                collate_fn=getattr(dataset, "collate_fn", collate),
                pin_memory=self.pin,
                prefetch_factor=cfg.prefetch_factor,
                persistent_workers=True,
                worker_init_fn=outlive_signals,
                generator=torch.Generator().manual_seed(
                    0
                ),  # not the default one, which dropout draws from
            )

    def __iter__(self) -> Generator[Any, None, None]:
        here = (load_batch(self.dataset, indices) for indices in self.order)
        here = (map_tensors(Tensor.pin_memory, batch) for batch in here) if self.pin else here
        loaded = here if self.loader is None else iter(self.loader)
        if self.has_streams:
            yield from self._prefetched(loaded)
        else:
            for batch in loaded:
                yield map_tensors(lambda part: part.to(self.device), batch)

    def _prefetched(self, loaded: Iterator[Any]) -> Iterator[Any]:
        side, ready = torch.Stream(self.device), None
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


def load_batch(dataset: Any, indices: list[int]) -> Any:
    """Load a batch in this process, in a third of DataLoader's time for table rows."""
    whole = getattr(dataset, "__getitems__", None)
    samples = whole(indices) if whole else [dataset[index] for index in indices]
    return getattr(dataset, "collate_fn", collate)(samples)


def map_tensors(change: Callable[[Tensor], Any], batch: Any) -> Any:
    """Return a batch with each of its tensors changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: map_tensors(change, part) for name, part in batch.items()}
    return (
        tuple(map_tensors(change, part) for part in batch)
        if isinstance(batch, tuple | list)
        else batch
    )


def outlive_signals(_: int) -> None:
    """Let a worker serve the main process until that has saved: a terminal or launcher signals the workers as well."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(30))  # seconds


def _auto_workers(dataset: Any, device: torch.device) -> int:
    """None for data in memory; none either where workers would take the only two cores from torch's own threads."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    crowded = device.type == "cpu" and cores <= min(2, torch.get_num_threads())
    in_memory = getattr(dataset, "in_memory", isinstance(dataset, TensorDataset))
    return 0 if crowded or in_memory else max(1, min(32, cores))


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
