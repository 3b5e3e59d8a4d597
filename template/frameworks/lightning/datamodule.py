"""The data of a run as a LightningDataModule."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import lightning.pytorch as lightning

from .contracts import Batch
from .loaders import Loader, TrainOrder
from .run import Run


class TrainBatches:
    """The micro-batches of one epoch; of the present one, those that are left."""

    def __init__(self, run: Run) -> None:
        self.run, self.plan = run, run.parts.plan

    def __iter__(self) -> Iterator[Batch]:
        step, plan = self.run.progress.step, self.plan
        left = min(plan.steps_per_epoch - step % plan.steps_per_epoch, plan.total_steps - step)
        return (self.run.fetch() for _ in range(left * plan.accumulate))

    def __len__(self) -> int:
        return self.plan.steps_per_epoch * self.plan.accumulate

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the position is that of the run."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing, as `state_dict`; that both exist tells Lightning that it can resume within an epoch."""


class ValBatches:
    """The validation batches of this rank."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.run.val_loader)

    def __len__(self) -> int:
        return self.run.parts.eval_order.rounds


class TrialBatches:
    """Batches of another size, for `Tuner.scale_batch_size`."""

    def __init__(self, run: Run, batch_size: int) -> None:
        parts, cfg = run.parts, run.parts.cfg
        plan = replace(parts.plan, micro_batch=batch_size, accumulate=1, world_size=1)
        order = TrainOrder(plan, 0, cfg.run.seed, 0, parts.data.train)
        self.dataset, self.length = parts.data.train, plan.steps_per_epoch
        self.loader = Loader(self.dataset, order, cfg.loader, parts.workers, parts.world, cfg.run.seed)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)

    def __len__(self) -> int:
        return self.length


class DataModule(lightning.LightningDataModule):
    """The training and validation split of a run; test and prediction use the latter."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.batch_size = run.parts.plan.micro_batch
        """Samples per micro-batch; `Tuner.scale_batch_size` tries others, and `train.micro_batch` sets it."""

    def train_dataloader(self) -> TrainBatches | TrialBatches:
        if self.batch_size == self.run.parts.plan.micro_batch:
            return TrainBatches(self.run)
        return TrialBatches(self.run, self.batch_size)

    def val_dataloader(self) -> ValBatches:
        return ValBatches(self.run)

    def test_dataloader(self) -> ValBatches:
        return ValBatches(self.run)

    def predict_dataloader(self) -> ValBatches:
        return ValBatches(self.run)
