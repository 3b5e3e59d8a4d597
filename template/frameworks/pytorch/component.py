"""What a component may do: `fastproj add NAME` adds one to components/.

Without components, read on elsewhere: each method of `Components` then does what its docstring
says of the core, or nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from .checkpoint import Checkpoints
from .config import BaseConfig
from .contracts import Metrics, needs_gradients_in_validation
from .distributed import Parallel, World, data_parallel
from .errors import UserError
from .loader import BatchPlan
from .optim import OneCycle, adamw
from .precision import use_channels_last
from .run import Run

T = TypeVar("T")


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
    needs_gradients_in_validation: ClassVar[bool] = False
    """Whether the model fails under `torch.inference_mode`."""

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
    ) -> Parallel | None:
        """Return the model on the device, instead of `data_parallel`."""

    def build_optimizer(
        self,
        model: nn.Module,
        cfg: BaseConfig,
    ) -> Optimizer | None:
        """Return the optimizer instead of AdamW."""

    def build_schedule(
        self,
        plan: BatchPlan,
        cfg: BaseConfig,
    ) -> OneCycle | None:
        """Return another learning-rate schedule, which derives from `OneCycle`."""

    def checkpointer(self, run: Run) -> Checkpoints | None:
        """Return what writes and reads checkpoints instead of `Checkpoints`."""

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

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        """Called with the metrics of a validation, within `eval_weights`; it may add to them."""

    def on_train_end(self, run: Run) -> None:
        """Called when the training ends: after the last step, a stop or an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state; `load_weights` prefers an item `eval_weights` to those trained."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; empty if the checkpoint was saved without this component."""


class Components(list[Component]):
    """The enabled components, called in order: train.py calls each method once."""

    def check(self, cfg: BaseConfig) -> None:
        """Refuse components that exclude each other, and what each of them refuses."""
        enabled = [component.name for component in self]
        for component in self:
            component.check(cfg, enabled)
            for other in component.conflicts:
                if other in enabled:
                    pair = f"{component.name}.enabled and {other}.enabled"
                    raise UserError(f"{pair} exclude each other: set one of them to false")
        for hook in ("parallelize", "build_optimizer", "build_schedule", "checkpointer"):
            default = getattr(Component, hook)
            names = [it.name for it in self if getattr(type(it), hook) is not default]
            if len(names) > 1:
                both = f"{' and '.join(names)} replace the same thing"
                raise UserError(f"{both}: set enabled of one of them to false")

    def need_gradients_in_validation(self, model: nn.Module) -> bool:
        """Whether the model, or a component, does not work under `torch.inference_mode`."""
        own = any(component.needs_gradients_in_validation for component in self)
        return own or needs_gradients_in_validation(model)

    def wrap_dataset(self, dataset: Any) -> Any:
        """Pass a dataset through each component."""
        for component in self:
            dataset = component.wrap_dataset(dataset)
        return dataset

    def convert_model(self, model: nn.Module) -> nn.Module:
        """Pass the model through each component."""
        for component in self:
            model = component.convert_model(model)
        return model

    def wrap_step(self, run: Run, step: Step) -> Step:
        """Pass the step through each component; the last one is called first."""
        for component in self:
            step = component.wrap_step(run, step)
        return step

    def parallelize(
        self,
        model: nn.Module,
        cfg: BaseConfig,
        world: World,
    ) -> Parallel:
        """Distribute the model by DistributedDataParallel, if no component does it otherwise."""
        own = _first(component.parallelize(model, cfg) for component in self)
        return own or data_parallel(
            model,
            world,
            use_channels_last(cfg.speed, world.device),
        )

    def build_optimizer(
        self,
        model: nn.Module,
        cfg: BaseConfig,
    ) -> Optimizer:
        """Build AdamW, if no component builds another optimizer."""
        own = _first(component.build_optimizer(model, cfg) for component in self)
        return own or adamw(model, cfg.optim)

    def build_schedule(
        self,
        plan: BatchPlan,
        cfg: BaseConfig,
    ) -> OneCycle:
        """Build 1cycle, if no component builds another schedule."""
        own = _first(component.build_schedule(plan, cfg) for component in self)
        return own or OneCycle(cfg.optim, plan)

    def checkpointer(self, run: Run) -> Checkpoints:
        """Return what writes the checkpoints: a component, or rank 0."""
        own = _first(component.checkpointer(run) for component in self)
        return own or Checkpoints(
            run.folder,
            run.cfg.run.keep,
            run.world,
        )

    def on_train_start(self, run: Run) -> None:
        """Call each component."""
        for component in self:
            component.on_train_start(run)

    def on_step_end(self, run: Run) -> None:
        """Call each component."""
        for component in self:
            component.on_step_end(run)

    def on_log(self, run: Run, row: dict[str, float]) -> None:
        """Call each component."""
        for component in self:
            component.on_log(run, row)

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        """Call each component."""
        for component in self:
            component.on_validation(run, results)

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        """Enter the context of each component."""
        with ExitStack() as stack:
            for component in self:
                stack.enter_context(component.eval_weights(run))
            yield

    @contextmanager
    def training(self, run: Run) -> Iterator[None]:
        """Call `on_train_end` of each component at the end of the context."""
        with ExitStack() as stack:
            for component in self:
                stack.callback(component.on_train_end, run)
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each component, by its name."""
        return {component.name: component.state_dict() for component in self}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each component."""
        for component in self:
            component.load_state_dict(state.get(component.name, {}))


def _first(built: Iterator[T | None]) -> T | None:
    return next((part for part in built if part is not None), None)
