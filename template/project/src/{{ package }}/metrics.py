"""Metrics as sums and counts, kept on the device, exact over any batches and ranks."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .distributed import World, noise
from .errors import UserError
from .loaders import Batch

Sums = dict[str, tuple[Tensor, Tensor | int]]
"""By metric: its sum over the samples of a batch, and what to divide by. Vectors (a class an entry, say) give the mean
over those entries that have a count."""


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
        rows = [torch.stack(torch.broadcast_tensors(self.sums[name], as_tensor(self.counts[name]))) for name in names]
        self.sums, self.counts = {}, {}
        if not rows:
            return {}
        everywhere = self.world.sum(torch.cat([row.flatten() for row in rows])).cpu()
        parts = everywhere.split([row.numel() for row in rows])
        return {name: _mean(*part.view(2, -1)) for name, part in zip(names, parts, strict=True)}


def _mean(total: Tensor, count: Tensor) -> float:
    counted = count != 0
    return (total[counted] / count[counted]).mean().item()


@dataclass
class Best:
    """The best validation so far, by one metric: what early stopping and the best checkpoint ask for."""

    monitor: str
    mode: Literal["min", "max"]
    value: float = math.nan
    step: int = 0
    """When it was."""
    stale: int = 0
    """Validations in a row since then."""

    def check(self, results: Mapping[str, float]) -> None:
        """Refuse a metric that the model does not report, by a UserError."""
        if self.monitor not in results:
            names = ", ".join(results)
            raise UserError(
                f"train.monitor is {self.monitor or 'empty'}: it must be one of the model's metrics, {names}"
            )

    def see(self, results: Mapping[str, float], step: int) -> None:
        """Take in a validation. A metric that is not finite is never the best."""
        self.check(results)
        value = results[self.monitor]
        ahead = value < self.value if self.mode == "min" else value > self.value
        if math.isfinite(value) and (math.isnan(self.value) or ahead):
            self.value, self.step, self.stale = value, step, 0
        else:
            self.stale += 1


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    prepare: nn.Module,
    autocast: AbstractContextManager[Any],
    world: World,
    own: float = math.inf,
) -> dict[str, float]:
    """Return the metrics over the first `own` batches of all ranks, each of which needs one at least."""
    meter = Meter(world)
    was_training = model.training
    model.eval()
    generator = noise(world.device, 0, 0, 0)
    for number, batch in enumerate(batches):
        with autocast:
            _, metrics = model(*prepare(batch, False, generator))
        if number < own:
            meter.add(metrics)
    model.train(was_training)
    return meter.read()
