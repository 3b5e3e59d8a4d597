"""torch's DataLoader for the training and the validation set."""

import math
import os
import signal
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, default_collate

from .config import Config
from .contracts import collate_fn, is_in_memory, whole_batches
from .errors import UserError


def train_loader(dataset: Any, cfg: Config, processes: int) -> DataLoader[Any]:
    """Return a loader of an epoch's whole global batches; others are skipped in each epoch."""
    global_batch = cfg.train.micro_batch * cfg.train.accumulate * processes
    steps = len(dataset) // global_batch
    if steps == 0:
        batch = f"the global batch of {global_batch} samples"
        too_large = f"{batch} is larger than the training set of {len(dataset)}"
        raise UserError(f"{too_large}: lower train.micro_batch")
    sampler = RandomSampler(dataset, num_samples=steps * global_batch)
    size = cfg.train.micro_batch
    return DataLoader(dataset, size, sampler=sampler, drop_last=True, **_options(dataset, cfg))


def val_loader(dataset: Any, cfg: Config, processes: int) -> DataLoader[Any]:
    """Return a loader of each sample once, in equally many batches per process."""
    batches = even_batches(len(dataset), cfg.train.micro_batch, processes)
    return DataLoader(dataset, batch_sampler=batches, **_options(dataset, cfg))


def even_batches(samples: int, size: int, processes: int) -> list[list[int]]:
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


def load_batch(dataset: Any, indices: list[int]) -> Any:
    """Load a batch in this process."""
    whole = whole_batches(dataset)
    samples = whole(indices) if whole else [dataset[index] for index in indices]
    return (collate_fn(dataset) or collate)(samples)


def collate(batch: Any) -> Any:
    """Stack a list of samples; what `__getitems__` returned as a tuple or a dict is a batch."""
    stacked = default_collate(batch) if isinstance(batch, list) else batch
    if isinstance(stacked, dict):
        return stacked
    return (stacked,) if isinstance(stacked, Tensor) else tuple(stacked)


def _options(dataset: Any, cfg: Config) -> dict[str, Any]:
    """Return the options that both loaders have."""
    on_gpu = cfg.run.device != "cpu" and torch.accelerator.is_available()
    workers = cfg.loader.workers
    if workers == "auto":
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = max(1, min(8, (os.cpu_count() or 1) // here))
        workers = cores if on_gpu and not is_in_memory(dataset) else 0
    return {
        "num_workers": workers,
        "prefetch_factor": cfg.loader.prefetch_factor if workers else None,
        "persistent_workers": workers > 0,
        "pin_memory": cfg.loader.pin_memory and on_gpu,
        "collate_fn": collate_fn(dataset) or collate,
        "worker_init_fn": _ignore_stops,
    }


def _ignore_stops(_: int) -> None:
    """Let a worker outlive the signals that ask to stop, until the main process has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(30))  # seconds
