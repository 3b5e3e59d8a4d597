"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from .contracts import Metrics


class Means(Metric):  # type: ignore[misc, unused-ignore]  # mypy may not read torchmetrics
    """The means of a model's metrics, over the batches since `reset` and over all ranks.

    torchmetrics' MeanMetric has no mean over classes.
    """

    def __init__(self, loss_of_none: float = math.nan) -> None:
        super().__init__()
        self.loss_of_none = loss_of_none  # with NaN, a validation is never the best
        self.names: list[str] = []

    def update(self, metrics: Metrics) -> None:
        """Add the sums and counts of a batch."""
        for name, (total, count) in metrics.items():
            if not hasattr(self, f"{name}_sums"):
                self.add_state(f"{name}_sums", self._zeros(total), dist_reduce_fx="sum")
                self.names.append(name)
            sums, counts = getattr(self, f"{name}_sums")
            sums.add_(total)
            counts.add_(count)

    def _zeros(self, total: Tensor | float) -> Tensor:
        no_float64 = self.device.type in ("mps", "xpu")
        dtype = torch.float32 if no_float64 else torch.float64
        size = torch.as_tensor(total).shape
        return torch.zeros(
            2,
            *size,
            dtype=dtype,
            device=self.device,
        )

    def compute(self) -> dict[str, Tensor]:
        """Return each sum divided by its count; of several, the mean over those with a count."""
        means = {}
        for name in self.names:
            sums, counts = getattr(self, f"{name}_sums")
            none = self.loss_of_none if name == "loss" else math.nan
            has_count = counts != 0
            total = torch.where(has_count, sums / counts, 0).sum()
            means[name] = torch.where(has_count.any(), total / has_count.sum(), none)
        return means
