"""Metrics as sums and counts on the device, so that every mean over batches and ranks is exact."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import World, seed_batch

Autocast = Callable[[], AbstractContextManager[Any]]
Metrics = Mapping[str, tuple[Any, ...]]
"""By name: its sum over a batch, and the count to divide by. Must have "loss".

Sums of shape (k,), such as one per
class, give the mean over the entries that have a count."""


class Meter:
    """Collects the metrics of batches; only `read` synchronizes with the device."""

    def __init__(self, world: World) -> None:
        self.world, self.batches = world, list[Metrics]()
        # some have no float64
        self.dtype = torch.float32 if world.device.type in ("mps", "xpu") else torch.float64

    def add(self, metrics: Metrics) -> None:
        """Add copies of the metrics of one batch, as the next step of a CUDA graph overwrites them."""
        self.batches.append({name: tuple(map(_copy, pair)) for name, pair in metrics.items()})
        if len(self.batches) == 1000:
            self.batches = [self._totals()]

    def read(self, own: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Return the means over all ranks since the last call, and some scalars of this rank."""
        totals, own = self._totals(), own or {}
        pairs = [torch.stack(torch.broadcast_tensors(*pair)).flatten() for pair in totals.values()]
        scalars = [value.detach().to(self.dtype).reshape(1) for value in own.values()]
        fetched = torch.cat([*pairs, *scalars]).cpu().double()  # the synchronization
        *sums, last = fetched.split([*map(len, pairs), len(own)])
        self.world.all_reduce(fetched[: len(fetched) - len(own)])
        self.batches = []
        means = {
            name: _mean(*pair.view(2, -1).tolist()) for name, pair in zip(totals, sums, strict=True)
        }
        return means | dict(zip(own, last.tolist(), strict=True))

    def _totals(self) -> dict[str, tuple[Tensor, ...]]:
        columns = {
            name: zip(*(batch[name] for batch in self.batches), strict=True)
            for name in sorted(self.batches[0])
        }
        return {name: tuple(map(self._sum, pair)) for name, pair in columns.items()}

    def _sum(self, values: tuple[Tensor | float, ...]) -> Tensor:
        tensors = [value for value in values if isinstance(value, Tensor)]
        plain = sum(value for value in values if not isinstance(value, Tensor))
        if not tensors:
            return torch.full((), plain, dtype=self.dtype, device=self.world.device)
        return torch.stack(tensors).to(self.dtype).sum(0) + plain


def _copy(value: Tensor | float) -> Tensor | float:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _mean(sums: list[float], counts: list[float]) -> float:
    means = [total / count for total, count in zip(sums, counts, strict=True) if count]
    return sum(means) / len(means) if means else float("nan")


def evaluate(
    net: nn.Module,
    batches: Iterable[Any],
    counted: int,
    prepare: nn.Module,
    autocast: Autocast,
    world: World,
) -> dict[str, float]:
    """Return the metrics over the validation samples of all ranks; only the first `counted` batches count.

    A model whose validation needs gradients, such as a physics-informed loss, sets
    `needs_gradients_in_validation`.
    """
    meter, generator = Meter(world), seed_batch(world, 0, 0, 0)
    needs_gradients = getattr(getattr(net, "module", net), "needs_gradients_in_validation", False)
    net.eval()
    with torch.no_grad() if needs_gradients else torch.inference_mode():
        for number, loaded in enumerate(batches):
            batch = prepare(loaded, False, generator)
            with autocast():
                _, metrics = call(net, batch)
            if number < counted:
                meter.add(metrics)
    net.train()
    return meter.read()


def call(net: nn.Module, batch: Any) -> tuple[Tensor, Metrics]:
    """Call the model with a prepared batch as its arguments: by position for a tuple, by name for a dict."""
    found: tuple[Tensor, Metrics] = net(**batch) if isinstance(batch, dict) else net(*batch)
    return found
