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
        # some devices have no float64
        self.dtype = torch.float32 if world.device.type in ("mps", "xpu") else torch.float64
        self._reset()

    def _reset(self) -> None:
        self.batches = 0
        self.sums = defaultdict[str, list[Any]](list)
        self.counts = defaultdict[str, list[Any]](list)

    def add(self, metrics: Metrics) -> None:
        """Add copies of a batch's metrics, as the next step of a CUDA graph overwrites them."""
        for name, (total, count) in metrics.items():
            self.sums[name].append(_copy(total))
            self.counts[name].append(_copy(count))
        self.batches += 1
        if self.batches == 1000:  # so that the lists do not grow for ever
            totals = {name: self._totals(name) for name in self.sums}
            self._reset()
            self.add(totals)

    def read(self, scalars: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Return the means over all ranks since the last call, and some scalars of this rank."""
        own = {name: value.detach().to(self.dtype) for name, value in (scalars or {}).items()}
        names = sorted(self.sums)
        pairs = [torch.stack(torch.broadcast_tensors(*self._totals(name))) for name in names]
        sizes = [pair.numel() for pair in pairs]
        parts = [part.flatten() for part in (*pairs, *own.values())]
        on_host = torch.cat(parts).cpu().double()  # the synchronization
        totals = self.world.all_reduce(on_host[: sum(sizes)].clone())
        row = {}
        for name, pair in zip(names, totals.split(sizes), strict=True):
            sums, counts = pair.view(2, -1).tolist()
            row[name] = _mean(sums, counts, self.of_nothing)
        row |= zip(own, on_host[sum(sizes) :].tolist(), strict=True)
        self._reset()
        return row

    def _totals(self, name: str) -> tuple[Tensor, Tensor]:
        return self._sum(self.sums[name]), self._sum(self.counts[name])

    def _sum(self, values: list[Tensor | float]) -> Tensor:
        tensors = [value for value in values if isinstance(value, Tensor)]
        numbers = sum(value for value in values if not isinstance(value, Tensor))
        if not tensors:
            return torch.full(
                (),
                numbers,
                dtype=self.dtype,
                device=self.world.device,
            )
        return torch.stack(tensors).to(self.dtype).sum(0) + numbers


def _copy(value: Tensor | float) -> Tensor | float:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _mean(sums: list[float], counts: list[float], of_nothing: float) -> float:
    means = [
        total / count
        for total, count in zip(
            sums,
            counts,
            strict=True,
        )
        if count
    ]
    return sum(means) / len(means) if means else of_nothing


def check_finite(
    row: Mapping[str, float],
    step: int,
    fp16: bool,
) -> None:
    """Refuse to go on with NaN or infinity; fp16 skips a step whose gradients are not finite."""
    if math.isfinite(row["loss"]) and (fp16 or math.isfinite(row["grad_norm"])):
        return
    values = f"the loss is {row['loss']:.4g} and the gradient norm {row['grad_norm']:.4g}"
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
