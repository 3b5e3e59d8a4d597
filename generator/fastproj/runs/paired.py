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
BASE = ""
"""The name of the base among the sides."""
ERROR = 0.05
LAST = 0.03
"""Its part for the last look."""
FIRST_LOOK = 3
"""Pairs before the first look."""


@dataclass(frozen=True)
class Trial:
    """What a training measured."""

    samples_per_second: float = 0.0
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
"""Of a candidate's trial and that of the base."""


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

    def add(
        self,
        trial: Trial,
        base: Trial,
    ) -> None:
        """Add a pair."""
        is_measured = min(trial.samples_per_second, base.samples_per_second) > 0
        if trial.problem or base.problem or not is_measured:
            self.problem = trial.problem or base.problem or "the rows have no samples_per_second"
        else:
            self.trials.append(trial)
            self.base.append(base)

    def differences(self, difference: Difference = log_speed) -> list[float]:
        """Return the difference of each pair."""
        pairs = zip(self.trials, self.base, strict=True)
        return [difference(mine, base) for mine, base in pairs]

    def estimate(self, difference: Difference = log_speed) -> Estimate:
        """Return the mean difference, with its interval at the look that decided or the last."""
        now = self.look(difference)
        return now if now.is_clear else self.look(difference, is_last=True)

    def look(
        self,
        difference: Difference,
        is_last: bool = False,
    ) -> Estimate:
        """Return the mean difference, with the interval of the look after the present pairs."""
        differences = self.differences(difference)
        share = 0.0
        if is_last or len(differences) >= self.most:
            share = LAST if self.most > FIRST_LOOK else ERROR
        elif len(differences) >= FIRST_LOOK:
            share = (ERROR - LAST) / (self.most - FIRST_LOOK)
        return estimate(differences, share / self.candidates)

    def speed(self) -> Estimate:
        """Return how many times as fast the candidate is."""
        mean, low, high, pairs = self.estimate()
        return Estimate(math.exp(mean), math.exp(low), math.exp(high), pairs)

    def speed_text(self) -> str:
        """Return how many times as fast the candidate is, with the interval."""
        mean, low, high, pairs = self.speed()
        return f"{mean:.3f} times as fast (95%: {low:.3f} to {high:.3f}, {pairs} pairs)"

    def text(self) -> str:
        """Return how much faster the candidate is."""
        if self.problem or not self.trials:
            return self.problem or "not measured"
        if len(self.trials) < 2:
            return f"{self.speed().mean:.2f} times as fast in one pair, which is no evidence"
        return ("" if self.estimate().is_clear else "no difference shown: ") + self.speed_text()


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

    measure: Callable[[dict[str, Side], int], dict[str, Trial]]
    """Trains sides with a seed; the base is named BASE."""
    most: int
    """Pairs of each comparison."""
    deadline: float = math.inf
    """Of `time.monotonic`; no pair begins that would end later."""
    tick: Callable[[int], object] = bool
    """Called with the number of trials after them."""
    difference: Difference = log_speed
    widest: float = math.inf
    """The widest interval that is clear enough."""
    worst: float = -math.inf
    """A mean difference below which a candidate is not tried again."""
    longest_s: float = 0.0
    """The longest trial so far."""

    def compare(
        self,
        base: Side,
        candidates: Mapping[str, Side],
        comparisons: dict[str, Comparison],
    ) -> dict[str, Comparison]:
        """Measure each candidate beside the base until its difference is clear.

        Args:
            base: the side that the candidates are compared with.
            candidates: the other sides.
            comparisons: has what is known if this is interrupted.
        """
        for name in candidates:
            comparisons[name] = Comparison(self.most, len(candidates))
        left = list(candidates)
        for seed in range(self.most):
            if not left or not self.has_time(1 + len(left)):
                break
            sides = {BASE: base} | {name: candidates[name] for name in left}
            begin = time.monotonic()
            trials = self.measure(dict(reversed(sides.items())) if seed % 2 else sides, seed)
            self.longest_s = max(self.longest_s, (time.monotonic() - begin) / len(sides))
            self.tick(len(sides))
            for name in left:
                comparisons[name].add(trials[name], trials[BASE])
            left = [name for name in left if not self._is_over(comparisons[name])]
        return comparisons

    def has_time(self, trials: int) -> bool:
        """Whether this many trials can end before the deadline."""
        return time.monotonic() + trials * self.longest_s < self.deadline

    def _is_over(self, comparison: Comparison) -> bool:
        """Whether no further pair is needed; equal differences are no early evidence."""
        now = comparison.look(self.difference)
        is_decided = now.is_clear and 0 < now.high - now.low <= self.widest
        return bool(comparison.problem) or is_decided or now.mean < self.worst
