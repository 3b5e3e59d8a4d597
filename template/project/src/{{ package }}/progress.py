"""How far a run is, which validation was the best, and what is due after a step."""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, Literal, Self

from .config import Config
from .errors import UserError


@dataclass
class Best:
    """The best validation so far by one metric, for early stopping and for the best checkpoint."""

    monitor: str
    mode: Literal["min", "max"]
    value: float = math.nan
    step: int = 0
    """The optimizer step it was at."""
    stale: int = 0
    """Validations since then."""

    def check(self, results: Mapping[str, object]) -> None:
        """Refuse a metric that the model does not report, by a UserError."""
        if self.monitor not in results:
            names = ", ".join(results)
            raise UserError(f"train.monitor is {self.monitor or 'empty'}: use one of the model's metrics, {names}")

    def add(self, results: Mapping[str, float], step: int) -> None:
        """Compare a validation with the best. A metric that is not finite is never the best."""
        self.check(results)
        value = results[self.monitor]
        better = value < self.value if self.mode == "min" else value > self.value
        if math.isfinite(value) and (math.isnan(self.value) or better):
            self.value, self.step, self.stale = value, step, 0
        else:
            self.stale += 1


@dataclass
class Progress:
    """Counters of a run. The `should_*` properties are about the step just made."""

    total_steps: int
    log_every: int
    eval_every: int | None
    """Optimizer steps between validations; None for no validation and no checkpoint, as in a range test."""
    save_every: int
    patience: int | None
    best: Best
    step: int = 0
    """Optimizer steps made, including those that fp16 skipped."""
    updates: int = 0
    """Steps that updated the weights."""
    forward_batch: int | None = None
    """Samples of a forward pass, once a whole micro-batch did not fit into memory."""
    validated: int = 0
    """The step of the last validation."""
    ended: bool = False
    """Whether a hook has ended the run."""

    @classmethod
    def start(cls, cfg: Config, total_steps: int, steps_per_epoch: int) -> Self:
        """Return the progress of a run that has not begun."""
        best = Best(cfg.train.monitor, cfg.train.monitor_mode or "min")
        every = cfg.checkpoint.every or total_steps
        if cfg.optim.schedule == "range":
            return cls(total_steps, 1, None, every, None, best)
        eval_every = cfg.train.eval_every or steps_per_epoch
        return cls(total_steps, cfg.log.every, eval_every, every, cfg.train.patience, best)

    @property
    def stopped_early(self) -> bool:
        """Whether as many validations as `train.patience` were no better than the best."""
        return self.patience is not None and self.best.stale >= self.patience

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self.step >= self.total_steps or self.ended or self.stopped_early

    @property
    def should_validate(self) -> bool:
        """Whether a validation is due."""
        if self.eval_every is None:
            return False
        return self.step % self.eval_every == 0 or self.step == self.total_steps or self.ended

    @property
    def validation_due(self) -> bool:
        """Whether the validation after the last step is still to be made."""
        return self.step > 0 and self.should_validate and self.validated != self.step

    @property
    def should_save(self) -> bool:
        """Whether a checkpoint is due."""
        return self.should_validate or (self.eval_every is not None and self.step % self.save_every == 0)

    @property
    def should_log(self) -> bool:
        """Whether a row of metrics is due; if not, nothing after the step synchronizes with the device."""
        return self.is_logged(self.step)

    def is_logged(self, step: int) -> bool:
        """Whether a row is due after a step: as `log.every` asks, and before a validation or a checkpoint."""
        if step % self.log_every == 0 or step == self.total_steps:
            return True
        return self.eval_every is not None and (step % self.eval_every == 0 or step % self.save_every == 0)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        counts = {name: getattr(self, name) for name in ("step", "updates", "validated", "forward_batch")}
        return {**counts, "best": list(astuple(self.best))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. The best validation is kept if it was measured by the same metric."""
        self.step, self.updates, self.forward_batch = state["step"], state["updates"], state.get("forward_batch")
        self.validated = self.step if state.get("validated", True) is True else state["validated"]  # True: 0.3
        if state["best"][:2] == [self.best.monitor, self.best.mode]:
            self.best = Best(*state["best"])
