"""Runs that `bench` compares: in rounds, so that a slow phase of the machine affects all of them."""

import math
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import bench_run, trial
from .bench_techniques import LOG_EVERY
from .tuning.found import number

CHUNKS = 5
"""Parts of a run whose median speed counts: a short disturbance is in one of them."""
PROGRAM = f"{__package__}.bench_run"
LIMIT = 600.0
"""Seconds for a single run, which may compile."""
MIN_ROUNDS = 2


@dataclass(frozen=True)
class Case:
    """A run to measure."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """In addition to those of all runs."""
    changes: Sequence[str] = ()
    """What `bench_run` changes."""


@dataclass
class Measured:
    """What the runs of a case gave, one value per round; a value is missing where a run has none."""

    samples_per_second: list[float] = field(default_factory=list)
    memory_gb: list[float] = field(default_factory=list)
    mfu: list[float] = field(default_factory=list)
    data_wait: list[float] = field(default_factory=list)
    reason: str = ""
    """Why there is none, or no further one."""

    def add(self, found: trial.Trial) -> None:
        """Add a run, or say why it has no values."""
        if found.outcome != "ok":
            self.reason = f"{found.outcome}: {found.reason}" if found.reason else found.outcome
            return
        self.samples_per_second.append(speed(found.rows))
        given = {"memory_gb": found.memory_gb, **{key: found.median(key) for key in ("mfu", "data_wait")}}
        for key, value in given.items():
            if value is not None and not math.isnan(value):
                getattr(self, key).append(value)


@dataclass(frozen=True)
class Effect:
    """How many times faster runs with a technique are than without: the ratio of medians, its lowest and highest."""

    ratio: float
    low: float
    high: float
    kind: Literal["faster", "slower", "none", "unknown"]
    """none: the medians differ by no more than the values of the two sides vary, added up; unknown: one round only."""


def effect(without: Sequence[float], with_it: Sequence[float]) -> Effect:
    """Compare the samples per second of runs without and with a technique."""
    before, after = statistics.median(without), statistics.median(with_it)
    spread = max(without) - min(without) + max(with_it) - min(with_it)
    kind: Any = "none" if abs(after - before) <= spread else "faster" if after > before else "slower"
    kind = kind if min(len(without), len(with_it)) > 1 else "unknown"
    return Effect(after / before, min(with_it) / max(without), max(with_it) / min(without), kind)


def speed(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the samples per second of a run: the median over its chunks, whose rows are of equal numbers of steps."""
    rates = [row["samples_per_second"] for row in rows]
    size = max(1, len(rates) // CHUNKS)
    chunks = [rates[start : start + size] for start in range(0, len(rates) - size + 1, size)]
    return float(statistics.median(statistics.harmonic_mean(chunk) for chunk in chunks))


class Budget:
    """The seconds that are left."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Return how many there are, 0 at least."""
        return max(0.0, self.end - time.monotonic())


def run(case: Case, base: Sequence[str], steps: int, warmup: int, limit: float, **others: Any) -> trial.Trial:
    """Train for some steps after the warm-up, with the options `base` and those of the case; `others` are a trial's."""
    options = dict(case.options)
    every = min(int(options.pop(LOG_EVERY, steps)), max(1, steps // CHUNKS))
    given = [*base, *(f"--{key}={value}" for key, value in options.items())]
    os.environ[bench_run.VARIABLE] = "+".join(case.changes)
    rounded = -(-steps // every) * every
    return trial.run(
        given, steps=rounded, warmup=-(-warmup // every) * every, every=every, limit=limit,
        program=PROGRAM, **others,
    )  # fmt: skip


def measure(
    cases: Sequence[Case], base: Sequence[str], rounds: int, steps: int, warmup: int, budget: Budget
) -> tuple[dict[str, Measured], int]:
    """Run all cases in each round, in an order that alternates, until the budget is used up.

    Those that fail in a round are not started again. Returns what was measured, and the exit status of a signal that
    has ended it, or 0.

    Raises:
        SystemExit: a signal came before there was anything to compare.
    """
    found = {case.name: Measured() for case in cases}
    longest, said = 0.0, Progress(rounds * len(cases))
    try:
        for number in range(rounds):
            began = time.monotonic()
            if number >= MIN_ROUNDS and longest > budget.left():
                break
            for case in cases if number % 2 == 0 else reversed(cases):
                _add(found[case.name], case, base, steps, warmup, budget, said)
            longest = max(longest, time.monotonic() - began)
    except SystemExit as ended:
        if not found[cases[0].name].samples_per_second:
            raise
        said.note("stopped: what follows is of the runs that had ended")
        return found, int(ended.code or 0)
    finally:
        said.close()
    return found, 0


def _add(
    measured: Measured, case: Case, base: Sequence[str], steps: int, warmup: int, budget: Budget, said: "Progress"
) -> None:
    """Run a case once more, unless it has failed before or the budget is used up."""
    if not measured.reason and not budget.left():
        measured.reason = "the budget was used up"
    if measured.reason:
        said.add(f"{case.name}: {measured.reason}")
        return
    found = run(case, base, steps, warmup, min(LIMIT, budget.left()))
    measured.add(found)
    if found.outcome == "timeout" and not budget.left():
        measured.reason = "the budget was used up"
    rate = f"{number(measured.samples_per_second[-1])} samples/s" if not measured.reason else measured.reason
    said.add(f"{case.name}: {rate}")


class Progress:
    """The number of runs, on stderr: one line that is updated in a terminal, elsewhere a line per run."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.open = total, 0, False

    def add(self, text: str) -> None:
        """Count a run, and say what it gave."""
        self.done += 1
        line = f"{self.done}/{self.total} {text}"[:79]
        self.open = sys.stderr.isatty()
        print(f"\r{line:79}" if self.open else line, end="" if self.open else "\n", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Say something in a line of its own."""
        self.close()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self.open:
            print(file=sys.stderr, flush=True)
        self.open = False
