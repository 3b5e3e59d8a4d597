"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Metrics = Mapping[str, tuple[Any, ...]]
"""By name: its sum over a batch, and the count to divide by. Must have "loss".

Sums of shape (k,), such as one per
class, give the mean over the entries that have a count."""


class Means:
    """Collects the metrics of batches; nothing waits for the device."""

    def __init__(self) -> None:
        self.batches: list[Metrics] = []

    def add(self, metrics: Metrics) -> None:
        """Add copies of the metrics of one batch, as the next step of a CUDA graph overwrites them."""
        self.batches.append({name: tuple(map(_copy, pair)) for name, pair in metrics.items()})
        if len(self.batches) == 1000:
            self.batches = [self.totals()]

    def totals(self) -> dict[str, tuple[Tensor, ...]]:
        """Return the sum and the count of each metric over the batches."""
        device = self.batches[0]["loss"][0].device
        columns = {
            name: zip(*(batch[name] for batch in self.batches), strict=True)
            for name in sorted(self.batches[0])
        }
        return {
            name: tuple(_add_up(values, device) for values in pair)
            for name, pair in columns.items()
        }

    def read(self, all_gather: Callable[[Tensor], Any]) -> dict[str, Tensor]:
        """Return the means over all ranks since the last call, on the device."""
        means = {}
        for name, pair in self.totals().items():
            sums = torch.stack(torch.broadcast_tensors(*pair))
            total, count = all_gather(sums).view(-1, *sums.shape).sum(0)
            counted = count != 0
            means[name] = (total / count).where(counted, 0).sum() / counted.sum()
        self.batches = []
        return means


def _copy(value: Tensor | float) -> Tensor | float:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _add_up(values: tuple[Tensor | float, ...], device: torch.device) -> Tensor:
    # some have no float64
    dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64
    tensors = [value for value in values if isinstance(value, Tensor)]
    plain = sum(value for value in values if not isinstance(value, Tensor))
    start = torch.full((), plain, dtype=dtype, device=device)
    return torch.stack(tensors).to(dtype).sum(0) + start if tensors else start


def compute_loss(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
    """Call the network with a prepared batch as its arguments: by position for a tuple, by name for a dict."""
    found: tuple[Tensor, Metrics] = net(**batch) if isinstance(batch, dict) else net(*batch)
    return found
