"""What limits a run and what went wrong, in sentences with numbers.

They say only what the rows prove.
"""

import math

from .run import Row, Run
from .synchronization import waiting_calls
from .times import TRAIN, VALIDATE, WAIT, events, phases, samples_per_second, seconds_per_step

SHARE = {WAIT: 0.1, VALIDATE: 0.25}
"""Shares of the time from which the loader, or validation, is named."""


def diagnose(run: Run) -> list[str]:
    """Return the findings about a run, the most important one first."""
    found = [
        unfinished(run),
        _diverged(run),
        *_slow(run),
        *waiting_calls(run.folder),
        _overfitting(run),
    ]
    return [sentence for sentence in found if sentence]


def unfinished(run: Run) -> str:
    """Return how far a run is that has not reached its last step, and what its last row says about it."""
    step, total, last = run.rows[-1]["step"], run.total_steps, run.rows[-1]["split"]
    validates_last = "lightning" not in run.versions  # LightningCLI ends without a validation
    if total is None or (step >= total and (last == "val" or not validates_last)):
        return ""
    stops_early = run.options.get("early_stopping.enabled") is True
    stops_early |= "EarlyStopping" in str(run.options.get("trainer.callbacks"))
    if stops_early and last == "val":
        return f"The last row is of step {step:,} of {total:,}: early stopping ended the run, or it has not finished."
    begin = f"The run has not finished: step {step:,} of {total:,}"
    if run.age < max(60.0, 20 * _seconds_per_row(run)):
        return f"{begin}; its last row is {duration(run.age)} old, so it may still train."
    how = "" if "lightning" in run.versions else f" --run.name {run.name} resumes it."
    return f"{begin}; its last row is {duration(run.age)} old.{how}"


def _seconds_per_row(run: Run) -> float:
    return seconds_per_step(run) * float(run.rows[-1]["step"]) / len(run.rows)


def _diverged(run: Run) -> str:
    for row in run.rows:
        if not math.isfinite(row.get("loss", 0.0)):
            kind = "validation" if row["split"] == "val" else "training"
            return f"The {kind} loss is {row['loss']} at step {row['step']:,}: lower {run.key('optim.lr')}."
    losses = [row for row in run.of("train") if "loss" in row]
    if len(losses) < 4:
        return ""
    lowest, end = min(losses, key=_loss), sum(map(_loss, losses[-3:])) / 3
    if (
        end > lowest["loss"] + 2 * abs(losses[0]["loss"] - lowest["loss"])
        and end > 1.5 * losses[0]["loss"] > 0
    ):
        rise = f"from {lowest['loss']:.4g} at step {lowest['step']:,} to {end:.4g} in the last rows"
        return f"The training loss diverged: it rose {rise}; lower {run.key('optim.lr')}."
    return ""


def _slow(run: Run) -> list[str]:
    """Name the loader and validation if they take much of the time, or say that they do not."""
    times = phases(run)
    trained, waited, validated = (times.get(name, 0.0) for name in (TRAIN, WAIT, VALIDATE))
    if not trained + waited:
        return []
    wait, share = waited / (trained + waited), validated / sum(times.values())
    found = []
    if wait >= SHARE[WAIT]:
        workers = run.option("loader.workers")
        known = isinstance(workers, int) and workers > 0
        more = f"try {run.key('loader.workers')} {2 * workers if known else 4}"
        now = "" if workers is None else f" (now {workers})"
        found.append(
            f"The loader is the bottleneck: data wait {wait:.0%} of the training loop; {more}{now}."
        )
    if share >= SHARE[VALIDATE]:
        what = (
            "Validation takes"
            if "lightning" in run.versions
            else "Validation, with its checkpoints, takes"
        )
        every = run.option("train.eval_every")
        now = (
            ""
            if run.key("train.eval_every") not in run.options
            else f" (now {every or 'each epoch'})"
        )
        found.append(f"{what} {share:.0%} of the time: raise {run.key('train.eval_every')}{now}.")
    if not found and any("data_wait" in row for row in run.rows):
        rest = f"data wait {wait:.0%}, validation {share:.0%} of the time"
        found.append(f"Neither the loader nor validation is the bottleneck: {rest}.")
    return found


def _overfitting(run: Run) -> str:
    losses, best = [row for row in run.of("val") if "loss" in row], lowest(run)
    if len(losses) < 4 or best is None:
        return ""
    last = losses[-1]
    later = [row for row in losses if row["step"] > best["step"]]
    if len(later) < 2 or min(map(_loss, later[-2:])) < best["loss"] + 0.1 * abs(best["loss"]):
        return ""
    trained = [row for row in run.of("train") if "loss" in row]
    then = [row["loss"] for row in trained if row["step"] <= best["step"]][-3:]
    now = [row["loss"] for row in trained][-3:]
    if not then or sum(now) / len(now) >= sum(then) / len(then):
        return ""
    rise = f"from {best['loss']:.4g} at step {best['step']:,} to {last['loss']:.4g} at step {last['step']:,}"
    return f"The model overfits: the validation loss rose {rise}, while the training loss fell."


def lowest(run: Run) -> Row | None:
    """Return the row of the lowest validation loss."""
    losses = [row for row in run.of("val") if math.isfinite(row.get("loss", math.nan))]
    return min(losses, key=_loss, default=None)


def compare(runs: list[Run], differing: dict[str, list[str]]) -> list[str]:
    """Compare the lowest validation losses and the speeds of several runs."""
    found = []
    losses = {run.name: best["loss"] for run in runs if (best := lowest(run))}
    if len(losses) > 1:
        low, high = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
        found.append(
            f"{low} has the lowest validation loss, {losses[low]:.4g}; the highest is {losses[high]:.4g}, {high}."
        )
    speeds = {run.name: it for run in runs if (it := samples_per_second(run))}
    fast, slow = (choose(speeds, key=speeds.__getitem__, default="") for choose in (max, min))
    if fast and speeds[fast] > 1.2 * speeds[slow]:
        ratio = f"{speeds[fast] / speeds[slow]:.1f} times as many samples per second as {slow}"
        found.append(f"{fast} trains {ratio}.")
        keys = {run.key("train.micro_batch") for run in runs}
        if differing.keys() == keys:
            by_name = {run.name: run.option("train.micro_batch") for run in runs}
            if by_name[fast] > by_name[slow]:
                found.append(
                    f"The small batch is the bottleneck of {slow}: only {', '.join(keys)} differs."
                )
    return found


def happened(run: Run) -> list[tuple[int, str]]:
    """Return the events of a run, among them values that are not finite, and that it has not finished."""
    found = events(run)
    for name in dict.fromkeys(
        name for row in run.rows for name in row if name not in ("split", "step")
    ):
        steps = [row["step"] for row in run.rows if not math.isfinite(row.get(name, 0.0))]
        if steps:
            found.append(
                (steps[0], f"{name} is not finite in {len(steps)} rows, first at step {steps[0]:,}")
            )
    if ending := unfinished(run):
        found.append((run.rows[-1]["step"], ending[0].lower() + ending[1:].rstrip(".")))
    return sorted(found, key=lambda event: event[0])


def duration(seconds: float) -> str:
    """Format a duration: 3.2 s, 12 min 4 s, 3 h 2 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours:,} h {left} min" if hours else f"{minutes} min {rest} s"


def _loss(row: Row) -> float:
    return float(row["loss"])
