"""The LightningDataModule around data.py."""

from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from . import data
from .contracts import (
    collate,
    collate_fn,
    describe_data,
    load_data,
    load_test_split,
    spec_differences,
    spec_fields,
)
from .errors import UserError
from .loader import LimitedLoader, TrainLoader, TrainSampler, even_batches
from .workers import init_worker, to_shared_memory

PREFETCH_FACTOR = 2
"""Batches prefetched per worker, as torch's default."""


class Data(LightningDataModule):
    """Loads batches of data.py."""

    trainer: Any
    saved_spec: dict[str, Any] | None = None
    """The `Spec` of the checkpoint that is loaded, with which the data are read."""
    first = (0, 0)
    """Where a resumed run continues: an epoch, and a batch of it."""

    def __init__(
        self,
        batch_size: int = 128,
        num_workers: int = 0,
        pin_memory: bool = True,
        timeout: float = 600.0,
        **source: Any,
    ) -> None:
        """Keep the options.

        Args:
            batch_size: Samples per forward pass and rank.
            num_workers: Loader processes per rank. 0 for data in memory; about 4 per GPU for files.
            pin_memory: Use page-locked host memory, so that copies to a GPU are asynchronous.
            timeout: Seconds to wait for a batch, after which the run ends with an error.
            **source: The options of data.py.
        """
        super().__init__()
        self.source = data.DataConfig(**source)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.seed = torch.initial_seed()  # that of `seed_everything`
        self.changes = ""  # since the checkpoint was saved

    @cached_property
    def splits(self) -> tuple[Any, Any, data.Spec]:
        """Training set, validation set and their `Spec`; the first use prints what was read."""
        splits = load_data(data, self.source, self.saved_spec)
        for line in describe_data(data, *splits):
            rank_zero_info(line)
        return splits

    @property
    def spec(self) -> data.Spec:
        """What the model needs to know."""
        return self.splits[2]

    def train_dataloader(self) -> DataLoader[Any]:
        train_set = self.splits[0]
        samples = len(train_set)
        ranks = self.trainer.world_size
        accumulate = self.trainer.accumulate_grad_batches
        global_batch_size = self.batch_size * accumulate * ranks
        if global_batch_size > samples:
            raise UserError(
                f"the global batch of {global_batch_size} samples is larger than the training set "
                f"of {samples}: lower data.batch_size"
            )

        shape = (samples // global_batch_size * accumulate, ranks, self.batch_size)
        rank = self.trainer.global_rank
        sampler = TrainSampler(samples, shape, rank, self.seed, self.first)
        options = self.options(train_set)
        return TrainLoader(
            train_set,
            self.batch_size,
            sampler=sampler,
            **options,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the `Spec`, which Lightning keeps in each checkpoint."""
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        epoch = self.trainer.current_epoch
        batch = progress.processed
        if batch == self.trainer.num_training_batches:  # infinite when LearningRateFinder saves
            epoch += 1
            batch = 0
        return {
            "first": (epoch, batch),
            "spec": spec_fields(self.spec),
            "samples": len(self.splits[0]),
            "val_samples": len(self.splits[1]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the position for `train_dataloader`, which Lightning calls later.

        Raises:
            UserError: the weights are of other data.
        """
        for name in spec_differences(self.spec, state["spec"]):
            raise UserError(
                f"Spec.{name} of the data is not that of the checkpoint: train a new run"
            )
        train_set, val_set, _ = self.splits
        for split, samples, key in (
            ("validation", len(val_set), "val_samples"),
            ("training", len(train_set), "samples"),
        ):
            before = state.get(key, samples)
            if samples != before:
                numbers = f"{samples:,} {split} samples, and the run had {before:,}"
                self.changes = f"the data have {numbers}"
                rank_zero_info(self.changes)
        self.first = state["first"]

    def val_dataloader(self) -> DataLoader[Any]:
        return self.even_loader(self.splits[1])

    predict_dataloader = val_dataloader

    def test_dataloader(self) -> DataLoader[Any]:
        return self.even_loader(load_test_split(data, self.source, spec=self.spec))

    def even_loader(self, samples: Any) -> DataLoader[Any]:
        """Return a loader of each sample once, with equally many batches per rank."""
        trainer = self.trainer
        rank = trainer.global_rank
        if len(samples) < trainer.world_size:
            few = (
                f"there are only {len(samples)} samples to evaluate for {trainer.world_size} ranks"
            )
            raise UserError(f"{few}: use fewer devices")
        batches = even_batches(len(samples), self.batch_size, trainer.world_size, rank)
        return LimitedLoader(samples, batch_sampler=batches, **self.options(samples))

    def options(self, samples: Any) -> dict[str, Any]:
        """Return the options of every loader."""
        device = self.trainer.strategy.root_device.type
        has_workers = self.num_workers > 0
        return {
            "num_workers": self.num_workers,
            "prefetch_factor": PREFETCH_FACTOR if has_workers else None,
            "persistent_workers": has_workers,
            "timeout": self.timeout if has_workers else 0,
            "limit": self.timeout,
            "pin_memory": self.pin_memory and device not in ("cpu", "mps"),
            "collate_fn": to_shared_memory(collate_fn(samples) or collate, PREFETCH_FACTOR),
            "worker_init_fn": init_worker,
        }
