"""Comparisons of trials: interleaved rounds, so that a busy machine slows all of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from .options import Options
from .trials import Trainer, Trial

PROVEN = 1.02
"""Faster by this factor in each round is proven faster."""
HOPELESS = 0.7
"""A candidate that is this much slower in its first round is not tried again."""


@dataclass
class Comparison:
    """A candidate's trials, each beside one of the base."""

    trials: list[Trial] = field(default_factory=list)
    base: list[Trial] = field(default_factory=list)
    problem: str = ""

    @property
    def ratios(self) -> list[float]:
        """Speeds divided by those of the base in the same round, in ascending order."""
        pairs = zip(self.trials, self.base, strict=True)
        return sorted(mine.samples_per_second / other.samples_per_second for mine, other in pairs)

    @property
    def ratio(self) -> float:
        """The median ratio; 0 without one."""
        return median(self.ratios) if self.trials else 0.0

    def add(self, trial: Trial, base: Trial) -> None:
        """Add a round."""
        if trial.problem or base.problem:
            self.problem = trial.problem or base.problem
        else:
            self.trials.append(trial)
            self.base.append(base)

    def extend(self, other: "Comparison") -> None:
        """Add the rounds of another comparison."""
        self.trials += other.trials
        self.base += other.base
        self.problem = self.problem or other.problem

    def text(self) -> str:
        """Return the ratio with its range, or the problem."""
        if self.problem or not self.trials:
            return self.problem or "not measured"
        ratios = self.ratios
        rounds = f"{len(ratios)} rounds" if len(ratios) > 1 else "one round"
        return f"{self.ratio:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds})"


@dataclass(frozen=True)
class Measure:
    """How candidates are compared."""

    trainer: Trainer
    rounds: int
    deadline: float
    """Of `time.monotonic`."""
    tick: Callable[[], object]
    """Called after each trial."""

    def compare(
        self,
        base: Options,
        candidates: Mapping[str, Options],
        drop: bool = True,
    ) -> dict[str, Comparison]:
        """Measure each candidate beside the base; `drop` those that fail or are hopeless."""
        comparisons = {name: Comparison() for name in candidates}
        left = list(candidates)
        for _ in range(self.rounds):
            if not left or time.monotonic() > self.deadline:
                break
            beside = self._trial(base)
            for name in left:
                comparisons[name].add(self._trial(candidates[name]), beside)
            left = [name for name in reversed(left) if not _is_out(comparisons[name], drop)]
        return comparisons

    def proven(self, comparisons: Mapping[str, Comparison]) -> str | None:
        """Return the fastest of those that were faster in each round."""
        faster = [
            name
            for name, comparison in comparisons.items()
            if len(comparison.trials) == self.rounds and comparison.ratios[0] >= PROVEN
        ]
        return max(faster, key=lambda name: comparisons[name].ratio, default=None)

    def _trial(self, options: Options) -> Trial:
        trial = self.trainer.measure(options)
        self.tick()
        return trial


def _is_out(comparison: Comparison, drop: bool) -> bool:
    """Whether a candidate is not tried again."""
    return bool(comparison.problem) or (drop and comparison.ratio < HOPELESS)
