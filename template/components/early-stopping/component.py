"""Early stopping: end the run when a validation metric no longer improves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ..component import Component
from ..config_base import Section, within
from ..distributed import World
from ..errors import UserError
from ..run import Run


@dataclass(frozen=True)
class EarlyStoppingConfig(Section):
    """Early stopping, Prechelt 1998 (doi:10.1007/3-540-49430-8_3)."""

    enabled: bool = False
    """End the run when `train.monitor` has not improved for `patience` validations."""
    patience: int = within("[1, inf)", 5)
    """Validations in a row without improvement after which the run ends."""
    min_delta: float = within("[0, inf)", 0.0)
    """Smallest change of the metric that counts as an improvement, in its unit."""


class EarlyStopping(Component):
    """Counts the validations since the best one."""

    name = "early_stopping"

    def __init__(self, cfg: EarlyStoppingConfig, world: World) -> None:
        self.cfg = cfg
        self.best, self.since, self.step = math.inf, 0, 0
        """The best value so far, negative if a higher one is better; validations since then; step of the last one."""

    def on_validation(self, run: Run, results: dict[str, float]) -> None:
        """Count a validation, unless a resumed run repeats one that its checkpoint has counted."""
        metric, sign = run.cfg.train.monitor, 1 if run.cfg.train.monitor_mode == "min" else -1
        if metric not in results:
            raise UserError(
                f"train.monitor is {metric}: the validation metrics are {', '.join(results)}"
            )
        if run.step != self.step:
            improves = sign * results[metric] < self.best - self.cfg.min_delta
            self.best = sign * results[metric] if improves else self.best
            self.since = 0 if improves else self.since + 1
            self.step = run.step
        if self.since >= self.cfg.patience and run.step < run.plan.total_steps:
            run.finished = True
            if run.world.rank == 0:
                unimproved = f"{self.since} validations in a row did not improve {metric} {sign * self.best:.4g}"
                tqdm.write(f"early_stopping ends the run at step {run.step:,}: {unimproved}")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count; a run that had none starts to count."""
        self.best, self.since = state.get("best", math.inf), state.get("since", 0)
        self.step = state.get("step", 0)
