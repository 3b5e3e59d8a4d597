"""Early stopping: end the run when a validation metric no longer improves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ..component import Component
from ..config_base import Section, within
from ..distributed import World
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

    def __init__(
        self,
        cfg: EarlyStoppingConfig,
        world: World,
    ) -> None:
        self.cfg = cfg
        self.best = math.inf
        """The best value so far, negated if a higher one is better."""
        self.since = 0
        """Validations since then."""
        self.step = 0
        """Step of the last validation."""
        self.rule = ""
        """Whose best value that is: the sign and the metric."""

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        """Count a validation, unless a resumed run repeats one that its checkpoint has counted."""
        metric = run.cfg.train.monitor
        sign = -1 if run.cfg.train.monitor_mode == "max" else 1
        if metric not in results:
            return  # an error follows, as for any run
        rule = f"{sign} {metric}"
        if self.rule not in ("", rule):
            self.best = math.inf
            self.since = 0
        self.rule = rule
        if run.step != self.step:
            self.step = run.step
            self.since += 1
            value = sign * results[metric]
            if math.isfinite(value) and value < self.best - self.cfg.min_delta:
                self.best = value
                self.since = 0
        if self.since >= self.cfg.patience and run.step < run.plan.total_steps:
            run.finished = True
            if run.world.rank == 0:
                tqdm.write(
                    f"early_stopping ends the run at step {run.step:,}: {self.since} validations "
                    f"in a row did not improve {metric}"
                )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since, "step": self.step, "rule": self.rule}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
    ) -> None:
        """Restore the count; a run that had none starts to count."""
        self.best = state.get("best", math.inf)
        self.since = state.get("since", 0)
        self.step = state.get("step", 0)
        self.rule = state.get("rule", "")
