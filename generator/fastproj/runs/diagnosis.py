"""What limits a run and what went wrong, in sentences that say only what the rows prove."""

import math

from .run import Row, Run
from .times import TRAIN, VALIDATE, WAIT, events, phases, samples_per_second, seconds_per_step

MOST_WAIT = 0.1
"""Share of the training loop from which the loader is named."""
MOST_VALIDATION = 0.25
"""Share of the time from which validation is named."""


def diagnose(run: Run) -> list[str]:
    """Return the findings about a run, the most important one first."""
    findings = [unfinished(run), _diverged(run), *_bottlenecks(run), _overfitting(run)]
    return [sentence for sentence in findings if sentence]


def unfinished(run: Run) -> str:
    """Return how far a run is that has not reached its last step; empty if it has."""
    step = run.rows[-1]["step"]
    total = run.total_steps
    if total is None or step >= total:
        return ""
    callbacks = str(run.options.get("trainer.callbacks"))
    stops_early = run.options.get("early_stopping.enabled") or "EarlyStopping" in callbacks
    if stops_early and run.rows[-1]["split"] == "val":
        ending = "early stopping ended the run, or it has not finished"
        return f"The last row is of step {step:,} of {total:,}: {ending}."

    age = f"its last row is {duration(run.age)} old"
    begin = f"The run has not finished: step {step:,} of {total:,}; {age}"
    seconds_per_row = seconds_per_step(run) * step / len(run.rows)
    if run.age < max(60.0, 20 * seconds_per_row):
        return f"{begin}, so it may still train."
    return f"{begin}. {run.names.resume.format(name=run.name)} resumes it."


def _diverged(run: Run) -> str:
    lower = f"lower {run.names.name('optim.lr')}"
    for row in run.rows:
        if not math.isfinite(row.get("loss", 0.0)):
            kind = "validation" if row["split"] == "val" else "training"
            return f"The {kind} loss is {row['loss']} at step {row['step']:,}: {lower}."

    rows = run.of("train", "loss")
    if len(rows) < 4:
        return ""
    first = rows[0]["loss"]
    last = _mean_loss(rows[-3:])
    best = min(rows, key=_loss)
    fall = abs(first - best["loss"])
    if last > best["loss"] + 2 * fall and last > 1.5 * first > 0:
        rise = f"from {best['loss']:.4g} at step {best['step']:,} to {last:.4g} in the last rows"
        return f"The training loss diverged: it rose {rise}; {lower}."
    return ""


def _bottlenecks(run: Run) -> list[str]:
    """Name the loader and validation if they take much of the time, or say that they do not."""
    times = phases(run)
    wait = times.get(WAIT, 0.0)
    loop = times.get(TRAIN, 0.0) + wait
    if not loop:
        return []
    waits = wait / loop
    validation = times.get(VALIDATE, 0.0) / sum(times.values())
    findings = []
    if waits >= MOST_WAIT:
        workers = run.option("loader.num_workers")
        more = 2 * workers if isinstance(workers, int) and workers else 4
        findings.append(
            f"The loader is the bottleneck: data wait {waits:.0%} of the training loop; "
            f"try {run.names.name('loader.num_workers')} {more} (now {workers})."
        )
    if validation >= MOST_VALIDATION:
        every = run.option("train.eval_every") or "each epoch"
        findings.append(
            f"Validation, with its checkpoints, takes {validation:.0%} of the time: "
            f"raise {run.names.name('train.eval_every')} (now {every})."
        )
    if not findings and run.of("train", "data_wait"):
        shares = f"data wait {waits:.0%}, validation {validation:.0%} of the time"
        findings.append(f"Neither the loader nor validation is the bottleneck: {shares}.")
    return findings


def _overfitting(run: Run) -> str:
    best = lowest(run)
    if best is None:
        return ""
    later = [row for row in run.of("val", "loss") if row["step"] > best["step"]]
    limit = best["loss"] + 0.1 * abs(best["loss"])
    if len(later) < 2 or min(map(_loss, later[-2:])) < limit:
        return ""
    trained = run.of("train", "loss")
    until_then = [row for row in trained if row["step"] <= best["step"]]
    if not until_then or _mean_loss(trained[-3:]) >= _mean_loss(until_then[-3:]):
        return ""
    last = later[-1]
    rise = (
        f"from {best['loss']:.4g} at step {best['step']:,} "
        f"to {last['loss']:.4g} at step {last['step']:,}"
    )
    return f"The model overfits: the validation loss rose {rise}, while the training loss fell."


def lowest(run: Run) -> Row | None:
    """Return the row of the lowest validation loss."""
    rows = [row for row in run.of("val", "loss") if math.isfinite(row["loss"])]
    return min(rows, key=_loss, default=None)


def compare(runs: list[Run], differing: dict[str, list[str]]) -> list[str]:
    """Compare the lowest validation losses and the speeds of several runs."""
    findings = []
    losses = {run.name: best["loss"] for run in runs if (best := lowest(run))}
    if len(losses) > 1:
        low, *_, high = sorted(losses, key=losses.__getitem__)
        findings.append(
            f"{low} has the lowest validation loss, {losses[low]:.4g}; "
            f"the highest is {losses[high]:.4g}, {high}."
        )
    speeds = {run: speed for run in runs if (speed := samples_per_second(run))}
    if len(speeds) < 2:
        return findings
    slow, *_, fast = sorted(speeds, key=speeds.__getitem__)
    if speeds[fast] > 1.2 * speeds[slow]:
        ratio = f"{speeds[fast] / speeds[slow]:.1f} times as many samples per second"
        findings.append(f"{fast.name} trains {ratio} as {slow.name}.")
        batch = "train.batch_size"
        only_it_differs = list(differing) == [slow.names.name(batch)]
        if only_it_differs and fast.option(batch) > slow.option(batch):
            reason = f"only {slow.names.name(batch)} differs"
            findings.append(f"The small batch is the bottleneck of {slow.name}: {reason}.")
    return findings


def happened(run: Run) -> list[tuple[int, str]]:
    """Return the events of a run, also values that are not finite, and that it has not finished."""
    happened = events(run)
    steps: dict[str, list[int]] = {}
    for row in run.rows:
        for name, value in row.items():
            if name != "split" and not math.isfinite(value):
                steps.setdefault(name, []).append(row["step"])
    for name, places in steps.items():
        rows = f"{len(places)} rows, first at step {places[0]:,}"
        happened.append((places[0], f"{name} is not finite in {rows}"))
    if ending := unfinished(run):
        happened.append((run.rows[-1]["step"], ending.removesuffix(".")))
    return sorted(happened)


def duration(seconds: float) -> str:
    """Format a duration: 3.2 s, 12 min 4 s, 3 h 2 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours:,} h {left} min" if hours else f"{minutes} min {rest} s"


def _loss(row: Row) -> float:
    return float(row["loss"])


def _mean_loss(rows: list[Row]) -> float:
    return sum(map(_loss, rows)) / len(rows)
