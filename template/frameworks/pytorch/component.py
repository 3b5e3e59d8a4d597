"""What a component may do, and what happens without one: `fastproj add NAME` adds a component.

Without components, train.py calls `Component` itself.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from .checkpoint import Checkpoints
from .config import BaseConfig
from .contracts import Metrics
from .distributed import Parallel, World, data_parallel
from .loader import BatchPlan
from .optim import OneCycle, adamw
from .precision import use_channels_last
from .run import Run


class Step(NamedTuple):
    """The two halves of a training step, which components may wrap."""

    compute_gradients: Callable[[Any, bool, bool], Metrics]
    """Of a micro-batch, and whether it is the first and the last one of the step."""
    update_weights: Callable[[], Tensor]
    """Returns the norm of the gradients before clipping."""


class Component:
    """A component, built as `Name(cfg, world)` with its section if that has `enabled: true`."""

    name: ClassVar[str]
    conflicts: ClassVar[tuple[str, ...]] = ()
    """Names of components that do not work with this one."""

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        """Refuse a config, before anything is built; `enabled` has the names of all components."""

    def wrap_dataset(self, dataset: Any) -> Any:
        """Return the dataset to load batches from, such as a stream or a cache on the device."""
        return dataset

    def convert_model(self, model: nn.Module) -> nn.Module:
        """Change the model before it is parallelized: freeze, LoRA, activation checkpointing."""
        return model

    def parallelize(
        self,
        model: nn.Module,
        cfg: BaseConfig,
        world: World,
    ) -> Parallel:
        """Move the model to the device, and distribute it."""
        return data_parallel(model, world, use_channels_last(cfg.speed, world.device))

    def build_optimizer(self, model: nn.Module, cfg: BaseConfig) -> Optimizer:
        """Build the optimizer."""
        return adamw(model, cfg.optim)

    def build_schedule(self, plan: BatchPlan, cfg: BaseConfig) -> OneCycle:
        """Build the learning-rate schedule; others derive from `OneCycle`."""
        return OneCycle(cfg.optim, plan)

    def checkpointer(self, run: Run) -> Checkpoints:
        """Return what writes and reads checkpoints."""
        return Checkpoints(run.folder, run.cfg.run.keep, run.world)

    def wrap_step(self, run: Run, step: Step) -> Step:
        """Wrap one or both halves of a step.

        Who calls `compute_gradients` again after an error resets the gradients first.
        """
        return step

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

    @contextmanager
    def training(self, run: Run) -> Iterator[None]:
        """The context of the loop."""
        try:
            yield
        finally:
            self.on_train_end(run)

    def on_train_end(self, run: Run) -> None:
        """Called when the training ends: after the last step, a stop or an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state; `load_weights` prefers its item `eval_weights` to the trained ones."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; empty if the checkpoint was saved without this component."""
