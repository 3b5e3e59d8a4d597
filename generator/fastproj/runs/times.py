"""Where the time of a run went, as far as its rows tell."""

from dataclasses import dataclass
from statistics import median

from .run import Row, Run

START, TRAIN, WAIT, VALIDATE = (
    "first steps of each start",
    "training",
    "waiting for data",
    "validation",
)


@dataclass(frozen=True)
class Interval:
    """The time between two rows, or from a start of the run to its first row."""

    row: Row
    steps: int
    seconds: float
    starts: bool
    """Whether the run was started or resumed at its beginning."""


def intervals(run: Run) -> list[Interval]:
    """Return the interval before each row.

    `seconds` of the rows begin at 0 again when a run is resumed.
    """
    batch = _global_batch(run)
    found: list[Interval] = []
    before: Row = {"step": 0, "seconds": 0.0}
    for row in run.rows:
        if "seconds" not in row:
            continue
        steps = max(row["step"] - before["step"], 0)
        starts = not found or _resumed(row, before["seconds"], steps, batch)
        if starts and found:
            before = {"step": before["step"], "seconds": 0.0}
        found.append(Interval(row, steps, max(row["seconds"] - before["seconds"], 0.0), starts))
        before = row
    return found


def _global_batch(run: Run) -> float:
    """Return the samples of a step, which follow from the speed and the time of most rows; 0 if unknown."""
    samples = [
        row["samples_per_second"]
        * (row["seconds"] - before["seconds"])
        / (row["step"] - before["step"])
        for before, row in zip(run.rows, run.rows[1:], strict=False)
        if row.get("samples_per_second")
        and "seconds" in row
        and "seconds" in before
        and row["step"] > before["step"]
    ]
    return median(samples) if samples else 0.0


def _resumed(row: Row, before: float, steps: int, batch: float) -> bool:
    """Whether a run was resumed before a row, also if the resumed run has trained for longer than the row before."""
    if row["seconds"] < before:
        return True
    if not row.get("samples_per_second") or batch <= 0:
        return False
    took = steps * batch / row["samples_per_second"]
    unsure = 0.02 + 0.05 * took
    return bool(abs(row["seconds"] - took) < unsure < abs(row["seconds"] - before - took))


def phases(run: Run) -> dict[str, float]:
    """Return the seconds of each phase.

    The first row of each start has the start of loader workers, or compilation.
    """
    found = dict.fromkeys((TRAIN, WAIT, VALIDATE, START), 0.0)
    usual, starting = seconds_per_step(run), False
    for it in intervals(run):
        starting = starting or it.starts
        if it.row["split"] == "val":  # Lightning also validates between two rows of training
            trained = min(it.steps * usual, it.seconds)
            found[VALIDATE] += it.seconds - trained
            found[START if starting else TRAIN] += trained
            continue
        waited = 0.0 if starting else it.seconds * min(it.row.get("data_wait", 0.0), 1.0)
        found[WAIT] += waited
        found[START if starting else TRAIN] += it.seconds - waited
        starting = False
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def seconds_per_step(run: Run) -> float:
    """Return the time of most steps; 0 if no row tells it."""
    return median([it.seconds / it.steps for it in _trained(run)] or [0.0])


def samples_per_second(run: Run) -> float | None:
    """Return the speed of most rows of training."""
    trained = [it.row for it in _trained(run)] or run.of("train")
    speeds = [row["samples_per_second"] for row in trained if "samples_per_second" in row]
    return median(speeds) if speeds else None


def _trained(run: Run) -> list[Interval]:
    found = [it for it in intervals(run) if it.row["split"] == "train" and it.steps > 0]
    return [it for it in found if not it.starts] or found


def events(run: Run) -> list[tuple[int, str]]:
    """Return what happened, each with its step: resumes, skipped steps, missing rows, slow steps, NaN."""
    found: list[tuple[int, str]] = []
    usual, before, skipped = seconds_per_step(run), 0, 0
    spans = [it.steps for it in _trained(run)]
    for place, it in enumerate(intervals(run)):
        row = it.row
        if it.starts and place:
            found.append((before, f"the run was resumed after step {before:,}"))
        elif it.steps > 2 * max(median(spans or [0]), 1) and place:
            found.append(
                (before, f"no row of the steps from {before + 1:,} to {row['step'] - 1:,}")
            )
        elif row["split"] == "train" and it.seconds > max(
            5 * usual * it.steps, usual * it.steps + 5
        ):
            slow = f"{it.seconds:.1f} s, {it.seconds / max(usual * it.steps, 1e-9):.0f} times as long as most steps"
            found.append((before, f"the steps from {before + 1:,} to {row['step']:,} took {slow}"))
        if row.get("skipped", 0) > skipped:
            found.append(
                (
                    row["step"],
                    f"{row['skipped'] - skipped:g} steps were skipped until step {row['step']:,}",
                )
            )
        before, skipped = row["step"], row.get("skipped", skipped)
    return found
