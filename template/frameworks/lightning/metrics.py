"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Metrics = Mapping[str, tuple[Any, ...]]
"""By name: its sum over a batch, and the count to divide by. Must have "loss". Sums of shape (k,), such as one per
class, give the mean over the entries that have a count."""


class Means:
    """Adds up the metrics of batches; nothing waits for the device."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one batch."""
        device = metrics["loss"][0].device
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64  # some have no float64
        for name, pair in metrics.items():
            found = [
                it.detach().to(dtype) if isinstance(it, Tensor) else torch.full((), it, dtype=dtype) for it in pair
            ]
            added = torch.stack(torch.broadcast_tensors(*(it.to(device, non_blocking=True) for it in found)))
            self.sums[name] = self.sums[name] + added if name in self.sums else added

    def read(self, all_gather: Callable[[Tensor], Any]) -> dict[str, Tensor]:
        """Return the means over all ranks since the last call, on the device."""
        means = {}
        for name, sums in sorted(self.sums.items()):
            total, count = all_gather(sums).view(-1, *sums.shape).sum(0)
            counted = count != 0
            means[name] = (total / count).where(counted, 0).sum() / counted.sum()
        self.sums = {}
        return means


def call(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
    """Call the network with a prepared batch as its arguments: by position for a tuple, by name for a dict."""
    found: tuple[Tensor, Metrics] = net(**batch) if isinstance(batch, dict) else net(*batch)
    return found
