"""The points of a run at which an option can act, or code of yours: a tracker, drawn samples, a criterion to stop.

class Tracker(Hook):
    def after_row(self, split, step, row):
        self.tracker.log({f"{split}/{name}": value for name, value in row.items()}, step=step)

train(cfg, hooks=[Tracker()])    # as in `from <package> import Config, train`; a script of yours is in the README
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn


class Hook:
    """What an option adds to a run. Every method does nothing unless a technique overrides it."""

    def running(self, model: nn.Module, folder: Path) -> AbstractContextManager[Any]:
        """Context of the whole training loop; `folder` is the run's."""
        return nullcontext()

    def before_step(self, step: int) -> None:
        """Called at the start of optimizer step `step`, counted from 0."""

    def after_update(self, updates: int) -> None:
        """Called when the weights were updated for the `updates`-th time."""

    def before_log(self) -> None:
        """Called before metrics are fetched from the device, for a row or a checkpoint, which synchronizes with it."""

    def on_metrics(self, row: dict[str, float]) -> bool:
        """Add to the row of training metrics; return whether to end the run here, unlogged but validated."""
        return False

    def on_validation(self, results: dict[str, float], model: nn.Module) -> None:
        """Add to the metrics of a validation, on all ranks alike.

        `model` is in evaluation mode, with the weights that were validated, such as the average of `train.ema`.
        """

    def after_row(self, split: str, step: int, row: Mapping[str, float]) -> None:
        """Called on rank 0 when a row of metrics was logged: of "train" or "val", after `step` optimizer steps."""

    def eval_weights(self) -> AbstractContextManager[Any]:
        """Context in which the model holds the weights to validate."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, by names of its own: tensors, numbers, strings, lists and dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from a checkpoint's whole state."""

    def rank_state(self) -> dict[str, Tensor]:
        """Return tensors that differ between the ranks, by names of its own."""
        return {}

    def manifest(self) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says, by names of its own. All ranks call it."""
        return {}

    def finish(self, folder: Path, is_main: bool) -> None:
        """Called once when all steps are done."""
