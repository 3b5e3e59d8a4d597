"""Metrics as sums and counts, kept on the device, exact over any batches and ranks; `collected.py` has the others."""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .contracts import Batch, Metrics, loss_and_metrics
from .distributed import World, seeded_generator
from .errors import UserError


class Meter:
    """Sums up the metrics of batches on the device; only `read` synchronizes with it."""

    def __init__(self, world: World, validates: bool = False) -> None:
        """With `validates`, metrics that are no means are computed as well."""
        self.world, self.validates = world, validates
        self.collected: Any = None
        """Outputs for these, once there are some."""
        # Apple's GPUs, and some of Intel's, have no float64.
        self.dtype = torch.float32 if world.device.type in ("mps", "xpu") else torch.float64
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one batch.

        Raises:
            UserError: one has another form.
        """
        for name, value in metrics.items():
            try:
                if callable(value[0]):
                    self._collect(name, *value)
                    continue
                total, count = value
                total = total.detach()
                if name in self.sums:
                    self.sums[name] += total
                    self.counts[name] += count
                elif isinstance(count, Tensor) and count.ndim and count.shape != total.shape:
                    raise ValueError
                else:
                    self.sums[name] = total.to(self.dtype, copy=True)
                    self.counts[name] = count.clone() if isinstance(count, Tensor) else count
            except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "match" not in str(error):  # out of memory, for example
                    raise
                raise UserError(
                    f"forward returns {type(value).__name__} as the metric {name}: return its sum, a tensor of "
                    "one shape in all batches, and count"
                ) from error

    def _collect(self, name: str, finish: Callable[..., Any], *outputs: Any) -> None:
        if name == "loss":
            raise UserError(
                "the metric loss is a function of outputs: return its sum and count, and this by another name"
            )
        if not self.validates:
            return
        if self.collected is None:
            from .collected import Collected

            self.collected = Collected(self.world)
        self.collected.add(name, finish, outputs)

    def read(self, own: Mapping[str, Tensor] | None = None, each: float | None = None) -> dict[str, float]:
        """Return each metric's mean over the batches of all ranks, and reset. All ranks must call it.

        `own` are scalars of this rank, which come to the host in the same copy; a metric of the same name comes first.
        `each` is a number of this rank; those of all ranks are returned as `rank 0` and so on.
        """
        names, own = sorted(self.sums), own or {}
        if self.world.world_size > 1:
            self._check_names([*names, *(self.collected.outputs if self.collected is not None else ())])
        pairs = (map(self.on_device, (self.sums[it], self.counts[it])) for it in names)
        rows = [torch.stack(torch.broadcast_tensors(*pair)) for pair in pairs]
        self.sums, self.counts = {}, {}
        if not rows:
            return {}
        of_ranks = torch.zeros(0 if each is None else self.world.world_size, dtype=self.dtype, device=rows[0].device)
        if each is not None:
            of_ranks[self.world.rank] = each
        everywhere = self.world.all_reduce(torch.cat([*(row.flatten() for row in rows), of_ranks]))
        values = torch.cat([everywhere, *(self.on_device(value).view(1) for value in own.values())]).cpu()
        *parts, their, local = values.split([*(row.numel() for row in rows), len(of_ranks), len(own)])
        means = {name: _mean(*part.view(2, -1)) for name, part in zip(names, parts, strict=True)}
        others = {f"rank {rank}": value for rank, value in enumerate(their.tolist())}
        finished = self.collected.finish(means) if self.collected is not None else {}
        self.collected = None
        return means | others | dict(zip(own, local.tolist(), strict=True)) | means | finished

    def _check_names(self, names: list[str]) -> None:
        """Refuse other metrics than those of rank 0, whose values would be added to these."""
        own = ", ".join(names)
        mark = zlib.crc32(own.encode()) % 2**20
        total, squares = self.world.all_reduce(torch.tensor([mark, mark**2], device=self.world.device)).tolist()
        if total**2 == self.world.world_size * squares:  # Cauchy and Schwarz: only if all marks are equal
            return
        if own != (others := self.world.broadcast(own)):
            raise UserError(
                f"forward returns the metrics {own} on rank {self.world.rank}, and {others} on rank 0: return the same "
                "on all, with a count of 0, or an empty output, where a batch has none"
            )

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return the sum and the count of each metric over all ranks. All ranks must call it."""
        sums = {name: (self.on_device(self.sums[name]), self.on_device(self.counts[name])) for name in self.sums}
        return {name: [self.world.all_reduce(value.clone()) for value in sums[name]] for name in sorted(sums)}

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Restore the sums and counts: rank 0 has those of all ranks."""
        self.sums, self.counts = {}, {}
        share = float(self.world.is_main)
        for name, (total, count) in state.items():
            self.add({name: (share * self.on_device(total), share * self.on_device(count))})

    def on_device(self, value: Tensor | float) -> Tensor:
        """Return a number as a scalar on the device."""
        if isinstance(value, Tensor):
            return value.detach().to(self.world.device, self.dtype)
        return torch.full((), value, dtype=self.dtype, device=self.world.device)  # a copy would synchronize


def _mean(total: Tensor, count: Tensor) -> float:
    counted = count != 0
    return (total[counted] / count[counted]).mean().item()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    prepare: Callable[..., Batch],
    autocast: AbstractContextManager[Any],
    world: World,
    counted: float = math.inf,
    read: Callable[[Meter], dict[str, float]] = Meter.read,
) -> dict[str, float]:
    """Return the metrics over the first `counted` batches of each rank, at least one, as `read` from the meter."""
    meter = Meter(world, validates=True)
    was_training = model.training
    model.eval()
    generator = seeded_generator(world.device, 0, 0, 0)
    with torch.inference_mode() if supports_inference_mode(model) else nullcontext():
        for number, batch in enumerate(batches):
            with autocast:
                _, metrics = loss_and_metrics(model, prepare(batch, False, generator))
            if number < counted:
                meter.add(metrics)
        found = read(meter)
    model.train(was_training)
    return found


def supports_inference_mode(model: nn.Module) -> bool:
    """Return False for FSDP2, whose weights cannot be trained once gathered in it, and for torchao's fp8 layers."""
    sharded = any(hasattr(weight, "device_mesh") for weight in model.parameters())
    return not sharded and all(type(module).__name__ != "Float8Linear" for module in model.modules())
