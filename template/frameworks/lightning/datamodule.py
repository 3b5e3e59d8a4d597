"""The LightningDataModule around data.py."""

from functools import cached_property
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader

from . import data
from .contracts import collate_fn
from .errors import UserError
from .loader import TrainLoader, TrainSampler, collate, even_batches


class Data(LightningDataModule):
    """Loads batches of data.py."""

    def __init__(
        self,
        source: data.DataConfig,
        batch_size: int = 128,
        workers: int = 0,
        pin_memory: bool = True,
        seed: int = 0,
    ) -> None:
        """Keep the options.

        Args:
            source: The options of data.py.
            batch_size: Samples per forward pass and rank.
            workers: Loader processes per rank. 0 for data in memory; about 4 per GPU for files.
            pin_memory: Use page-locked host memory, so that copies to a GPU are asynchronous.
            seed: Seed of the sample order; it is `seed_everything`.
        """
        super().__init__()
        self.source, self.batch_size, self.workers, self.pin_memory = (
            source,
            batch_size,
            workers,
            pin_memory,
        )
        # first: batches of the epoch that were trained before a resumed run
        self.seed, self.first = (
            seed,
            0,
        )

    @cached_property
    def splits(self) -> tuple[Any, Any, data.Spec]:
        """Training set, validation set and their `Spec`."""
        return data.load(self.source)

    @property
    def spec(self) -> data.Spec:
        """What the model needs to know; linked to `model.spec`."""
        return self.splits[2]

    def train_dataloader(self) -> DataLoader[Any]:
        samples, trainer = self.splits[0], cast("Trainer", self.trainer)
        ranks, rank, accumulate = (
            trainer.world_size,
            trainer.global_rank,
            trainer.accumulate_grad_batches,
        )
        if (needed := self.batch_size * accumulate * ranks) > len(samples):
            too_large = f"the global batch of {needed} samples is larger than the training set of {len(samples)}"
            raise UserError(f"{too_large}: lower data.batch_size")
        sampler = TrainSampler(len(samples), self.batch_size, accumulate, ranks, rank, self.seed)
        loader = TrainLoader(samples, self.batch_size, sampler=sampler, **self.options(samples))
        loader.first = self.first
        return loader

    def state_dict(self) -> dict[str, int]:
        """Return the position in the epoch, which Lightning keeps in each checkpoint."""
        trainer: Any = self.trainer
        progress, batches = (
            trainer.fit_loop.epoch_loop.batch_progress.current,
            trainer.num_training_batches,
        )
        # LearningRateFinder saves before batches is finite
        return {"batches": int(progress.processed % batches)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Keep the position for `train_dataloader`, which Lightning calls later."""
        self.first = state["batches"]

    def val_dataloader(self) -> DataLoader[Any]:
        return self.even_loader(self.splits[1])

    def even_loader(self, samples: Any) -> DataLoader[Any]:
        """Return a loader of each sample once, with equally many batches per rank."""
        trainer = cast("Trainer", self.trainer)
        order = even_batches(len(samples), self.batch_size, trainer.world_size, trainer.global_rank)
        return DataLoader(samples, batch_sampler=order, **self.options(samples))

    predict_dataloader = val_dataloader

    def test_dataloader(self) -> DataLoader[Any]:
        load_test = getattr(data, "load_test", None)  # your own data.py may have none
        samples = load_test(self.source) if load_test else None
        if samples is None:
            raise UserError(
                "there is no test split: "
                "train with data.source.test_fraction, or see load_test in data.py"
            )
        return self.even_loader(samples)

    def options(self, samples: Any) -> dict[str, Any]:
        """Return the options of every loader."""
        pin = self.pin_memory and torch.accelerator.is_available()
        made = {
            "collate_fn": collate_fn(samples) or collate,
            "persistent_workers": self.workers > 0,
        }
        return {"num_workers": self.workers, "pin_memory": pin, **made}
