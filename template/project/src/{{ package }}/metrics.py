"""Metrics as sums and counts, kept on the device, exact over any batches and ranks."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from .distributed import World, noise
from .loaders import Batch

Sums = dict[str, tuple[Tensor, Tensor | int]]
"""By metric: its sum over the samples of a batch, and what to divide by."""


class Meter:
    """Adds up what the model reports; nothing waits for the device until `read`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}

    def add(self, metrics: Sums) -> None:
        """Take in one batch."""
        for name, (total, count) in metrics.items():
            self.sums[name] = self.sums.get(name, 0) + total.double()
            self.counts[name] = self.counts.get(name, 0) + count

    def read(self) -> dict[str, float]:
        """Return each metric's mean over all that every rank took in, and begin anew. All ranks must call it."""
        names = sorted(self.sums)
        rows = [torch.stack([self.sums[name], self._tensor(self.counts[name])]) for name in names]
        self.sums, self.counts = {}, {}
        if not rows:
            return {}
        everywhere = self.world.sum(torch.stack(rows)).tolist()
        return {name: total / count for name, (total, count) in zip(names, everywhere, strict=True)}

    def _tensor(self, count: Tensor | int) -> Tensor:
        return torch.as_tensor(count, dtype=torch.float64, device=self.world.device)


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    prepare: nn.Module,
    autocast: AbstractContextManager[object],
    world: World,
) -> dict[str, float]:
    """Return the metrics over all batches of all ranks. Every rank needs at least one batch, in any number."""
    meter = Meter(world)
    was_training = model.training
    model.eval()
    generator = noise(world.device, 0, 0, 0)
    for batch in batches:
        with autocast:
            _, metrics = model(*prepare(batch, False, generator))
        meter.add(metrics)
    model.train(was_training)
    return meter.read()
