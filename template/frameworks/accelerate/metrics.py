"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from .contracts import Metrics, Prepare
from .loss import compute_loss


class Means:
    """Adds up the metrics of batches; only `read` waits for the device."""

    def __init__(self, accelerator: Accelerator, of_nothing: float = math.nan) -> None:
        self.accelerator = accelerator
        self.of_nothing = of_nothing  # the mean if nothing counts: no validation is then the best
        # some devices have no float64
        low = accelerator.device.type in ("mps", "xpu")
        self.dtype = torch.float32 if low else torch.float64
        self.totals: dict[str, Tensor] = {}

    def add(self, metrics: Metrics) -> None:
        """Add a batch's metrics."""
        for name, (total, count) in metrics.items():
            pair = torch.broadcast_tensors(self._tensor(total), self._tensor(count))
            self.totals[name] = self.totals.get(name, 0) + torch.stack(pair)

    def read(self) -> dict[str, float]:
        """Return the means over all processes since the last call."""
        means = {}
        for name, own in sorted(self.totals.items()):
            sums, counts = self.accelerator.reduce(own)
            counted = counts > 0
            mean = (sums[counted] / counts[counted]).mean().item()
            means[name] = mean if counted.any() else self.of_nothing
        self.totals = {}
        return means

    def _tensor(self, value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.detach().to(self.dtype)
        return torch.full(
            (),
            value,
            dtype=self.dtype,
            device=self.accelerator.device,
        )


@torch.no_grad()  # and not inference mode: the loss may have derivatives in it
def evaluate(
    accelerator: Accelerator, net: nn.Module, batches: Iterable[Any], prepare: Prepare
) -> dict[str, float]:
    """Return the metrics of all samples in the prepared batches."""
    means = Means(accelerator)
    generator = seed_batch(accelerator.process_index, accelerator.device)
    net.eval()
    for loaded in batches:
        _, metrics = compute_loss(net, prepare(loaded, False, generator))
        means.add(metrics)
    net.train()
    return means.read()


def seed_batch(number: int, device: torch.device) -> torch.Generator:
    """Seed the random numbers of a micro-batch: dropout, and the returned one for augmentation."""
    default = torch.manual_seed(number % 2**63)
    return default if device.type == "cpu" else torch.Generator(device).manual_seed(number % 2**63)
