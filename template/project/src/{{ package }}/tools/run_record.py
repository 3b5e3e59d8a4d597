"""What the folder of a run says about it, also while it trains: rows of metrics, events, options, environment."""

import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError

NOT_METRICS = {"split", "step", "seconds"}
"""Of what a row has besides metrics."""
MAX_EVENTS, LONGEST = 50, 300
"""Events of a kind that are listed, and the characters of one."""


@dataclass
class RunRecord:
    """A run, as far as its folder has been read."""

    folder: Path
    name: str
    rows: list[dict[str, Any]]
    """Rows of metrics, with `split`, `step` and numbers only."""
    written: str
    """When the last row was written."""
    config: dict[str, Any]
    """Options such as `train.steps`."""
    environment: dict[str, Any]
    """How the run came about, by names such as `versions.torch`."""
    recorded: list[int] = field(default_factory=list)
    """Numbers of rows that there were at resumes; a run of an older version has not recorded them."""
    events: list[tuple[int | None, str]] = field(default_factory=list)
    """What happened, with the optimizer step, if that is known."""

    def metrics(self) -> list[str]:
        """Return the names of all metrics, in the order in which they appear."""
        return list(dict.fromkeys(key for row in self.rows for key in row if key not in NOT_METRICS))

    def series(self, split: str, metric: str) -> list[tuple[int, float]]:
        """Return the values of a metric by step."""
        return [(row["step"], row[metric]) for row in self.rows if row["split"] == split and metric in row]

    def best(self) -> tuple[str, int, float] | None:
        """Return the metric that the best checkpoint is chosen by, and its best value, with the step."""
        name = str(self.config.get("train.monitor", "loss"))
        found = [(value, step) for step, value in self.series("val", name) if math.isfinite(value)]
        if not found:
            return None
        choose = max if self.config.get("train.monitor_mode") == "max" else min
        value, step = choose(found, key=lambda pair: pair[0])
        return name, step, value

    def seconds(self) -> float:
        """Return how long it has trained, over all starts."""
        last = (self.rows[number - 1].get("seconds", 0.0) for number in [*self.resumes(), len(self.rows)])
        return float(sum(seconds for seconds in last if math.isfinite(seconds)))

    def resumes(self) -> list[int]:
        """Return the numbers of the first rows after a resume, which was recorded, or the clock has started again.

        It may have passed the row before already; then it has gone on for less than the steps of the row took.
        """
        found: list[int] = []
        before: dict[str, Any] = {}
        trained: dict[str, Any] = {}
        for number, row in enumerate(self.rows):
            now, rate = row.get("seconds", math.inf), row.get("samples_per_second", 0.0)
            resumed = number in self.recorded or now < before.get("seconds", -math.inf)
            if row["split"] == "train" and "seconds" in trained and rate > 0:
                took = (row["step"] - trained["step"]) * self._global_batch() / rate
                resumed = resumed or now - trained["seconds"] < 0.9 * took - 0.002  # seconds are rounded
            if resumed:
                found.append(number)
                trained = {}
            before, trained = row, row if row["split"] == "train" else trained
        return found

    def _global_batch(self) -> int:
        """Return the samples of a step; 0 if they are not known."""
        given = self.config.get("train.global_batch")
        parts = (self.config.get("train.micro_batch"), self.config.get("train.accumulate"))
        factors = [*parts, self.environment.get("ranks", 1)] if given is None else [given]
        return math.prod(it if type(it) is int else 0 for it in factors)


def read_run(folder: Path) -> RunRecord:
    """Read the folder of a run.

    Raises:
        UserError: it has no log, or no row in it.
    """
    file = folder / "metrics.jsonl"
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(file.stat().st_mtime))
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}): give the folder of a run") from error
    lines = [line for line in text.split("\n") if line.strip()]
    partial = bool(lines) and not text.endswith("\n") and parse_row(lines[-1]) is None
    lines = lines[:-1] if partial else lines  # it is being written, or its run was killed
    rows = [row for line in lines if (row := parse_row(line))]
    if not rows:
        raise UserError(f"{file} has no row: train for at least one log interval first")
    manifest = _newest_manifest(folder)
    config = read_json(folder / "config.json") or _mapping(manifest.get("config"))
    about = flat(_mapping(manifest.get("provenance")))
    run = RunRecord(folder, _text(folder.resolve().name), rows, written, flat(config), about)
    after = read_json(folder / "resumes.json").get("after_rows")
    run.recorded = [it for it in after if type(it) is int and it > 0] if isinstance(after, list) else []
    if damaged := len(lines) - len(rows):
        what = f"{damaged} lines of {file} are" if damaged > 1 else f"1 line of {file} is"
        warnings.warn(f"{what} damaged, and left out", stacklevel=2)
        run.events.append((None, f"{what} damaged, and left out"))
    run.events += sorted(_events(run, manifest), key=lambda event: event[0] if event[0] is not None else -1)
    return run


