"""From a dataset to batches on the device: the plan of a run, sample order, workers, prefetch."""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .config import LoaderConfig, TrainConfig
from .contracts import (
    Dataset,
    collate,
    collate_fn,
    is_in_memory,
    load_batch,
    own_loader,
    releases_gil,
)
from .distributed import World
from .errors import UserError, kill_workers
from .workers import init_worker, to_shared_memory

MOST_THREADS = 8
"""More would wait for the GIL, which about an eighth of the time to load an image needs."""
CLOSE_S = 5.0
"""Seconds in which threads can finish their batches at the end."""


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
            total_steps=cfg.steps or math.ceil(cfg.epochs * per_epoch),
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
        self.has_streams = world.device.type not in ("cpu", "mps")
        on_device = getattr(dataset, "on_device", False)  # its batches are in GPU memory
        self.pin_memory = cfg.pin_memory and self.has_streams and not on_device
        self.workers, self.reason = choose_workers(cfg, dataset, world.device)
        self.loader: Iterable[Any] | None = None
        batches = own_loader(dataset)
        if batches is not None:
            self.loader = batches(cfg, self.workers, self.pin_memory)
        elif self.workers > 0:
            self.loader = self._start_workers(order, cfg, world)

    def close(self) -> None:
        """End the workers, which may be busy with batches that are not needed."""
        kill_workers()
        if isinstance(self.loader, Threads):
            self.loader.close()
        self.loader = None

    def __iter__(self) -> Generator[Any, None, None]:
        loaded = map(self._load, self.order) if self.loader is None else iter(self.loader)
        if self.has_streams:
            yield from self._prefetch(loaded)
        else:
            for batch in loaded:
                yield map_tensors(lambda part: part.to(self.device), batch)

    def _start_workers(
        self,
        order: Iterable[list[int]],
        cfg: LoaderConfig,
        world: World,
    ) -> Iterable[Any]:
        kind, why = choose_kind(cfg, self.dataset, self.workers)
        self.reason = "; ".join(filter(None, (self.reason, why)))
        if kind == "threads":
            return Threads(self._load, order, self.workers, cfg)
        untyped: Any = self.dataset
        return DataLoader(
            untyped,
            batch_sampler=order,
            num_workers=self.workers,
            collate_fn=to_shared_memory(collate_fn(untyped) or collate, cfg.prefetch_factor),
            pin_memory=self.pin_memory,
            prefetch_factor=cfg.prefetch_factor,
            timeout=cfg.timeout,
            persistent_workers=True,
            worker_init_fn=init_worker,
            # not the default one, which dropout draws from; workers of each rank have their own
            generator=torch.Generator().manual_seed(torch.initial_seed() + 10_007 * world.rank),
        )

    def _load(self, indices: list[int]) -> Any:
        batch = load_batch(self.dataset, indices)
        return map_tensors(Tensor.pin_memory, batch) if self.pin_memory else batch

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


class Threads:
    """Threads that load batches ahead, which come in order.

    They are daemons: the threads of `concurrent.futures` would keep the program from ending if one
    waits for a disk or a network.
    """

    def __init__(
        self,
        load: Callable[[list[int]], Any],
        order: Iterable[list[int]],
        count: int,
        cfg: LoaderConfig,
    ) -> None:
        self.load = load
        self.order = order
        self.ahead = count * cfg.prefetch_factor
        self.timeout = cfg.timeout
        self.is_closed = False
        self.tasks: SimpleQueue[tuple[Future[Any], list[int]] | None] = SimpleQueue()
        self.threads = [Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def __iter__(self) -> Iterator[Any]:
        coming: deque[Future[Any]] = deque()
        for indices in self.order:
            coming.append(Future())
            self.tasks.put((coming[-1], indices))
            if len(coming) > self.ahead:
                yield self._result(coming.popleft())
        while coming:
            yield self._result(coming.popleft())

    def close(self) -> None:
        """End the threads, except those that do not finish their batch in time."""
        self.is_closed = True
        for _ in self.threads:
            self.tasks.put(None)
        for thread in self.threads:
            thread.join(CLOSE_S / len(self.threads))

    def _result(self, batch: Future[Any]) -> Any:
        wait([batch], self.timeout)
        if not batch.done():
            late = f"a batch took longer than loader.timeout={self.timeout:g} seconds"
            raise UserError(f"{late}: look for what is slow, or raise it")
        return batch.result()

    def _work(self) -> None:
        torch.set_num_threads(1)  # those of this thread
        while (task := self.tasks.get()) and not self.is_closed:
            batch, indices = task
            try:
                batch.set_result(self.load(indices))
            except Exception as error:  # a dataset may raise any
                batch.set_exception(error)
            del task, batch  # else this thread would keep the memory


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
    """Return the number of workers, and why if the config leaves it open."""
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


def choose_kind(
    cfg: LoaderConfig,
    dataset: Dataset,
    workers: int,
) -> tuple[str, str]:
    """Return whether the workers are threads or processes, and why if the config leaves it open."""
    if cfg.workers != "auto":
        return cfg.workers, ""
    if not releases_gil(dataset):
        return "processes", "processes: the data set has no `releases_gil`"
    if workers > MOST_THREADS:
        return "processes", f"processes: more than {MOST_THREADS} threads would wait for the GIL"
    return "threads", "threads: loading releases the GIL"
