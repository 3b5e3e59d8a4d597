"""Exponential moving average of the parameters, used for validation and by `load_weights`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..component import Component
from ..config_base import Section, within
from ..distributed import World
from ..run import Run


@dataclass(frozen=True)
class EmaConfig(Section):
    """Exponential moving average of the parameters."""

    enabled: bool = False
    """Average the parameters, and validate with the average."""
    decay: float = within("(0, 1)", 0.999)
    """Decay per optimizer step; at most (1 + n) / (10 + n) after n steps, so that the random start
    is forgotten."""


class Ema(Component):
    """Averages the parameters.

    Buffers, such as BatchNorm's running statistics, are those of the trained model.
    """

    name = "ema"

    def __init__(
        self,
        cfg: EmaConfig,
        world: World,
    ) -> None:
        self.decay = cfg.decay
        self.average: dict[str, Tensor] = {}
        self.averages: list[Tensor] = []
        self.parameters: list[Tensor] = []
        """As lists of this rank's tensors, so that an update is one kernel."""

    def on_train_start(self, run: Run) -> None:
        copies = {}
        for weight in run.model.parameters():
            copies[weight] = weight.detach().clone()
            self.averages.append(_local(copies[weight]))
            self.parameters.append(_local(weight))
        # a tied weight has two names
        for name, weight in run.model.named_parameters(remove_duplicate=False):
            self.average[name] = copies[weight]

    def on_step_end(self, run: Run) -> None:
        early = (1 + run.step) / (10 + run.step)
        update = get_ema_multi_avg_fn(min(self.decay, early))
        update(self.averages, self.parameters, 0)

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        trained = [weight.clone() for weight in self.parameters]
        _copy(self.averages, self.parameters)
        try:
            yield
        finally:
            _copy(trained, self.parameters)

    def state_dict(self) -> dict[str, Any]:
        return {"eval_weights": self.average}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
    ) -> None:
        """Restore the average; a run that had none starts with its weights."""
        _copy(self.parameters, self.averages)
        saved = state.get("eval_weights", {})
        for name, value in saved.items():
            average = _local(self.average[name])
            average.copy_(_local(value))


@torch.no_grad()
def _copy(
    values: list[Tensor],
    to: list[Tensor],
) -> None:
    for value, target in zip(values, to, strict=True):
        target.copy_(value)


def _local(value: Tensor) -> Tensor:
    """Return this rank's shard of a sharded tensor; else the tensor."""
    if hasattr(value, "to_local"):
        value = value.to_local()
    return value.detach()
