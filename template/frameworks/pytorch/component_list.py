"""Several components as one, which train.py calls."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .checkpoint import Checkpoints
from .component import Component, Step
from .config import BaseConfig
from .distributed import Parallel, World
from .errors import UserError
from .loader import BatchPlan
from .optim import OneCycle
from .run import Run

EXCLUSIVE = (
    "parallelize",
    "build_optimizer",
    "build_schedule",
    "checkpointer",
)
"""What only one component may do."""


class ComponentList(Component):
    """Calls each component, in order."""

    def __init__(self, components: list[Component]) -> None:
        self.components = components

    def _owner(self, method: str) -> Component:
        """Return the component that has an exclusive method, or the core's."""
        return next(iter(self._owners(method)), Component())

    def _owners(self, method: str) -> list[Component]:
        core = getattr(Component, method)
        return [part for part in self.components if getattr(type(part), method) is not core]

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        """Refuse components that exclude each other, and what each of them refuses."""
        names = [component.name for component in self.components]
        for component in self.components:
            component.check(cfg, names)
            for other in component.conflicts:
                if other in names:
                    pair = f"{component.name}.enabled and {other}.enabled"
                    raise UserError(f"{pair} exclude each other: set one of them to false")
        for method in EXCLUSIVE:
            owners = [component.name for component in self._owners(method)]
            if len(owners) > 1:
                both = f"{' and '.join(owners)} replace the same thing"
                raise UserError(f"{both}: set enabled of one of them to false")

    def wrap_dataset(self, dataset: Any) -> Any:
        for component in self.components:
            dataset = component.wrap_dataset(dataset)
        return dataset

    def convert_model(self, model: nn.Module) -> nn.Module:
        for component in self.components:
            model = component.convert_model(model)
        return model

    def parallelize(self, model: nn.Module, cfg: BaseConfig, world: World) -> Parallel:
        return self._owner("parallelize").parallelize(model, cfg, world)

    def build_optimizer(self, model: nn.Module, cfg: BaseConfig) -> Optimizer:
        return self._owner("build_optimizer").build_optimizer(model, cfg)

    def build_schedule(self, plan: BatchPlan, cfg: BaseConfig) -> OneCycle:
        return self._owner("build_schedule").build_schedule(plan, cfg)

    def checkpointer(self, run: Run) -> Checkpoints:
        return self._owner("checkpointer").checkpointer(run)

    def wrap_step(self, run: Run, step: Step) -> Step:
        """The last component is called first."""
        for component in self.components:
            step = component.wrap_step(run, step)
        return step

    def on_train_start(self, run: Run) -> None:
        for component in self.components:
            component.on_train_start(run)

    def on_step_end(self, run: Run) -> None:
        for component in self.components:
            component.on_step_end(run)

    def on_log(self, run: Run, row: dict[str, float]) -> None:
        for component in self.components:
            component.on_log(run, row)

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        with ExitStack() as stack:
            for component in self.components:
                stack.enter_context(component.eval_weights(run))
            yield

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        for component in self.components:
            component.on_validation(run, results)

    @contextmanager
    def training(self, run: Run) -> Iterator[None]:
        """Call `on_train_end` of each, also after an error of another one."""
        with ExitStack() as stack:
            for component in self.components:
                stack.enter_context(component.training(run))
            yield

    def state_dict(self) -> dict[str, Any]:
        return {component.name: component.state_dict() for component in self.components}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for component in self.components:
            component.load_state_dict(state.get(component.name, {}))
