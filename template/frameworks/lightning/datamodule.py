"""The LightningDataModule around data.py."""

from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from . import data
from .contracts import collate_fn, load_test_split
from .errors import UserError
from .loader import TrainLoader, TrainSampler, collate, even_batches


class Data(LightningDataModule):
    """Loads batches of data.py."""

    trainer: Any
    first_batch = 0
    """Of the epoch that a resumed run continues."""

    def __init__(
        self,
        source: data.DataConfig,
        batch_size: int = 128,
        num_workers: int = 0,
        pin_memory: bool = True,
    ) -> None:
        """Keep the options.

        Args:
            source: The options of data.py.
            batch_size: Samples per forward pass and rank.
            num_workers: Loader processes per rank. 0 for data in memory; about 4 per GPU for files.
            pin_memory: Use page-locked host memory, so that copies to a GPU are asynchronous.
        """
        super().__init__()
        self.source = source
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.seed = torch.initial_seed()  # that of `seed_everything`

    @cached_property
    def splits(self) -> tuple[Any, Any, data.Spec]:
        """Training set, validation set and their `Spec`."""
        return data.load(self.source)

    @property
    def spec(self) -> data.Spec:
        """What the model needs to know; linked to `model.spec`."""
        return self.splits[2]

    def train_dataloader(self) -> DataLoader[Any]:
        samples = self.splits[0]
        ranks = self.trainer.world_size
        accumulate = self.trainer.accumulate_grad_batches
        global_batch_size = self.batch_size * accumulate * ranks
        if global_batch_size > len(samples):
            too_large = f"is larger than the training set of {len(samples)}: lower data.batch_size"
            raise UserError(f"the global batch of {global_batch_size} samples {too_large}")

        shape = (len(samples) // global_batch_size * accumulate, ranks, self.batch_size)
        sampler = TrainSampler(len(samples), shape, self.trainer.global_rank, self.seed)
        options = self.options(samples)
        loader = TrainLoader(samples, batch_size=self.batch_size, sampler=sampler, **options)
        loader.first_batch = self.first_batch
        return loader

    def state_dict(self) -> dict[str, int]:
        """Return the position in the epoch, which Lightning keeps in each checkpoint."""
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        # LearningRateFinder saves before their number is finite
        return {"first_batch": int(progress.processed % self.trainer.num_training_batches)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Keep the position for `train_dataloader`, which Lightning calls later."""
        self.first_batch = state["first_batch"]

    def val_dataloader(self) -> DataLoader[Any]:
        return self.even_loader(self.splits[1])

    predict_dataloader = val_dataloader

    def test_dataloader(self) -> DataLoader[Any]:
        samples = load_test_split(data, self.source, "data.source")
        return self.even_loader(samples)

    def even_loader(self, samples: Any) -> DataLoader[Any]:
        """Return a loader of each sample once, with equally many batches per rank."""
        trainer = self.trainer
        rank = trainer.global_rank
        batches = even_batches(len(samples), self.batch_size, trainer.world_size, rank)
        return DataLoader(samples, batch_sampler=batches, **self.options(samples))

    def options(self, samples: Any) -> dict[str, Any]:
        """Return the options of every loader."""
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": self.pin_memory and torch.accelerator.is_available(),
            "collate_fn": collate_fn(samples) or collate,
        }
