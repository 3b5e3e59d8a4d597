"""Metrics as sums and counts, kept on the device, exact over any batches and ranks."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

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
        self.dtype = torch.float32 if world.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}

    def add(self, metrics: Sums) -> None:
        """Take in one batch."""
        for name, (total, count) in metrics.items():
            self.sums[name] = self.sums.get(name, 0) + total.to(self.dtype)
            self.counts[name] = self.counts.get(name, 0) + count

    def read(self) -> dict[str, float]:
        """Return each metric's mean over all that every rank took in, and begin anew. All ranks must call it."""
        names = sorted(self.sums)
        as_tensor = partial(torch.as_tensor, dtype=self.dtype, device=self.world.device)
        rows = [torch.stack([self.sums[name], as_tensor(self.counts[name])]) for name in names]
        self.sums, self.counts = {}, {}
        if not rows:
            return {}
        everywhere = self.world.sum(torch.stack(rows)).tolist()
        return {name: total / count for name, (total, count) in zip(names, everywhere, strict=True)}


@torch.inference_mode()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], prepare: nn.Module, autocast: AbstractContextManager[Any], world: World
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
