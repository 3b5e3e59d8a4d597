"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from .contracts import Metrics


class Means(Metric):  # type: ignore[misc, unused-ignore]  # mypy may not read torchmetrics
    """The means of a model's metrics, over the batches since `reset` and over all ranks.

    torchmetrics' MeanMetric waits for the device in each step, and has no mean over classes.
    """

    names: Sequence[str] = ()

    def __init__(self, of_nothing: float = math.nan) -> None:
        super().__init__()
        self.of_nothing = of_nothing  # the mean if nothing counts: no validation is then the best

    def update(self, metrics: Metrics) -> None:
        """Add the sums and counts of a batch."""
        self.names = list(metrics)
        for name, (total, count) in metrics.items():
            self._add(f"{name}_sum", total)
            self._add(f"{name}_count", count)

    def _add(self, state: str, value: Tensor | float) -> None:
        if not hasattr(self, state):
            # some devices have no float64
            no_float64 = self.device.type in ("mps", "xpu")
            zeros = torch.zeros(
                torch.as_tensor(value).shape,
                dtype=torch.float32 if no_float64 else torch.float64,
                device=self.device,
            )
            self.add_state(state, zeros, dist_reduce_fx="sum")
        getattr(self, state).add_(value)

    def compute(self) -> dict[str, Tensor]:
        """Return each sum divided by its count; of several, the mean over those with a count."""
        means = {}
        for name in self.names:
            total = getattr(self, f"{name}_sum")
            count = getattr(self, f"{name}_count")
            mean = (total / count).nanmean()
            means[name] = torch.where(count.any(), mean, self.of_nothing)
        return means
