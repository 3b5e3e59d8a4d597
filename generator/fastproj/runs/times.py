"""Where the time of a run went, as far as its rows tell."""

import math
from dataclasses import dataclass
from functools import cache
from statistics import median

from .run import Row, Run

START = "first steps of each start"
TRAIN = "training"
WAIT = "waiting for data"
VALIDATE = "validation"
DROP = 0.7
"""A speed below this share of the speed before is a drop, if it lasts for some rows."""
DROP_ROWS = 5


@dataclass(frozen=True)
class Interval:
    """The time between two rows, or from a start of the run to its first row."""

    row: Row
    before: int
    """The step of the row before."""
    seconds: float
    starts: bool
    """Whether the run was started or resumed at its beginning."""

    @property
    def steps(self) -> int:
        """The steps in it."""
        return max(int(self.row["step"]) - self.before, 0)


@cache
def intervals(run: Run) -> list[Interval]:
    """Return the interval before each row."""
    parts: list[Interval] = []
    ahead = sorted([start for start in run.starts if isinstance(start, int)], reverse=True)
    step = 0
    seconds = 0.0
    for row in run.rows:
        if "seconds" in row:
            from_zero = row["seconds"] < seconds  # each start of projects of 0.3
            took = row["seconds"] - (0.0 if from_zero else seconds)
            starts = not parts or from_zero
            while ahead and (ahead[-1], "train") < (row["step"], row["split"]):
                ahead.pop()
                starts = True
            parts.append(Interval(row, step, took, starts))
            step = row["step"]
            seconds = row["seconds"]
    return parts


def phases(run: Run) -> dict[str, float]:
    """Return the seconds of each phase.

    The first row of each start has the start of loader workers, or compilation.
    """
    times = dict.fromkeys((TRAIN, WAIT, VALIDATE, START), 0.0)
    usual = seconds_per_step(run)
    starting = False
    for part in intervals(run):
        starting = starting or part.starts
        phase = START if starting else TRAIN
        if part.row["split"] == "val":
            # Lightning also validates between two rows of training.
            trained = min(part.steps * usual, part.seconds)
            times[VALIDATE] += part.seconds - trained
            times[phase] += trained
        else:
            share = min(part.row.get("data_wait", 0.0), 1.0)
            waited = 0.0 if starting else part.seconds * share
            times[WAIT] += waited
            times[phase] += part.seconds - waited
            starting = False
    return {name: seconds for name, seconds in times.items() if seconds > 0}


def seconds_per_step(run: Run) -> float:
    """Return the time of most steps; 0 if no row tells it."""
    return median([part.seconds / part.steps for part in _trained(run)] or [0.0])


def samples_per_second(run: Run) -> float | None:
    """Return the speed of most rows of training."""
    speeds = [speed for _, speed in _speeds(run)]
    speeds = speeds or [row["samples_per_second"] for row in run.of("train", "samples_per_second")]
    return median(speeds) if speeds else None


def _trained(run: Run) -> list[Interval]:
    """Return the intervals of training; without those of a start, if there are others."""
    trained = [part for part in intervals(run) if part.row["split"] == "train" and part.steps]
    return [part for part in trained if not part.starts] or trained


def _speeds(run: Run) -> list[tuple[Interval, float]]:
    """Return the speed of each interval of training that has one."""
    name = "samples_per_second"
    return [(part, part.row[name]) for part in _trained(run) if name in part.row]


def events(run: Run) -> list[tuple[int, str]]:
    """Return what happened, each event with its step.

    Resumes, skipped steps, drops of speed, values that are not finite.
    """
    happened: list[tuple[int, str]] = []
    skipped = 0.0
    for place, part in enumerate(intervals(run)):
        before = part.before
        step = part.row["step"]
        if part.starts and place:
            happened.append((before, f"the run was resumed after step {before:,}"))
        count = part.row.get("skipped", skipped) - skipped
        if count > 0:
            happened.append((step, f"{count:g} steps were skipped until step {step:,}"))
        skipped += count
    return sorted(happened + _drops(run) + _not_finite(run))


def _drops(run: Run) -> list[tuple[int, str]]:
    """Return where the training became slower, and stayed so for some rows."""
    speeds = _speeds(run)
    happened = []
    place = DROP_ROWS
    while place + DROP_ROWS <= len(speeds):
        before = median(speed for _, speed in speeds[place - DROP_ROWS : place])
        after = [speed for _, speed in speeds[place : place + DROP_ROWS]]
        if max(after) < DROP * before:
            step = speeds[place][0].before
            change = f"from {before:,.0f} to {median(after):,.0f} samples per second"
            happened.append((step, f"the speed fell {change} after step {step:,}"))
            place += DROP_ROWS
        else:
            place += 1
    return happened


def _not_finite(run: Run) -> list[tuple[int, str]]:
    """Return which values are NaN or infinite."""
    happened = []
    for columns in run.columns.values():
        for name, rows in columns.items():
            steps = [row["step"] for row in rows if not math.isfinite(row[name])]
            if steps:
                count = "1 row" if len(steps) == 1 else f"{len(steps):,} rows"
                text = f"{name} is not finite in {count}, first at step {steps[0]:,}"
                happened.append((steps[0], text))
    return happened
