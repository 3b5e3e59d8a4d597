"""Comparisons of trials: interleaved rounds, so that a machine that slows down slows all of them."""

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
class Compared:
    """A candidate's trials, each beside one of the base."""

    trials: list[Trial] = field(default_factory=list)
    base: list[Trial] = field(default_factory=list)
    problem: str = ""

    @property
    def ratios(self) -> list[float]:
        """Speeds divided by those of the base in the same round."""
        pairs = zip(self.trials, self.base, strict=True)
        return sorted(mine.samples_per_second / other.samples_per_second for mine, other in pairs)

    @property
    def ratio(self) -> float:
        """The median ratio; 0 without one."""
        return median(self.ratios) if self.trials else 0.0

    def extend(self, other: "Compared") -> None:
        """Add the rounds of another comparison."""
        self.trials, self.base = self.trials + other.trials, self.base + other.base
        self.problem = self.problem or other.problem

    def text(self) -> str:
        """Return the ratio with its range, or the problem."""
        if self.problem:
            return self.problem
        if not self.trials:
            return "not measured"
        rounds = f"{len(self.ratios)} rounds" if len(self.ratios) > 1 else "one round"
        return f"{self.ratio:.2f} times as fast ({self.ratios[0]:.2f} to {self.ratios[-1]:.2f} in {rounds})"


@dataclass(frozen=True)
class Measure:
    """How candidates are compared."""

    trainer: Trainer
    rounds: int
    deadline: float
    """Of `time.monotonic`."""
    tick: Callable[[int], object]
    """Called with the number of trials that were made, or dropped."""

    def compare(
        self, base: Options, candidates: Mapping[str, Options], drop: bool = True
    ) -> dict[str, Compared]:
        """Measure each candidate beside the base; with `drop`, those that fail or are hopeless only once."""
        found = {name: Compared() for name in candidates}
        left = dict(candidates)
        for number in range(self.rounds):
            if not left or time.monotonic() > self.deadline:
                self.tick((self.rounds - number) * (len(left) + 1))
                break
            beside = self._trial(base)
            for name in [*left][:: -1 if number % 2 else 1]:
                trial, one = self._trial(left[name]), found[name]
                if trial.problem or beside.problem:
                    one.problem = trial.problem or beside.problem
                else:
                    one.trials.append(trial)
                    one.base.append(beside)
                if one.problem or (drop and one.ratio < HOPELESS):
                    del left[name]
                    self.tick(self.rounds - number - 1)
        return found

    def proven(self, compared: Mapping[str, Compared]) -> str | None:
        """Return the fastest of those that were faster in each round."""
        faster = [
            name
            for name, it in compared.items()
            if len(it.trials) == self.rounds and it.ratios[0] >= PROVEN
        ]
        return max(faster, key=lambda name: compared[name].ratio, default=None)

    def _trial(self, options: Options) -> Trial:
        trial = self.trainer.measure(options)
        self.tick(1)
        return trial
