"""Learning-rate range test: raise the rate until the loss diverges, and suggest `optim.lr`.

Smith 2015 (arXiv:1506.01186, section 3.3). The rate rises exponentially, so that one short run
covers all magnitudes.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..component import Component, Step
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import Metrics
from ..distributed import World
from ..errors import UserError
from ..loader import BatchPlan
from ..metrics import Meter
from ..optim import OneCycle
from ..run import Run
from ..summary import write_text

SMOOTHING = 0.9
"""Weight of the past in the moving average of the loss."""
FIRST = 10
"""Steps before the average is used."""
DIVERGED = 4.0
"""The test ends when the average has risen by this multiple of its fall until then."""


@dataclass(frozen=True)
class LrRangeTestConfig(Section):
    """A short run, of about 200 steps, that finds the learning rate instead of training a model."""

    enabled: bool = False
    """Raise the learning rate exponentially over `train.steps`; write lr_range_test.png and
    lr_range_test.json."""
    lowest: float = within("(0, inf)", 1e-6)
    """Learning rate of the first step."""
    highest: float = within("(0, inf)", 10.0)
    """Learning rate of the last step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.highest <= self.lowest:
            self.refuse("highest", f"it must be above lr_range_test.lowest, {self.lowest:g}")


class LrRangeTest(Component):
    """Reads the loss of each step, equal on all ranks, and ends the run when it diverges."""

    name = "lr_range_test"
    conflicts = ("schedules",)

    def __init__(
        self,
        cfg: LrRangeTestConfig,
        world: World,
    ) -> None:
        self.cfg = cfg
        self.meter = Meter(world)
        self.rates: list[float] = []
        self.losses: list[float] = []

    def build_schedule(
        self,
        plan: BatchPlan,
        cfg: BaseConfig,
    ) -> OneCycle:
        self.schedule = Exponential(self.cfg, plan, cfg)
        return self.schedule

    def wrap_step(
        self,
        run: Run,
        step: Step,
    ) -> Step:
        def compute_gradients(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            metrics = step.compute_gradients(batch, is_first, is_last)
            loss, count = metrics["loss"]
            self.meter.add({"loss": metrics["loss"]})
            return {**metrics, "loss": (_finite(loss), count)}

        return Step(compute_gradients, lambda: _finite(step.update_weights()))

    def on_step_end(self, run: Run) -> None:
        """Add a point; waits for the device."""
        loss = self.meter.read()["loss"]
        is_new = not self.rates or self.schedule.lr > self.rates[-1]
        if math.isfinite(loss) and is_new:  # fp16 repeats the rate of a skipped step
            self.rates.append(self.schedule.lr)
            self.losses.append(loss)
        if not math.isfinite(loss) or _diverged(smooth(self.losses)):
            run.finished = True

    def on_train_end(self, run: Run) -> None:
        """Write the results on rank 0, unless the test was interrupted."""
        if run.world.rank > 0 or not run.is_over:
            return
        smoothed = smooth(self.losses)
        rate, why = suggest(self.rates, smoothed)
        option = rate and rate / self.schedule.factor
        results = {
            "optim.lr": option,
            "why": why,
            "rates": self.rates,
            "losses": self.losses,
            "smoothed": smoothed,
        }
        write_text(run.folder / "lr_range_test.json", json.dumps(results, indent=1) + "\n")
        file = run.folder / "lr_range_test.png"
        if self.rates:
            draw(file, self.rates, self.losses, smoothed, rate)
        advice = f"--optim.lr {option:.2g}" if option else "no learning rate"
        tqdm.write(f"lr_range_test suggests {advice}: {why}; see {file}")

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self.rates, "losses": self.losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            raise UserError("lr_range_test.enabled is for a run of its own: use another run.name")
        self.rates = list(state["rates"])
        self.losses = list(state["losses"])


class Exponential(OneCycle):
    """The learning rate of the test; momentum stays as configured."""

    def __init__(
        self,
        own: LrRangeTestConfig,
        plan: BatchPlan,
        cfg: BaseConfig,
    ) -> None:
        super().__init__(cfg.optim, plan)
        self.factor = self.peak / cfg.optim.lr
        """Peak learning rate of this global batch, divided by `optim.lr`."""
        self.lowest = own.lowest
        self.peak = own.highest
        self.last_step = max(plan.total_steps - 1, 1)
        self.lr = 0.0

    def set(
        self,
        optimizer: torch.optim.Optimizer,
        step: int,
    ) -> float:
        """Set and return the learning rate of a step."""
        self.lr = self.lowest * (self.peak / self.lowest) ** (step / self.last_step)
        for group in optimizer.param_groups:
            group["lr"] = self.lr * group.get("lr_scale", 1.0)
        return self.lr


def smooth(losses: list[float]) -> list[float]:
    """Return the exponential moving average after each loss, divided by the sum of its weights."""
    smoothed = []
    average = 0.0
    for count, loss in enumerate(losses, start=1):
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        smoothed.append(average / (1 - SMOOTHING**count))
    return smoothed


def suggest(rates: list[float], smoothed: list[float]) -> tuple[float | None, str]:
    """Return a tenth of the rate with the lowest smoothed loss, or None; and why.

    As lr_find of fastai.
    """
    more = "give it more train.steps, or lower lr_range_test.lowest"
    if len(rates) <= 2 * FIRST:
        return None, f"it ended after {len(rates)} steps; {more}"
    lowest = smoothed.index(min(smoothed[FIRST:]), FIRST)
    if smoothed[lowest] > smoothed[FIRST] - 0.02 * abs(smoothed[FIRST]):
        return None, f"the loss never fell; {more}"
    if lowest == len(rates) - 1:
        return None, f"the loss still fell at {rates[-1]:.2g}, the end; raise lr_range_test.highest"
    return rates[lowest] / 10, f"a tenth of {rates[lowest]:.2g}, where the smoothed loss was lowest"


def draw(
    file: Path,
    rates: list[float],
    losses: list[float],
    smoothed: list[float],
    suggested: float | None,
) -> None:
    """Draw the losses over the learning rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="learning rate", ylabel="training loss")
    axes.plot(rates, losses, linewidth=0.8, alpha=0.4, label="loss of each step")
    axes.plot(rates, smoothed, label="smoothed")
    if suggested:
        axes.axvline(suggested, color="black", label=f"suggested: {suggested:.2g}")
    low = min(smoothed)
    high = max(smoothed[: len(smoothed) // 2 + 1])
    margin = high - low or 1.0
    axes.set_ylim(low - 0.1 * margin, high + 0.5 * margin)  # without the divergence
    axes.legend()
    figure.savefig(file, dpi=120)


def _finite(value: Tensor) -> Tensor:
    """Return a number for NaN, which would end the run with an error before the test ends."""
    return value.nan_to_num(nan=torch.finfo(value.dtype).max)


def _diverged(smoothed: list[float]) -> bool:
    if len(smoothed) <= FIRST:
        return False
    first = smoothed[FIRST // 2]
    low = min(smoothed[FIRST // 2 :])
    return smoothed[-1] - low > DIVERGED * max(first - low, 0.05 * abs(first))
