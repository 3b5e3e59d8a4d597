"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from .contracts import Metrics


class Means(Metric):
    """The means of a model's metrics, over the batches since `reset` and over all ranks.

    torchmetrics' MeanMetric waits for the device in each step, and has no mean over classes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def update(self, metrics: Metrics) -> None:
        """Add the sums and counts of a batch."""
        for name, pair in metrics.items():
            if name not in self.names:
                self.names.append(name)
                self._add_state(f"{name}_sum", pair[0])
                self._add_state(f"{name}_count", pair[1])
            getattr(self, f"{name}_sum").add_(pair[0])
            getattr(self, f"{name}_count").add_(pair[1])

    def _add_state(self, state: str, value: Tensor | float) -> None:
        # some devices have no float64
        no_float64 = self.device.type in ("mps", "xpu")
        zeros = torch.zeros(
            torch.as_tensor(value).shape,
            dtype=torch.float32 if no_float64 else torch.float64,
            device=self.device,
        )
        self.add_state(state, zeros, dist_reduce_fx="sum")

    def compute(self) -> dict[str, Tensor]:
        """Return each sum divided by its count; of several, the mean over those with a count."""
        means = {}
        for name in self.names:
            total = getattr(self, f"{name}_sum")
            count = getattr(self, f"{name}_count")
            means[name] = (total / count).nanmean()
        return means


def compute_loss(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
    """Call the model with a prepared batch: by name for a dict, by position for a tuple."""
    result: tuple[Tensor, Metrics] = net(**batch) if isinstance(batch, dict) else net(*batch)
    return result
