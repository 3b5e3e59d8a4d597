"""A loss or gradient that is not finite, or a loss spike: `train.on_nonfinite` and `train.spike_factor`."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import optim, techniques
from ..checkpoint import PREFIX
from ..config import Config
from ..console import shown
from ..errors import UserError
from ..hooks import Hook
from ..loaders import TrainOrder
from ..log import RunLog

FILE = "nonfinite.jsonl"
"""File in a run's folder with the samples of each step that was left out."""
WEIGHT, LEAST = 0.02, 20
"""Weight of a step in the running mean of the loss, and the steps before a spike is looked for."""


def check(cfg: Config, framework_loop: bool = False) -> None:
    """Refuse options that conflict with the check of each step.

    Raises:
        UserError: names one and the way out.
    """
    key = "on_nonfinite" if cfg.train.on_nonfinite != "stop" else "spike_factor"
    if cfg.debug.sync == "error":
        cfg.debug.refuse("sync", f"train.{key} synchronizes in every step; use warn or off")
    if cfg.speed.step_graph:
        cfg.speed.refuse(
            "step_graph", f"it captures the update, which train.{key} checks in every step; set it to false"
        )
    if cfg.optim.schedule == "range":
        cfg.train.refuse(key, "a range test ends where the loss diverges; use the default")


