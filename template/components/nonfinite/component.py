"""Skip steps whose gradient is not finite or whose loss is a spike, or also restore the weights of a validation."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .. import optim, precision
from ..component import Component, Step
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import Metrics
from ..distributed import World
from ..errors import UserError
from ..loader import map_tensors
from ..run import Run

WEIGHT, LEAST = 0.02, 20
"""Weight of a step in the running mean of the loss, and the steps before a spike is looked for."""
HARDLY = 1e-12
"""Count of a metric that replaces one that is not finite, so that a row with no other has a number."""


@dataclass(frozen=True)
class NonfiniteConfig(Section):
    """Steps with NaN, infinity or loss spikes."""

    enabled: bool = False
    """Skip steps whose gradient is not finite."""
    action: Literal["skip", "rollback"] = "skip"
    """rollback: also restore the weights and the optimizer state of the last validation, at the next row of metrics."""
    spike: float | None = within("(1, inf)", None)
    """Also skip a step whose loss is above this multiple of the running mean; null: off."""
    limit: int = within("[1, inf)", 20)
    """Number of skipped steps in a row after which the run ends, at the next row of metrics."""


class Nonfinite(Component):
    """Decides on the device, from values that all ranks have; the host learns of it with the rows of metrics."""

    name = "nonfinite"

    def __init__(self, cfg: NonfiniteConfig, world: World) -> None:
        self.cfg, self.world = cfg, world
        self.row: dict[str, float] = {}
        """The model's metrics in the last row."""
        self.names: list[str] = []
        self.snapshot: dict[str, Any] | None = None
        """What `rollback` restores, in host memory."""
        self.step = 0

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        if precision.name_of(cfg.speed, self.world.device) == "fp16":
            raise UserError(
                "nonfinite.enabled is true: fp16 skips such steps itself, so use bf16, or set it to false"
            )
        if self.cfg.action == "rollback" and "fsdp" in enabled:
            raise UserError(
                "nonfinite.action is rollback: it does not work with sharded weights: use skip"
            )

    def on_train_start(self, run: Run) -> None:
        device = run.world.device
        self.state = {
            key: torch.zeros((), device=device) for key in ("skipped", "in_a_row", "mean", "seen")
        }
        """Skipped steps, those in succession up to now, the running mean of the loss, and the steps in it."""
        self.bad = torch.zeros((), device=device)
        """1 if the present step is to be skipped; torch's fused optimizers read it on the device."""

    def wrap_step(self, run: Run, step: Step) -> Step:
        parameters = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
        kept_names = run.model.state_dict().keys()
        buffers = [buffer for name, buffer in run.model.named_buffers() if name in kept_names]
        before = [buffer.clone() for buffer in buffers]
        losses: list[tuple[Any, ...]] = []
        on_device = _reads_found_inf(run.optimizer)
        if on_device:
            run.optimizer.found_inf = self.bad  # type: ignore[attr-defined]
        if (
            self.cfg.action == "rollback" and self.snapshot is None
        ):  # of the start, or of a checkpoint's validation
            self._take_snapshot(run)

        def observed(batch: Any, loss_weight: float, is_last: bool) -> Metrics:
            if not losses:
                _copy(buffers, before)
            metrics = step.compute_gradients(batch, loss_weight, is_last)
            losses.append(metrics["loss"])
            self.names = list(metrics)
            return {name: self._finite(name, *pair) for name, pair in metrics.items()}

        def checked() -> Tensor:
            self._decide(optim.clip(parameters, None), losses)
            losses.clear()
            _copy(
                [torch.where(self.bad > 0, *pair) for pair in zip(before, buffers, strict=True)],
                buffers,
            )
            if on_device or not self.bad.item():
                norm = step.update_weights()
                return torch.where(self.bad > 0, 0.0, norm)
            run.optimizer.zero_grad(set_to_none=run.cfg.optim.set_to_none)
            return torch.zeros_like(self.bad)

        return Step(observed, checked)

    def _finite(self, name: str, value: Tensor, count: Any) -> tuple[Tensor, Tensor]:
        finite, instead = value.isfinite().all(), self.row.get(name, 0.0)
        return torch.where(finite, value.detach(), instead * HARDLY), torch.where(
            finite, count, HARDLY
        )

    @torch.no_grad()
    def _decide(self, norm: Tensor, losses: list[tuple[Any, ...]]) -> None:
        """Set `bad`, and count; all ranks have the same gradient, and here the same loss."""
        bad, state = ~norm.isfinite(), self.state
        if self.cfg.spike is not None:
            sums = [value.detach().float() for value, _ in losses]
            counts = [torch.zeros_like(self.bad) + count for _, count in losses]
            total, count = self.world.all_reduce(torch.stack([*sums, *counts]).view(2, -1).sum(1))
            loss = total / count
            bad |= ~loss.isfinite() | (
                (state["seen"] >= LEAST) & (loss > self.cfg.spike * state["mean"])
            )
            state["seen"] += ~bad
            weight = (1 / state["seen"].clamp(min=1)).clamp(min=WEIGHT)
            state["mean"].copy_(torch.where(bad, state["mean"], state["mean"].lerp(loss, weight)))
        self.bad.copy_(bad)
        state["skipped"] += self.bad
        state["in_a_row"].add_(1).mul_(self.bad)

    def on_step_end(self, run: Run) -> None:
        self.step = run.step

    def on_log(self, run: Run, row: dict[str, float]) -> None:
        if run.step % run.cfg.log.every != 0 and not run.plan.validates(run.step):
            return  # at a stop, so that a resumed run repeats the uninterrupted one
        skipped, in_a_row = (int(self.state[key].item()) for key in ("skipped", "in_a_row"))
        if in_a_row >= self.cfg.limit:
            raise UserError(
                f"{in_a_row} steps in succession were skipped until step {run.step:,}: lower optim.lr"
            )
        if self.snapshot is not None and skipped > run.skipped_steps:
            self._roll_back(run)
        if self.snapshot is not None and run.plan.validates(run.step):
            self._take_snapshot(run)
        run.skipped_steps = skipped
        row["skipped"] = float(skipped)
        self.row = {name: row[name] for name in self.names}

    def _take_snapshot(self, run: Run) -> None:
        state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
        copied = map_tensors(lambda value: value.to("cpu", copy=True), state)
        self.step = run.step
        self.snapshot = copied | {"optimizer_class": type(run.optimizer).__name__, "step": run.step}

    def _roll_back(self, run: Run) -> None:
        assert self.snapshot is not None
        run.model.load_state_dict(self.snapshot["model"])
        # it may take the tensors themselves
        optim.load_state(run.optimizer, map_tensors(Tensor.clone, self.snapshot))
        if run.world.rank == 0:
            what = (
                f"skipped steps before step {run.step:,}: weights of step {self.snapshot['step']:,}"
            )
            print(what, file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        state = {key: value.item() for key, value in self.state.items()} | {"row": self.row}
        if (
            self.snapshot is not None and self.snapshot["step"] != self.step
        ):  # else it is the checkpoint itself
            state["snapshot"] = self.snapshot
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key, value in self.state.items():
            value.fill_(state.get(key, 0.0))
        self.row = dict(state.get("row", {}))
        self.snapshot = state.get("snapshot") if self.cfg.action == "rollback" else None


def _reads_found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Whether torch's fused kernel leaves weights and state as they are if `found_inf` is 1, without the host."""
    fused = all(group.get("fused") for group in optimizer.param_groups)
    sharded = any(
        hasattr(weight, "to_local")
        for group in optimizer.param_groups
        for weight in group["params"]
    )
    return fused and not sharded and isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)


@torch.no_grad()
def _copy(values: list[Tensor], to: list[Tensor]) -> None:
    for value, target in zip(values, to, strict=True):
        target.copy_(value)
