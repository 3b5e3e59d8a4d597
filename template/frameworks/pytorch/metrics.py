"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .contracts import Metrics, Prepare
from .distributed import World, seed_batch
from .errors import UserError
from .loss import compute_loss

Autocast = Callable[[], AbstractContextManager[Any]]


class Meter:
    """Collects the metrics of batches; only `read` synchronizes with the device."""

    def __init__(self, world: World, of_nothing: float = math.nan) -> None:
        self.world = world
        self.of_nothing = of_nothing  # the mean if nothing counts: no validation is then the best
        self.dtype = torch.float64
        if world.device.type in ("mps", "xpu"):  # which have no float64
            self.dtype = torch.float32
        self._reset()

    def _reset(self) -> None:
        self.num_batches = 0
        self.pairs = defaultdict[str, list[list[Any]]](list)

    def add(self, metrics: Metrics) -> None:
        """Add copies of a batch's metrics, as the next step of a CUDA graph overwrites them."""
        for name, pair in metrics.items():
            self.pairs[name].append([_copy(part) for part in pair])
        self.num_batches += 1
        if self.num_batches == 1000:  # so that the lists do not grow for ever
            totals = {}
            for name in self.pairs:
                totals[name] = self._total(name)
            self._reset()
            self.add(totals)

    def _total(self, name: str) -> tuple[Tensor, Tensor]:
        sums, counts = zip(*self.pairs[name], strict=True)
        return self._sum(sums), self._sum(counts)

    def _sum(self, values: Iterable[Tensor | float]) -> Tensor:
        tensors = []
        number = 0.0
        for value in values:
            if isinstance(value, Tensor):
                tensors.append(value)
            else:
                number += value
        if tensors:
            return torch.stack(tensors).to(self.dtype).sum(0) + number
        return torch.full((), number, dtype=self.dtype, device=self.world.device)

    def read(self, scalars: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Return the means over all ranks since the last call, and some scalars of this rank."""
        row = {}
        for name in sorted(self.pairs):  # in one order on all ranks
            total = torch.stack(torch.broadcast_tensors(*self._total(name)))
            on_host = total.cpu().double()  # waits for the device
            sums, counts = self.world.all_reduce(on_host).view(2, -1).tolist()
            means = []
            for part, count in zip(sums, counts, strict=True):
                if count:
                    means.append(part / count)
            if means:
                row[name] = sum(means) / len(means)
            else:
                row[name] = self.of_nothing
        self._reset()
        for name, value in (scalars or {}).items():
            row[name] = value.item()
        return row


def _copy(value: Tensor | float) -> Tensor | float:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value


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
    needs_gradients: bool = False,
) -> dict[str, float]:
    """Return the metrics over the validation samples of all ranks.

    Only the first `num_batches` batches count. With `needs_gradients`, the loss may have
    derivatives in it.
    """
    meter = Meter(world)
    generator = seed_batch(world, 0, 0, 0)
    net.eval()
    with torch.no_grad() if needs_gradients else torch.inference_mode():
        for number, loaded in enumerate(batches):
            batch = prepare(loaded, False, generator)
            with autocast():
                _, metrics = compute_loss(net, batch)
            if number < num_batches:
                meter.add(metrics)
    net.train()
    return meter.read()
