"""Skip steps whose gradient is not finite, instead of ending the run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import optim, precision
from ..component import Component, Step
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import Metrics
from ..distributed import World
from ..errors import UserError
from ..run import Run

TINY = 1e-12
"""Count of a metric that is not finite, so that a row with no other has a number."""


@dataclass(frozen=True)
class NonfiniteConfig(Section):
    """Steps with NaN or infinity."""

    enabled: bool = False
    """Skip steps whose gradient is not finite."""
    limit: int = within("[1, inf)", 20)
    """Number of skipped steps in a row after which the run ends, at the next row of metrics."""


class Nonfinite(Component):
    """Decides on the device; the host learns of it with the rows of metrics."""

    name = "nonfinite"

    def __init__(
        self,
        cfg: NonfiniteConfig,
        world: World,
    ) -> None:
        self.cfg = cfg
        self.device = world.device
        self.row: dict[str, float] = {}
        """The model's metrics in the last row."""
        self.names: list[str] = []

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        if precision.name_of(cfg.speed, self.device) == "fp16":
            raise UserError(
                "nonfinite.enabled is true: fp16 skips such steps itself, so use bf16, "
                "or set it to false"
            )

    def on_train_start(self, run: Run) -> None:
        device = run.world.device
        self.bad = torch.zeros((), device=device)
        """1 if this step is to be skipped; torch's fused optimizers read it on the device."""
        self.skipped = torch.zeros_like(self.bad)
        """Skipped steps of the run."""
        self.in_a_row = torch.zeros_like(self.bad)
        """Those in succession up to now."""

    def wrap_step(
        self,
        run: Run,
        step: Step,
    ) -> Step:
        weights = [weight for weight in run.model.parameters() if weight.requires_grad]
        buffers = list(run.model.buffers())
        before = [buffer.clone() for buffer in buffers]
        on_device = _reads_found_inf(run.optimizer)
        if on_device:
            run.optimizer.found_inf = self.bad  # type: ignore[attr-defined]

        def compute_gradients(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            if is_first:
                _copy(buffers, before)
            metrics = step.compute_gradients(batch, is_first, is_last)
            self.names = list(metrics)
            return {name: self._finite(name, *pair) for name, pair in metrics.items()}

        def update_weights() -> Tensor:
            norm = optim.clip(weights, None)  # equal on all ranks
            self.bad.copy_(~norm.isfinite())
            self.skipped.add_(self.bad)
            self.in_a_row.add_(1).mul_(self.bad)
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(torch.where(self.bad > 0, old, buffer))
            if on_device or not self.bad.item():
                norm = step.update_weights()
                return torch.where(self.bad > 0, 0.0, norm)
            run.optimizer.zero_grad()
            return torch.zeros_like(self.bad)

        return Step(compute_gradients, update_weights)

    def _finite(
        self,
        name: str,
        value: Any,
        count: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return a metric; the one of the last row, with almost no count, if it is not finite."""
        if not isinstance(value, Tensor):
            value = torch.full((), value, device=self.device)
        finite = value.isfinite().all()
        last = self.row.get(name, 0.0)
        value = torch.where(finite, value.detach(), last * TINY)
        return value, torch.where(finite, count, TINY)

    def on_log(
        self,
        run: Run,
        row: dict[str, float],
    ) -> None:
        if run.step % run.cfg.log.every != 0 and not run.plan.validates(run.step):
            return  # at a stop, so that a resumed run repeats the uninterrupted one
        in_a_row = int(self.in_a_row.item())
        if in_a_row >= self.cfg.limit:
            raise UserError(
                f"{in_a_row} steps in succession were skipped until step {run.step:,}: "
                "lower optim.lr"
            )
        run.skipped_steps = int(self.skipped.item())
        row["skipped"] = float(run.skipped_steps)
        self.row = {name: row[name] for name in self.names}

    def state_dict(self) -> dict[str, Any]:
        skipped = self.skipped.item()
        return {"skipped": skipped, "in_a_row": self.in_a_row.item(), "row": self.row}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
    ) -> None:
        self.skipped.fill_(state.get("skipped", 0.0))
        self.in_a_row.fill_(state.get("in_a_row", 0.0))
        self.row = dict(state.get("row", {}))


def _reads_found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's fused kernel skips a step if `found_inf` is 1, without the host."""
    for group in optimizer.param_groups:
        sharded = any(hasattr(weight, "to_local") for weight in group["params"])
        if sharded or not group.get("fused"):
            return False
    return isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


@torch.no_grad()
def _copy(
    values: list[Tensor],
    to: list[Tensor],
) -> None:
    for value, target in zip(values, to, strict=True):
        target.copy_(value)
