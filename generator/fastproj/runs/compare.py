"""`fastproj compare`: whole trainings of candidates beside those of a base, with the same seeds."""

import hashlib
import io
import json
import math
import os
import subprocess
import tarfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

from tqdm import tqdm

from ..errors import FastprojError, UsageError, printable
from .diagnosis import is_lower_better
from .paired import Comparison, Trial, Turns
from .project import TrainedProject
from .run import METRICS, Run, read_runs
from .times import samples_per_second
from .training import Command, Training, train
from .trials import Trainer

LOG = "experiments.jsonl"
SPEED = "samples_per_second"
SHOWN = 7.85
"""Pairs that show a mean difference of one standard deviation with a chance of 80%."""


@dataclass(frozen=True)
class Side:
    """What is compared: code, and options of its training command."""

    name: str
    command: Command
    arguments: list[str]

    def run(self, seed: int) -> Path:
        """Return the folder of the run with a seed; other code or options have another one."""
        project = self.command.project
        options = [self.command.processes, self.command.given, self.arguments]
        content = hashlib.sha256(repr(options).encode())
        files = [*(project.code / "src").rglob("*.py"), *(project.code / "configs").glob("*.yaml")]
        for file in sorted(files):
            if file.is_file() and file.name != "tuned.yaml":
                content.update(
                    f"{file.relative_to(project.code)}\n".encode(errors="backslashreplace")
                )
                content.update(file.read_bytes())
        return project.folder / "runs" / f"compare-{content.hexdigest()[:8]}-seed{seed}"

    def training(self, seed: int, counts_cpu: bool) -> Training:
        """Return the training with a seed, which resumes one that was killed."""
        names = self.command.project.names
        run = self.run(seed)
        place = [f"--{names.folder}={run.parent}", *names.resume.format(name=run.name).split()]
        options = [*place, f"--{names.seed}={seed}", *self.arguments]
        variables = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait use no CPU time
        return Training(self.command, options, run, counts_cpu, variables=variables)


class Metric(NamedTuple):
    """What a comparison is about: a validation metric at the end of a run, or the speed."""

    name: str
    lower_is_better: bool


def higher(mine: Trial, base: Trial) -> float:
    """Return how much higher the metric of a trial is than that of the base."""
    return mine.metric - base.metric


@dataclass
class Trials:
    """Trains sides as ordinary runs."""

    base: Side
    named: str | None
    """The metric that the user named."""
    counts_cpu: bool
    metric: Metric | None = field(default=None, init=False)

    def measure(self, sides: list[Side], seed: int) -> list[Trial]:
        """Train sides with a seed, unless they have been, and return their metric and speed."""
        trainings = {}
        for side in sides:
            if _finished(side.run(seed)) is None:
                trainings[side.name] = side.training(seed, self.counts_cpu)
        train(list(trainings.values()))

        trials = {}
        for side in sorted(sides, key=lambda side: side is not self.base):  # the base first
            training = trainings.get(side.name)
            problem = training.problem if training else ""
            if problem and side is self.base:
                raise FastprojError(f"the base fails with seed {seed}: {problem}")
            trials[side.name] = Trial(problem=problem) if problem else self._trial(side, seed)
        return [trials[side.name] for side in sides]

    def _trial(self, side: Side, seed: int) -> Trial:
        (run,) = read_runs([side.run(seed)])
        self.metric = self.metric or find_metric(run, self.named)
        name = self.metric.name
        speed = samples_per_second(run) or 0.0
        rows = run.of("val", name)
        value = rows[-1][name] if rows else math.nan
        if name == SPEED:
            value = math.log(speed) if speed else math.nan
        problem = "" if math.isfinite(value) else f"{name} is {value} at the end"
        return Trial(speed, metric=value, problem=problem)


def _finished(folder: Path) -> Run | None:
    """Return a run that has reached its last step."""
    if not (folder / METRICS).is_file():
        return None
    try:
        (run,) = read_runs([folder])
    except FastprojError:  # killed before its first row: it is trained again
        return None
    last = run.rows[-1]
    is_finished = last["split"] == "val" and last["step"] == run.total_steps
    return run if is_finished else None


def find_metric(run: Run, named: str | None) -> Metric:
    """Return the metric that is named, or that the recipe monitors."""
    name = named or str(run.option("train.monitor") or "loss")
    if name == SPEED:
        return Metric(name, lower_is_better=False)
    known = sorted(run.columns["val"].keys() - {"step", "seconds"})
    if not known:
        every = run.names.name("train.eval_every")
        raise UsageError(f"the runs have no validation: lower {every}")
    if name not in known:
        raise UsageError(f"the runs have no metric {name}: choose from {', '.join(known)}")
    lower_is_better = is_lower_better(run, name)
    if lower_is_better is None:
        raise UsageError(
            f"it is not known whether a lower {name} is better: set train.monitor to it, "
            "and train.monitor_mode"
        )
    return Metric(name, lower_is_better)


