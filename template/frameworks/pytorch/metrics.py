"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .contracts import Metrics, Prepare
from .distributed import World, seed_batch
from .errors import UserError
from .loss import check_names, compute_loss

Autocast = Callable[[], AbstractContextManager[Any]]


class Meter:
    """Adds up the metrics of batches; only `read` synchronizes with the device."""

    def __init__(self, world: World, loss_of_none: float = math.nan) -> None:
        self.world = world
        self.loss_of_none = loss_of_none  # with NaN, a validation is never the best
        self.dtype = torch.float64
        if world.device.type in ("mps", "xpu"):  # which have no float64
            self.dtype = torch.float32
        self.totals: dict[str, list[Any]] = {}

    @torch.no_grad()
    def add(self, metrics: Metrics) -> None:
        """Add the sums and counts of a batch, which stay on the device."""
        for name, pair in metrics.items():
            if name not in self.totals:
                self.totals[name] = [self._zero(part) for part in pair]
            totals = self.totals[name]
            for place, part in enumerate(pair):
                # not in place: a number that becomes a tensor, or a tensor of another shape
                totals[place] = totals[place] + part

    def _zero(self, part: Tensor | float) -> Tensor | float:
        if isinstance(part, Tensor):
            return torch.zeros_like(part, dtype=self.dtype)
        return 0.0

    def read(self, scalars: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Return the means over all ranks since the last call, and some scalars of this rank."""
        row = {}
        names = sorted(self.totals)  # in one order on all ranks
        check_names(names, self.world.mean)
        for name in names:
            pair = []
            for part in self.totals[name]:
                pair.append(torch.as_tensor(part, dtype=self.dtype, device=self.world.device))
            on_host = torch.stack(torch.broadcast_tensors(*pair)).cpu().double()  # waits for it
            sums, counts = self.world.all_reduce(on_host).view(2, -1).tolist()
            pairs = zip(sums, counts, strict=True)
            means = [part / count for part, count in pairs if count]
            none = self.loss_of_none if name == "loss" else math.nan
            row[name] = sum(means) / len(means) if means else none
        self.totals = {}
        for name, value in (scalars or {}).items():
            row[name] = value.item()
        return row


def check_finite(
    row: Mapping[str, float],
    step: int,
    fp16: bool,
) -> None:
    """Refuse to go on with NaN or infinity; fp16 skips a step whose gradients are not finite."""
    loss = row["loss"]
    grad_norm = row["grad_norm"]
    if math.isfinite(loss) and (fp16 or math.isfinite(grad_norm)):
        return
    values = f"the loss is {loss:.4g} and the gradient norm {grad_norm:.4g}"
    raise UserError(f"{values} at step {step:,}: lower optim.lr")


def evaluate(
    net: nn.Module,
    batches: Iterable[Any],
    num_batches: int,
    prepare: Prepare,
    autocast: Autocast,
    world: World,
) -> dict[str, float]:
    """Return the metrics over the validation samples of all ranks.

    Only the first `num_batches` batches count.
    """
    meter = Meter(world)
    generator = seed_batch(world, 0, 0, 0)
    net.eval()
    with torch.no_grad():  # and not inference mode: the loss may have derivatives in it
        for number, loaded in enumerate(batches):
            batch = prepare(loaded, False, generator)
            with autocast():
                _, metrics = compute_loss(net, batch)
            if number < num_batches:
                meter.add(metrics)
    net.train()
    return meter.read()
