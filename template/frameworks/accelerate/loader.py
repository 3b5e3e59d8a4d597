"""torch's DataLoader for the training and the validation set."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator, PartialState
from torch.utils.data import DataLoader, RandomSampler

from .config import Config, TrainConfig
from .contracts import collate, collate_fn, is_in_memory
from .errors import UserError
from .workers import init_worker, to_shared_memory


@dataclass(frozen=True)
class Plan:
    """How the samples are divided into micro-batches, optimizer steps and epochs."""

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
        processes: int,
    ) -> "Plan":
        """Compute the number of steps; refuse a global batch that does not fit."""
        global_batch_size = cfg.batch_size * cfg.gradient_accumulation_steps * processes
        if global_batch_size > samples:
            batch = f"the global batch of {global_batch_size} samples"
            too_large = f"{batch} is larger than the training set of {samples}"
            largest = samples * cfg.batch_size // global_batch_size
            raise UserError(f"{too_large}: lower train.batch_size to {largest} or less")
        per_epoch = samples // global_batch_size
        return cls(
            accumulation_steps=cfg.gradient_accumulation_steps,
            global_batch_size=global_batch_size,
            steps_per_epoch=per_epoch,
            total_steps=cfg.steps or math.ceil(round(cfg.epochs * per_epoch, 6)),
            eval_every=cfg.eval_every or per_epoch,
        )

    def validates(self, step: int) -> bool:
        """Whether a validation follows this step."""
        return step > 0 and (step % self.eval_every == 0 or step == self.total_steps)


def train_loader(
    dataset: Any,
    cfg: Config,
    plan: Plan,
) -> DataLoader[Any]:
    """Return a loader of an epoch, whose order Accelerate replaces by one of the seed."""
    whole = plan.steps_per_epoch * plan.global_batch_size
    return DataLoader(
        dataset,
        batch_size=cfg.train.batch_size,
        sampler=RandomSampler(dataset, num_samples=whole),
        drop_last=True,
        **_options(dataset, cfg),
    )


def val_loader(
    dataset: Any,
    cfg: Config,
    processes: int,
) -> DataLoader[Any]:
    """Return a loader of each sample once, in equally many batches per process."""
    batches = even_batches(len(dataset), cfg.train.batch_size, processes)
    return DataLoader(dataset, batch_sampler=batches, **_options(dataset, cfg))


def endless(
    accelerator: Accelerator, prepared: Any, plan: Plan, first_step: int
) -> Iterator[tuple[int, Any]]:
    """Yield the batches of all epochs, each with its number in its optimizer step."""
    epoch, done = divmod(first_step, plan.steps_per_epoch)
    prepared.set_epoch(epoch)
    rest = accelerator.skip_first_batches(prepared, done * plan.accumulation_steps)
    while True:
        for number, batch in enumerate(rest):
            yield number % plan.accumulation_steps, batch
        epoch += 1
        prepared.set_epoch(epoch)
        rest = prepared


def even_batches(
    samples: int,
    size: int,
    processes: int,
) -> list[list[int]]:
    """Split the samples into batches that differ by at most one sample.

    There are equally many for each process, as a forward pass may communicate.
    """
    if samples < processes:
        few = f"there are only {samples} validation samples for {processes} processes"
        raise UserError(f"{few}: use fewer processes")
    rounds = math.ceil(samples / (processes * max(size, 2)))
    count = rounds * processes
    ends = [samples * number // count for number in range(count + 1)]
    return [list(range(ends[number], ends[number + 1])) for number in range(count)]


def _options(dataset: Any, cfg: Config) -> dict[str, Any]:
    """Return the options that both loaders have."""
    device = PartialState().device.type
    workers = cfg.loader.num_workers
    if workers == "auto":
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = max(1, min(8, (os.cpu_count() or 1) // here))
        workers = cores if device != "cpu" and not is_in_memory(dataset) else 0
    return {
        "num_workers": workers,
        "prefetch_factor": cfg.loader.prefetch_factor if workers else None,
        "persistent_workers": workers > 0,
        "timeout": cfg.loader.timeout if workers else 0,
        "pin_memory": cfg.loader.pin_memory and device not in ("cpu", "mps"),
        "collate_fn": to_shared_memory(collate_fn(dataset) or collate, cfg.loader.prefetch_factor),
        "worker_init_fn": init_worker,
    }
