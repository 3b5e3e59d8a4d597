"""Paired trials: a base and candidates take turns until the difference is clear.

A false difference has a chance of 5%, which the looks at the pairs share (Bonferroni): 3% are for
the last look, the rest in equal parts for the earlier ones, from the third pair on. Each look is
Student's t-test of the differences, and its interval is that of this share: a repeated confidence
interval (Jennison and Turnbull, Group Sequential Methods, 2000, chapter 9).
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, stdev
from typing import Generic, NamedTuple, TypeVar

Side = TypeVar("Side")
"""What is trained: the base, or a candidate."""
ERROR = 0.05
LAST = 0.03
"""Its part for the last look."""
FIRST_LOOK = 3
"""Pairs before the first look."""
HOPELESS = math.log(0.7)
"""A difference of the first pair below which a candidate of tune is not tried again."""


@dataclass(frozen=True)
class Trial:
    """What a training measured."""

    samples_per_second: float = 0.0
    peak_mb: float | None = None
    """Largest memory of the process in 10^6 bytes; None if the system does not tell."""
    metric: float = math.nan
    """The validation metric at the end, if the training was a whole one."""
    problem: str = ""
    """The last line of an error; empty if the trial succeeded."""


class Estimate(NamedTuple):
    """A mean difference, with the interval that has it with 95% over all looks."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not contain zero."""
        return self.low > 0 or self.high < 0


Difference = Callable[[Trial, Trial], float]
"""Of a candidate's trial and that of the base; positive if the candidate's is better."""


def log_speed(mine: Trial, base: Trial) -> float:
    """Return the logarithm of the ratio of the speeds."""
    return math.log(mine.samples_per_second / base.samples_per_second)


@dataclass
class Comparison:
    """The trials of a candidate, each beside one of the base with the same seed."""

    most: int = 0
    """Pairs at the last look."""
    candidates: int = 1
    """Candidates that share the chance of a false difference."""
    trials: list[Trial] = field(default_factory=list)
    base: list[Trial] = field(default_factory=list)
    problem: str = ""

    def add(self, trial: Trial, base: Trial) -> None:
        """Add a pair."""
        is_measured = min(trial.samples_per_second, base.samples_per_second) > 0
        if trial.problem or base.problem or not is_measured:
            self.problem = trial.problem or base.problem or "the rows have no samples_per_second"
        else:
            self.trials.append(trial)
            self.base.append(base)

    def estimate(self, difference: Difference = log_speed) -> Estimate:
        """Return the mean difference, with its interval at the look that decided or the last."""
        now = self._look(difference, is_last=False)
        return now if now.is_clear else self._look(difference, is_last=True)

    def is_decided(self, difference: Difference) -> bool:
        """Whether no further pair is needed; equal differences are no early evidence."""
        now = self._look(difference, is_last=False)
        return bool(self.problem) or (now.is_clear and now.low < now.high)

    def _look(self, difference: Difference, is_last: bool) -> Estimate:
        pairs = zip(self.trials, self.base, strict=True)
        differences = [difference(mine, base) for mine, base in pairs]
        share = 0.0
        if is_last or len(differences) >= self.most:
            share = LAST if self.most > FIRST_LOOK else ERROR
        elif len(differences) >= FIRST_LOOK:
            share = (ERROR - LAST) / (self.most - FIRST_LOOK)
        return estimate(differences, share / self.candidates)

    def text(self) -> str:
        """Return how much faster the candidate is."""
        if self.problem or not self.trials:
            return self.problem or "not measured"
        speed = self.estimate()
        if len(self.trials) < 2:
            return f"{math.exp(speed.mean):.2f} times as fast in one round, which is no evidence"
        interval = f"95%: {math.exp(speed.low):.2f} to {math.exp(speed.high):.2f}"
        ratio = f"{math.exp(speed.mean):.2f} times as fast ({interval}, {speed.pairs} rounds)"
        return ratio if speed.is_clear else f"no difference shown: {ratio}"


def estimate(differences: list[float], error: float) -> Estimate:
    """Return the mean, with the interval that misses it with a chance of `error`."""
    count = len(differences)
    mean = fmean(differences) if differences else math.nan
    margin = math.inf
    if count > 1 and error > 0:
        margin = student_t(error, count - 1) * stdev(differences) / math.sqrt(count)
    return Estimate(mean, mean - margin, mean + margin, count)


@cache
def student_t(error: float, freedom: int) -> float:
    """Return the t that is exceeded in size with a chance of `error`, by bisection."""
    low = 0.0
    high = 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if student_t_within(middle, freedom) < 1 - error:
            low = middle
        else:
            high = middle
    return high


def student_t_within(t: float, freedom: int) -> float:
    """Return the chance that Student's t is within -t and t.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for number in range(1 + odd, freedom, 2):
        total += term
        term *= number / (number + 1) * cosine**2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


@dataclass
class Turns(Generic[Side]):
    """Makes the trials of comparisons."""

    measure: Callable[[Side, int], Trial]
    """Trains a side with a seed."""
    most: int
    """Pairs of each comparison."""
    deadline: float = math.inf
    """Of `time.monotonic`; no pair begins that would end later."""
    tick: Callable[[], object] = bool
    """Called after each trial."""
    difference: Difference = log_speed
    longest_s: float = 0.0
    """The longest trial so far."""

    def compare(
        self,
        base: Side,
        candidates: Mapping[str, Side],
        drop: bool = False,
        comparisons: dict[str, Comparison] | None = None,
    ) -> dict[str, Comparison]:
        """Measure each candidate beside the base until its difference is clear.

        Args:
            base: the side that the candidates are compared with.
            candidates: the other sides.
            drop: whether a candidate that is hopelessly slow has one pair only.
            comparisons: has what is known if this is interrupted.
        """
        comparisons = {} if comparisons is None else comparisons
        for name in candidates:
            comparisons[name] = Comparison(self.most, len(candidates))
        left = list(candidates)
        for seed in range(self.most):
            if not left or not self.has_time(1 + len(left)):
                break
            sides = [base, *(candidates[name] for name in left)]
            order = list(range(len(sides)))
            trials: dict[int, Trial] = {}
            for place in reversed(order) if seed % 2 else order:
                trials[place] = self._trial(sides[place], seed)
            for place, name in enumerate(left, 1):
                comparisons[name].add(trials[place], trials[0])
            left = [name for name in left if not self._is_over(comparisons[name], drop)]
        return comparisons

    def has_time(self, trials: int) -> bool:
        """Whether this many trials can end before the deadline."""
        return time.monotonic() + trials * self.longest_s < self.deadline

    def _trial(self, side: Side, seed: int) -> Trial:
        begin = time.monotonic()
        trial = self.measure(side, seed)
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        self.tick()
        return trial

    def _is_over(self, comparison: Comparison, drop: bool) -> bool:
        if comparison.is_decided(self.difference):
            return True
        return drop and comparison.estimate().mean < HOPELESS
