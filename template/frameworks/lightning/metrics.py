"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from .contracts import Metrics


class Means(Metric):
    """The means of all metrics of a model, over the batches since `reset` and over all ranks."""

    def update(self, metrics: Metrics) -> None:
        """Add the sums and counts of a batch."""
        for name, pair in metrics.items():
            for kind, value in zip(("sum", "count"), pair, strict=True):
                state = f"{name}_{kind}"
                if not hasattr(self, state):
                    self.add_state(state, self._zeros(value), dist_reduce_fx="sum")
                getattr(self, state).add_(value)
        self.names = list(metrics)

    def _zeros(self, value: Tensor | float) -> Tensor:
        # some devices have no float64
        dtype = torch.float32 if self.device.type in ("mps", "xpu") else torch.float64
        return torch.zeros(torch.as_tensor(value).shape, dtype=dtype, device=self.device)

    def compute(self) -> dict[str, Tensor]:
        """Return each sum divided by its count; of several, the mean over those with a count."""
        means = {}
        for name in self.names:
            quotients = getattr(self, f"{name}_sum") / getattr(self, f"{name}_count")
            means[name] = quotients.nanmean()
        return means


def compute_loss(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
    """Call the model with a prepared batch: by name for a dict, by position for a tuple."""
    result: tuple[Tensor, Metrics] = net(**batch) if isinstance(batch, dict) else net(*batch)
    return result