def at_commit(project: TrainedProject, commit: str, folder: Path) -> TrainedProject:
    """Return the project with the code and the recipe of another commit, exported to a folder."""
    command = ["git", "archive", "--format=tar", commit, "--", "src", "configs"]
    done = subprocess.run(
        command,
        cwd=project.folder,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise UsageError(f"--base {commit} has no code of this project ({reason})")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return replace(project, code=folder)


def arguments(texts: list[str]) -> list[str]:
    """Return options such as optim.lr=0.1 as arguments of the training command."""
    for text in texts:
        name, equals, _ = text.partition("=")
        if not equals or not name.strip("-"):
            raise UsageError(f"{text} is not of the form KEY=VALUE, such as optim.lr=3e-3")
    return [f"--{text.lstrip('-')}" for text in texts]


@dataclass(frozen=True)
class Request:
    """What to compare."""

    trainer: Trainer
    candidates: list[list[str]]
    """Their options; without any, the working tree itself."""
    base: str | None
    """Commit of the base; the working tree without the options by default."""
    metric: str | None
    seeds: int
    hours: float | None

    def run(self) -> tuple[list[dict[str, Any]], bool]:
        """Return a record of each candidate, and whether it was interrupted."""
        command = self.trainer.command
        if not self.base:
            return self._compare(Side("the recipe", command, []))
        project = at_commit(command.project, self.base, self.trainer.folder / "base")
        return self._compare(Side(self.base, replace(command, project=project), []))

    def _compare(self, base: Side) -> tuple[list[dict[str, Any]], bool]:
        begin = time.monotonic()
        sides = {}
        for texts in self.candidates:
            name = " ".join(texts) or "the working tree"
            sides[name] = Side(name, self.trainer.command, arguments(texts))
        has_workers = any("num_workers" in str(texts) for texts in self.candidates)
        trials = Trials(base, self.metric, self.trainer.counts_cpu({}) and not has_workers)
        comparisons: dict[str, Comparison] = {}
        deadline = math.inf if self.hours is None else begin + 3600 * self.hours
        bar = tqdm(total=self.seeds * (1 + len(sides)), unit=" runs", disable=None)
        turns = Turns[Side](trials.measure, self.seeds, deadline, bar.update, higher)
        interrupted = False
        try:
            turns.compare(base, sides, comparisons)
        except (KeyboardInterrupt, SystemExit):  # the latter by SIGTERM
            interrupted = True
        bar.close()

        folder = self.trainer.command.project.folder
        records = []
        for name, comparison in comparisons.items():
            facts = {
                "date": time.strftime("%Y-%m-%d %H:%M"),
                "commit": _commit(folder),
                "base": base.name,
                "candidate": name,
                "seconds": round(time.monotonic() - begin, 1),
            }
            metric = trials.metric or Metric(self.metric or "", lower_is_better=False)
            records.append(facts | record(comparison, metric))
        return records, interrupted


def verdict(comparison: Comparison, metric: Metric) -> str:
    """Return one of: crash, not compared, better, worse, no difference shown."""
    if comparison.problem:
        return "crash"
    if len(comparison.trials) < 2:
        return "not compared"
    change = comparison.estimate(higher)
    if not change.is_clear:
        return "no difference shown"
    return "worse" if (change.mean > 0) == metric.lower_is_better else "better"


def record(comparison: Comparison, metric: Metric) -> dict[str, Any]:
    """Return what a comparison says about its candidate."""
    answer = verdict(comparison, metric)
    facts: dict[str, Any] = {
        "metric": metric.name,
        "pairs": len(comparison.trials),
        "verdict": answer,
        "decision": {"better": "keep", "crash": "crash"}.get(answer, "discard"),
    }
    if answer == "crash":
        return facts | {"text": f"crash: {comparison.problem}"}
    if answer == "not compared":
        reason = "fewer than two pairs were trained, which is no evidence"
        return facts | {"text": f"not compared: {reason}"}

    change, low, high, pairs = comparison.estimate(higher)
    facts |= {"change": change, "interval": [low, high]}
    text = f"{answer}: "
    if metric.name != SPEED:
        text += f"{metric.name} {change:+.3g} (95%: {low:+.3g} to {high:+.3g}, {pairs} pairs); "
    speed, low, high, _ = comparison.speed()
    facts |= {"speed": speed, "speed_interval": [low, high]}
    text += f"{speed:.2f} times as fast (95%: {low:.2f} to {high:.2f})"
    if answer == "no difference shown":
        text += _needed(comparison)
    return facts | {"text": text}


def _needed(comparison: Comparison) -> str:
    """Return how many pairs would show half of the spread of the base's runs."""
    half = stdev([trial.metric for trial in comparison.base]) / 2
    if half == 0:
        return ""
    noise = stdev(comparison.differences(higher))
    needed = math.ceil(SHOWN * (noise / half) ** 2) + 2
    return f"; about {needed} pairs would show {half:.2g}, half of the spread between seeds"


def _commit(folder: Path) -> str:
    """Return the commit of a folder, with -dirty if files differ from it; empty without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def append(file: Path, records: list[dict[str, Any]]) -> None:
    """Add lines to experiments.jsonl; a link is not followed."""
    file.parent.mkdir(exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(file, flags, 0o666), "w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def read_log(file: Path) -> list[dict[str, Any]]:
    """Return the lines of experiments.jsonl; none if there is no such file."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    try:
        records = [dict(json.loads(line)) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise FastprojError(f"{file} has a line that is not JSON: correct or move it") from error
    return records


def answers(records: list[dict[str, Any]]) -> str:
    """Return the answer about each candidate, in a line."""
    if len(records) == 1:
        return str(records[0]["text"])
    return "\n".join(f"{record['candidate']}: {record['text']}" for record in records)


def log_table(records: list[dict[str, Any]]) -> str:
    """Return the comparisons, one in a line."""
    lines = []
    for record in records:
        cells = [record.get(name, "") for name in ("date", "commit", "decision")]
        begin = "  ".join(printable(str(cell)) for cell in cells)
        what = f"{record.get('candidate')} against {record.get('base')}"
        lines.append(f"{begin}  {printable(what)}: {printable(str(record.get('text', '')))}")
    return "\n".join(lines) or "no comparison yet"
