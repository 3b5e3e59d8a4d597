"""An exponential moving average of the weights: `train.ema`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Ema:
    """Averages weights and running statistics; under FSDP, this rank's share of them.

    The decay rises as min(decay, (1 + n) / (10 + n)) over the first updates n, so that a short run's average is not
    of its random start; TensorFlow's ExponentialMovingAverage has the same rule.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        self.average = {name: value.detach().clone() for name, value in self.live.items()}
        # The tensors themselves, taken out once: an update is one kernel and no walk over the names.
        self._live = [_local(value) for value in self.live.values()]
        self._average = [_local(value) for value in self.average.values()]

    def update(self, updates: int) -> None:
        """Take in the weights after `updates` optimizer steps."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        get_ema_multi_avg_fn(decay)(self._average, self._live, 0)

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """Put the average into the model while the context lasts; no tensor moves, so graphs and kernels stay valid."""
        kept = {name: _local(value).clone() for name, value in self.live.items()}
        self._fill(self.average)
        try:
            yield
        finally:
            self._fill(kept)

    def load(self, average: dict[str, Tensor]) -> None:
        """Go on from a checkpoint's average."""
        for name, mine in self.average.items():
            _local(mine).copy_(_local(average[name]))

    def _fill(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            _local(self.live[name]).copy_(_local(value))


def _local(value: Tensor) -> Tensor:
    """The share of a weight that lies on this rank, under FSDP; else the weight."""
    return value.to_local().detach() if hasattr(value, "to_local") else value.detach()
