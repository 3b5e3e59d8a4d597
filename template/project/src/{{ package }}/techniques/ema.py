"""Exponential moving average of the weights: `train.ema`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..distributed import World
from ..hooks import Hook


class Ema(Hook):
    """Averages weights and running statistics; under FSDP, this rank's shards of them.

    The decay rises as min(decay, (1 + n) / (10 + n)) over the first updates n, so that the average of a short run does
    not contain its random start; TensorFlow's ExponentialMovingAverage has the same rule.
    """

    def __init__(self, model: nn.Module, decay: float, world: World) -> None:
        self.model, self.decay, self.world = model, decay, world
        frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
        state = {name: value for name, value in model.state_dict().items() if name not in frozen}
        averaged = {name: value for name, value in state.items() if value.is_floating_point()}
        self.average = {name: value.detach().clone() for name, value in averaged.items()}
        # Collected once, so that an update is one kernel and no loop over names.
        self._live = [_local(value) for value in averaged.values()]
        self._average = [_local(value) for value in self.average.values()]

    def after_update(self, updates: int) -> None:
        """Add the weights after `updates` optimizer steps to the average."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        get_ema_multi_avg_fn(decay)(self._average, self._live, 0)

    @contextmanager
    @torch.no_grad()
    def eval_weights(self) -> Iterator[None]:
        """Context in which the model has the averaged weights. They are copied, so captured CUDA graphs stay valid."""
        state = self.model.state_dict()  # anew, as a model that was moved meanwhile has other tensors
        kept = {name: _local(state[name]).clone() for name in self.average}
        self._load(self.average)
        try:
            yield
        finally:
            self._load(kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the average, under "ema", with the same running statistics on every rank."""
        if self.world.world_size > 1 and next(self.model.buffers(), None) is not None:
            from .ddp import sync_buffers

            with self.eval_weights():
                sync_buffers(self.model, self.world)
                for name, buffer in self.model.named_buffers():
                    if name in self.average:
                        self.average[name].copy_(buffer)
        return {"ema": self.average}

    def rank_state(self) -> dict[str, Tensor]:
        """Return the averaged buffers."""
        return {f"ema.{name}": self.average[name] for name, _ in self.model.named_buffers() if name in self.average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the average; a run that had none starts with its weights."""
        saved = state.get("ema", state["model"])
        for name, value in self.average.items():
            _local(value).copy_(_local(saved[name]))

    def _load(self, values: dict[str, Tensor]) -> None:
        state = self.model.state_dict()
        for name, value in values.items():
            _local(state[name]).copy_(_local(value))


def _local(value: Tensor) -> Tensor:
    """Return the shard of a weight on this rank, under FSDP; else the weight."""
    return value.to_local().detach() if hasattr(value, "to_local") else value.detach()