class Guard(Hook):
    """Checks the loss and the gradient of each step before the update, on all ranks alike.

    A step that is left out changes neither weights, optimizer, average nor BatchNorm's statistics, and is in no metric.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg.train
        self.run: Any = None
        """The `run.Run`, once it trains."""
        self.in_a_row = 0
        """Steps left out one after the other."""
        self.left_out: set[int] = set()
        """Steps, counted from 0, to leave out when they come again."""
        self.mean, self.seen = 0.0, 0
        """Running mean of the loss, and the steps in it."""
        self.returns: dict[Path, int] = {}
        """How many times the run went back to a checkpoint."""
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}
        self.buffers: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        """Return what makes a resumed run leave out the same steps."""
        numbers = {"in_a_row": self.in_a_row, "mean": self.mean, "seen": self.seen}
        return {"nonfinite": {**numbers, "left_out": sorted(self.left_out)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; a run that had no checks starts without."""
        found = state.get("nonfinite", {})
        self.in_a_row, self.left_out = found.get("in_a_row", 0), set(found.get("left_out", ()))
        self.mean, self.seen = found.get("mean", 0.0), found.get("seen", 0)

    def before_step(self, step: int) -> None:
        """Keep what the forward passes of a step change: buffers and metrics."""
        meter, live = self.run.meter, self._live()
        self.sums = {name: value.clone() for name, value in meter.sums.items()}
        self.counts = {
            name: value.clone() if isinstance(value, Tensor) else value for name, value in meter.counts.items()
        }
        if not self.buffers:
            self.buffers = [buffer.clone() for buffer in live]
        elif live:
            torch._foreach_copy_(self.buffers, live)

    def allows(self, parameters: Sequence[Tensor]) -> bool:
        """Return whether to make the update. If not, the step is left out, or the run is at an older step again.

        Raises:
            UserError: the run stops.
        """
        run = self.run
        if run.progress.step in self.left_out:
            self._leave_out()
            return False
        loss, norm = self._measure(parameters)
        problem = self._problem(loss, norm)
        if not problem:
            self.in_a_row = 0
            self.seen += 1
            self.mean += (loss - self.mean) * max(WEIGHT, 1 / self.seen)
            return True
        step, on_nonfinite = run.progress.step + 1, self.cfg.on_nonfinite
        self.in_a_row += 1
        self._report(loss, norm)
        if on_nonfinite == "stop":
            raise UserError(f"{problem} at step {step}: lower optim.lr, or set train.on_nonfinite to skip or rollback")
        if on_nonfinite == "rollback":
            self._roll_back(problem)
        elif self.in_a_row > self.cfg.max_nonfinite:
            limit = f"train.max_nonfinite={self.cfg.max_nonfinite} such steps in a row were skipped"
            raise UserError(f"{problem} at step {step}, and {limit}: lower optim.lr")
        else:
            self._tell(f"{problem} at step {step}: skipped")
            self._leave_out()
        return False

    def _live(self) -> list[Tensor]:
        return list(self.run.parts.model.buffers())

    @torch.no_grad()
    def _measure(self, parameters: Sequence[Tensor]) -> tuple[float, float]:
        """Return the loss of this step over all ranks, and the norm of its gradient; waits for the device."""
        meter, world = self.run.meter, self.run.parts.world
        total = meter.sums["loss"].sum() - (self.sums["loss"].sum() if "loss" in self.sums else 0.0)
        count = meter.on_device(meter.counts["loss"]).sum() - meter.on_device(self.counts.get("loss", 0)).sum()
        norm = meter.on_device(optim.clip(parameters, None)) / world.world_size  # which all ranks have
        total, count, norm = world.all_reduce(torch.stack([total, count, norm])).tolist()
        return total / (count or 1.0), norm

    def _problem(self, loss: float, norm: float) -> str:
        if not math.isfinite(loss):
            return f"loss is {loss}"
        if not math.isfinite(norm) and not self.run.parts.scaler.is_enabled():  # fp16 skips such a step itself
            return f"grad_norm is {norm}"
        factor = self.cfg.spike_factor
        if factor is not None and self.seen >= LEAST and loss > factor * self.mean > 0:
            return f"loss is {loss:.4g}, above train.spike_factor={factor:g} times its running mean of {self.mean:.4g},"
        return ""

    def _leave_out(self) -> None:
        """End the step as if its batch had not been there."""
        run = self.run
        self._restore()
        run.meter.sums, run.meter.counts = self.sums, self.counts
        run.skipped_before += 1

    def _restore(self) -> None:
        self.run.parts.optimizer.zero_grad(set_to_none=self.run.parts.cfg.optim.set_to_none)
        if self.buffers:
            torch._foreach_copy_(self._live(), self.buffers)

    def _roll_back(self, problem: str) -> None:
        """Continue from the newest good checkpoint, and leave this step out when it comes again.

        If the step before was left out already, the weights are to blame, and all steps since the checkpoint are.
        """
        run, step = self.run, self.run.progress.step
        parts = run.parts
        run.saver.wait()
        found = parts.world.broadcast(techniques.find_checkpoint(run.folder, parts.cfg.dist, parts.world))
        if not found:
            raise UserError(f"{problem} at step {step + 1}, before the first checkpoint: lower optim.lr")
        path = Path(found)
        self.returns[path] = self.returns.get(path, 0) + 1
        if self.returns[path] > self.cfg.max_nonfinite:
            limit = f"the run went back to {shown(path)} train.max_nonfinite={self.cfg.max_nonfinite} times"
            raise UserError(f"{problem} at step {step + 1}, and {limit}: lower optim.lr")
        first = int(path.name.removeprefix(PREFIX))
        steps = {*self.left_out, step}
        if step - 1 in self.left_out:
            steps |= set(range(first, step))
        self._restore()  # also the buffers that no checkpoint has
        run.load(path)
        self.left_out |= steps
        _continue(run)
        self._tell(f"{problem} at step {step + 1}: back to {shown(path)}, to leave out that step")

    def _report(self, loss: float, norm: float) -> None:
        """Write the indices of the step's samples to a file."""
        run, plan = self.run, self.run.parts.plan
        if not run.parts.world.is_main:
            return
        step, seed = run.progress.step, run.parts.cfg.run.seed
        orders = (TrainOrder(plan, rank, seed, step, run.parts.data.train) for rank in range(plan.world_size))
        samples = [[index for micro in islice(order, plan.accumulate) for index in micro] for order in orders]
        record = {
            "step": step + 1,
            "loss": loss,
            "grad_norm": norm,
            "action": self.cfg.on_nonfinite,
            "samples": samples,
        }
        line, file = json.dumps(record) + "\n", run.folder / FILE
        try:
            with file.open("a+", encoding="utf-8") as stream:
                stream.seek(0)
                if line not in stream:  # which it is where a resumed run makes the step again
                    stream.write(line)
        except OSError as error:
            raise UserError(f"cannot write {file} ({error.strerror}): free some space, then resume") from error

    def _tell(self, what: str) -> None:
        if self.run.parts.world.is_main:
            file = shown(self.run.folder / FILE)
            print(f"{what}; its samples are in {file}", file=sys.stderr, flush=True)


def _continue(run: Any) -> None:
    """Continue from the step of the checkpoint that was loaded; later rows of metrics are dropped."""
    progress, sinks = run.progress, run.log.sinks
    run.order.first_step = run.row_first_step = progress.step
    run.train_batches, run.micro_step = iter(run.train_loader), 0
    run.saved_step = progress.step
    run.skipped_before = progress.step - progress.updates - techniques.skipped_steps(run.parts.scaler)
    run.log.close()
    run.log = RunLog(run.folder, run.parts.cfg.log, run.log.console, progress.step, True)
    run.log.sinks = sinks
