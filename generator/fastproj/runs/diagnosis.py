"""How far a run is, and what limits its speed, in sentences that say only what the rows prove."""

import math
import re
from operator import itemgetter

from ..errors import printable
from .run import Row, Run
from .times import TRAIN, VALIDATE, WAIT, phases, seconds_per_step

MOST_WAIT = 0.1
"""Share of the training loop from which the loader is named."""
MOST_VALIDATION = 0.25
"""Share of the time from which validation is named."""
METRICS = 20
"""Metrics of the validation that are described."""
LOWER = re.compile("loss|error|mae|mse|rmse|perplexity|bits_per")
"""Metrics of which the lowest value is the best."""
HIGHER = re.compile("acc|auc|f1|iou|dice|precision|recall|r2|score|psnr|ssim|map$|bleu|rouge")


def diagnose(run: Run) -> list[str]:
    """Return the findings about a run, the most important one first."""
    findings = [unfinished(run), *_bottlenecks(run)]
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
            f"try {run.names.name('loader.num_workers')} {more} (now {_shown(workers)})."
        )
    if validation >= MOST_VALIDATION:
        every = run.option("train.eval_every") or "each epoch"
        findings.append(
            f"Validation, with its checkpoints, takes {validation:.0%} of the time: "
            f"raise {run.names.name('train.eval_every')} (now {_shown(every)})."
        )
    if not findings and run.of("train", "data_wait"):
        findings.append(
            f"The training steps take most of the time (data wait {waits:.0%}, validation "
            f"{validation:.0%}): fastproj tune looks for faster options."
        )
    return findings


def _shown(value: object) -> str:
    """Return the value of an option in a sentence."""
    return "not known" if value is None else printable(str(value))


def metrics(runs: list[Run]) -> list[str]:
    """Return the metrics of the validations that are described: the loss first."""
    names = set[str]()
    for run in runs:
        names.update(run.columns["val"])
    return ["loss", *sorted(names - {"loss", "step", "seconds"})][:METRICS]


def best_row(run: Run, metric: str) -> Row | None:
    """Return the validation with the best value of a metric, if it is known which is better."""
    lower_is_better = is_lower_better(run, metric)
    rows = [row for row in run.of("val", metric) if math.isfinite(row[metric])]
    if lower_is_better is None or not rows:
        return None
    best = min if lower_is_better else max
    return best(rows, key=itemgetter(metric))


def is_lower_better(run: Run, metric: str) -> bool | None:
    """Whether a lower value of a metric is better; None if that is not known."""
    if metric == run.option("train.monitor"):
        return bool(run.option("train.monitor_mode") != "max")  # null: min
    if LOWER.search(metric):
        return True
    return False if HIGHER.search(metric) else None


def duration(seconds: float) -> str:
    """Format a duration: 3.2 s, 12 min 4 s, 3 h 2 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours:,} h {left} min" if hours else f"{minutes} min {rest} s"
