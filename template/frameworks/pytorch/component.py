"""What a component may do: `fastproj add NAME` adds one to components/.

A method does nothing unless overridden.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .checkpoint import Checkpoints
from .config import BaseConfig
from .errors import UserError
from .loader import BatchPlan
from .log import Run
from .metrics import Metrics
from .optim import OneCycle

# of a batch, its share of the loss, whether it is the last
ForwardBackward = Callable[[Any, float, bool], Metrics]
OptimizerStep = Callable[[], Tensor]  # returns the norm of the gradients before clipping
T = TypeVar("T")


class Component:
    """A component, built with its own section of the config as `Name(cfg, world)` if that has `enabled: true`."""

    name: ClassVar[str]

    def wrap_dataset(self, dataset: Any) -> Any:
        """Return the dataset to load batches from, such as a stream or a cache on the device."""
        return dataset

    def convert_model(self, model: nn.Module) -> nn.Module:
        """Change the model before it is parallelized: freeze, LoRA, fp8, activation checkpointing."""
        return model

    def parallelize(self, model: nn.Module, cfg: BaseConfig) -> nn.Module | None:
        """Return the model to call instead of DistributedDataParallel, on the device; it may have `no_sync`."""

    def build_optimizer(self, model: nn.Module, cfg: BaseConfig) -> torch.optim.Optimizer | None:
        """Return the optimizer instead of AdamW."""

    def build_schedule(self, plan: BatchPlan, cfg: BaseConfig) -> OneCycle | None:
        """Return another learning-rate schedule, which derives from `OneCycle`."""

    def checkpointer(self, run: Run) -> Checkpoints | None:
        """Return what writes and reads checkpoints instead of `Checkpoints`."""

    def wrap_step(
        self, run: Run, forward_backward: ForwardBackward, step: OptimizerStep
    ) -> tuple[ForwardBackward, OptimizerStep]:
        """Wrap both halves of a step.

        Who calls `forward_backward` again after an error resets the gradients first.
        """
        return forward_backward, step

    def on_train_start(self, run: Run) -> None:
        """Called when everything is built, before a checkpoint is loaded."""

    def on_step_end(self, run: Run) -> None:
        """Called after an optimizer step was counted."""

    def on_log(self, run: Run, row: dict[str, float]) -> None:
        """Called with a row of training metrics, on every rank; it may add to it."""

    def eval_weights(self, run: Run) -> AbstractContextManager[Any]:
        """Return the context of a validation, in which the model may have other weights."""
        return nullcontext()

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        """Called with the metrics of a validation, within `eval_weights`; it may add to them."""

    def on_train_end(self, run: Run) -> None:
        """Called when the training ends: after the last step, a stop or an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this component; `load_weights` prefers its `eval_weights`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; empty if the checkpoint was saved without this component."""


def only(components: Iterable[Component], build: Callable[[Component], T | None]) -> T | None:
    """Return what the one component builds that does; components that replace the same thing exclude each other."""
    found = {
        component.name: value for component in components if (value := build(component)) is not None
    }
    if len(found) > 1:
        raise UserError(
            f"{' and '.join(found)} replace the same thing: set enabled of one of them to false"
        )
    return next(iter(found.values()), None)