def parse_row(line: str) -> dict[str, Any] | None:
    """Return the split of a row and its numbers; None if it is damaged."""
    try:
        found = dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    row = {key: value for key, value in found.items() if key == "split" or type(value) in (int, float)}
    good = isinstance(row.get("split"), str) and type(row.get("step")) is int
    too_large = any(type(value) is int and abs(value) > 10**15 for value in row.values())
    return row if good and not too_large else None


def read_json(file: Path) -> dict[str, Any]:
    """Return the mapping in a file; empty if there is none, or it is damaged."""
    try:
        return _mapping(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by names such as `train.steps`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict) and value
        found |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _newest_manifest(folder: Path) -> dict[str, Any]:
    for file in sorted(folder.glob("checkpoints/step-*/manifest.json"), reverse=True):
        if found := read_json(file):  # it may be removed just now
            return found
    return {}


def _events(run: RunRecord, manifest: dict[str, Any]) -> Iterator[tuple[int | None, str]]:
    """Return what the files of a run say happened."""
    yield from _from_rows(run)
    folder = run.folder
    if (size := read_json(folder / "out_of_memory.json").get("micro_batch")) is not None:
        yield None, f"memory ran out: the micro-batch was reduced to {size} samples"
    yield from _left_out(folder / "nonfinite.jsonl")
    skipped = _mapping(manifest.get("skipped"))
    if count := skipped.get("problems"):
        first = next(iter(skipped.get("first") or [""]))
        yield None, f"{count} {'problem' if count == 1 else 'problems'} in the data, such as: {str(first)[:LONGEST]}"
    for split, count in _mapping(skipped.get("unreadable")).items():
        if count:
            yield None, f"{count} unreadable {'sample' if count == 1 else 'samples'} in the {split} data"
    for pattern, what in (
        ("ranks/stacks-*.txt", "the run hung, or was believed to: the stacks of its threads are in"),
        ("unfinished-*", "an earlier start ended before its first checkpoint; its files are in"),
        ("checkpoints/abandoned-*", "resumed from an older checkpoint; this later one was set aside:"),
        ("uncommitted-*.diff", "trained with changes that were not committed; they are in"),
        ("lr_range.json", "a learning-rate range test; its suggestion is in"),
    ):
        for path in sorted(folder.glob(pattern))[:MAX_EVENTS]:
            yield None, f"{what} {path.relative_to(folder)}"


def _from_rows(run: RunRecord) -> Iterator[tuple[int | None, str]]:
    """Return what the rows show: resumes, skipped steps, and values that are not finite."""
    for number in run.resumes():
        yield run.rows[number - 1]["step"], "resumed, after this step"
    for row in run.rows[-1:]:
        if count := next((it["skipped_steps"] for it in reversed(run.rows) if "skipped_steps" in it), 0):
            what = "step was skipped up to here, as its" if count == 1 else "steps were skipped up to here, as their"
            yield row["step"], f"{count:g} {what} gradient was not finite"
    for split, metric in dict.fromkeys(
        (row["split"], key) for row in run.rows for key in row if key not in NOT_METRICS
    ):
        broken = [step for step, value in run.series(split, metric) if not math.isfinite(value)]
        if broken:
            more = f", and at {len(broken) - 1} later step{'s' * (len(broken) > 2)}" if len(broken) > 1 else ""
            yield broken[0], f"{split} {metric} is not finite{more}"


def _left_out(file: Path) -> Iterator[tuple[int | None, str]]:
    """Return the steps that `train.on_nonfinite` has left out."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines[:MAX_EVENTS]:
        try:
            found = _mapping(json.loads(line))
        except ValueError:
            continue
        step = found.get("step")
        said = f"loss {found.get('loss')}, gradient norm {found.get('grad_norm')}: {found.get('action')}"
        yield step if type(step) is int else None, said
    if (more := len(lines) - MAX_EVENTS) > 0:
        yield None, f"{more} more such {'step is' if more == 1 else 'steps are'} in {file.name}"


def unique_names(runs: list[RunRecord]) -> None:
    """Name runs by their paths where several folders have the same name."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = _text(os.fspath(run.folder))


def _text(name: str) -> str:
    """Return the name of a file, whose bytes may be no UTF-8, as text that can be written."""
    return name.encode("utf-8", "replace").decode()
