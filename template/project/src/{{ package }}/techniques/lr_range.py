"""The learning-rate range test: `optim.schedule=range`.

After Smith 2015 (arXiv:1506.01186, section 3.3): while the learning rate grows, the loss falls, flattens and diverges.
Here it grows exponentially, so that one short run covers all orders of magnitude.
"""

import json
import math
import textwrap
from pathlib import Path

from ..console import shown
from ..errors import UserError
from ..hooks import Hook

SMOOTHING = 0.9
DIVERGED = 4.0
"""The test ends when the smoothed loss has risen from its minimum by this multiple of its fall until then."""
WARMUP = 10
"""Steps before the smoothed loss is used."""
MIN_STEPS = 30
"""Steps that a test needs."""


class RangeTest(Hook):
    """Reads the loss of every step, which is the same on all ranks, so that they agree on the end.

    `batch_factor` is the peak learning rate for this global batch, divided by `optim.lr`.
    """

    def __init__(self, batch_factor: float) -> None:
        self.batch_factor = batch_factor
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self._average = 0.0

    def on_metrics(self, row: dict[str, float]) -> bool:
        """Add `smoothed_loss`, and return whether the loss has diverged."""
        loss = row["loss"]
        if not math.isfinite(loss) or math.isnan(row["grad_norm"]):
            return True
        if self.rates and row["lr"] == self.rates[-1]:  # fp16 skipped the step
            return False
        self._average = SMOOTHING * self._average + (1 - SMOOTHING) * loss
        row["smoothed_loss"] = self._average / (1 - SMOOTHING ** (len(self.rates) + 1))
        self.rates.append(row["lr"])
        self.losses.append(loss)
        self.smoothed.append(row["smoothed_loss"])
        if len(self.rates) <= WARMUP:
            return False
        first, low = self.smoothed[WARMUP // 2], min(self.smoothed[WARMUP // 2 :])
        return row["smoothed_loss"] - low > DIVERGED * max(first - low, 0.05 * abs(first))

    def finish(self, folder: Path, is_main: bool) -> None:
        """Find the peak; on rank 0, write `lr_range.json` and `lr_range.png`, and print the suggestion and its reason.

        Raises:
            UserError: the losses suggest no learning rate, or the files cannot be written.
        """
        found = self.suggestion()
        if not is_main:
            return
        reason = (
            f"the smoothed loss is lowest at {found['lowest']:.2g} and falls fastest at {found['steepest']:.2g}; "
            "a tenth of the first is stable throughout 1cycle's many steps near the peak"
        )
        text = json.dumps({**found, "reason": reason}, indent=2)
        try:
            (folder / "lr_range.json").write_text(text + "\n", encoding="utf-8")
            self._draw(folder / "lr_range.png", found)
        except OSError as error:
            raise UserError(
                f"cannot write the range test's results to {folder} ({error.strerror}): free some space; they are "
                f"{json.dumps(found)}"
            ) from error
        print(f"suggested   --optim.lr {found['optim.lr']:.2g}\n{textwrap.fill(reason, 80)}")
        print(f"curve       in {shown(folder / 'lr_range.png')}", flush=True)

    def suggestion(self) -> dict[str, float]:
        """Return the learning rates at the lowest smoothed loss and at its steepest fall, and the `optim.lr` to use.

        Raises:
            UserError: the test ended too soon, the loss never fell, or it was still falling.
        """
        count = len(self.rates)
        if count < MIN_STEPS:
            raise UserError(f"the loss diverged after {count} steps of the range test: lower optim.range_low")
        lowest = min(range(WARMUP, count), key=self.smoothed.__getitem__)
        if self.smoothed[lowest] > 0.98 * self.smoothed[WARMUP] or lowest <= WARMUP:
            raise UserError("the loss never fell in the range test: lower optim.range_low, or give more train.steps")
        if lowest == count - 1:
            raise UserError(
                f"the loss was still falling at {self.rates[-1]:.2g}, the end of the range test: raise optim.range_high"
            )
        falls = {
            index: (self.smoothed[index + 1] - self.smoothed[index - 1])
            / math.log(self.rates[index + 1] / self.rates[index - 1])
            for index in range(WARMUP, lowest)
        }
        peak = self.rates[lowest] / 10
        return {
            "lowest": self.rates[lowest],
            "steepest": self.rates[min(falls, key=falls.__getitem__)],
            "peak": peak,
            "optim.lr": peak / self.batch_factor,
        }

    def _draw(self, target: Path, found: dict[str, float]) -> None:
        from matplotlib.figure import Figure  # takes a second to import

        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(self.rates, self.losses, linewidth=0.8, alpha=0.4, label="loss of each step")
        axes.plot(self.rates, self.smoothed, linewidth=1.6, label="smoothed")
        axes.axvline(found["peak"], linestyle="--", color="black", linewidth=1, label=f"suggested {found['peak']:.2g}")
        axes.set_xscale("log")
        low, high = min(self.smoothed), max(self.smoothed[: len(self.smoothed) // 2 + 1])
        axes.set_ylim(low - 0.1 * (high - low), high + 0.3 * (high - low))
        axes.set_xlabel("learning rate of the global batch")
        axes.set_ylabel("training loss")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(target, dpi=120)
