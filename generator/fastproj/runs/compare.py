"""`fastproj compare`: whole trainings of candidates beside those of a base, with the same seeds."""

import hashlib
import io
import json
import math
import os
import subprocess
import tarfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

from tqdm import tqdm

from ..errors import FastprojError, UsageError, printable
from .diagnosis import is_lower_better
from .paired import BASE, Comparison, Trial, Turns
from .project import TrainedProject
from .run import Run, read_runs
from .times import samples_per_second
from .training import Training, train
from .trials import Trainer

LOG = "experiments.jsonl"
SPEED = "samples_per_second"
SHOWN = 7.85
"""Pairs that show a mean difference of one standard deviation with a chance of 80%."""


@dataclass(frozen=True)
class Side:
    """What is compared: code, and options of its training command."""

    name: str
    project: TrainedProject
    arguments: list[str]

    def check(self) -> None:
        """Refuse options that the training command does not take."""
        alone = replace(self.project, processes=1)
        done = subprocess.run(
            alone.command([*self.arguments, "--print_config"], counts_cpu=False),
            cwd=self.project.folder,
            env=self.project.environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            printed = done.stderr.strip() or f"it ended with status {done.returncode}"
            reason = printable(printed.splitlines()[-1].removeprefix("error: "))
            raise UsageError(f"{self.name}: {reason}")

    def run(self, seed: int) -> Path:
        """Return the folder of the run with a seed; other code or options have another one."""
        project = self.project
        options = [project.processes, project.given, self.arguments]
        content = hashlib.sha256(repr(options).encode())
        code = project.code
        for file in sorted([*code.glob("src/**/*.py"), *code.glob("configs/*.yaml")]):
            if file.is_file() and file.name != "tuned.yaml":
                content.update(os.fsencode(f"{file.relative_to(code)}\n"))
                content.update(file.read_bytes())
        return project.folder / "runs" / f"compare-{content.hexdigest()[:8]}-seed{seed}"

    def training(
        self,
        seed: int,
        counts_cpu: bool,
    ) -> Training:
        """Return the training with a seed, which resumes one that was killed."""
        names = self.project.names
        run = self.run(seed)
        place = [f"--{names.folder}={run.parent}", *names.resume.format(name=run.name).split()]
        options = [*place, f"--{names.seed}={seed}", *self.arguments]
        return Training(self.project, options, run, counts_cpu)


class Metric(NamedTuple):
    """What a comparison is about: a validation metric at the end of a run, or the speed."""

    name: str
    lower_is_better: bool = False

    def trial(self, run: Run) -> Trial:
        """Return what a run measured."""
        speed = samples_per_second(run) or 0.0
        rows = run.of("val", self.name)
        value = rows[-1][self.name] if rows else math.nan
        if self.name == SPEED:
            value = math.log(speed) if speed else math.nan
        problem = "" if math.isfinite(value) else f"{self.name} is {value} at the end"
        return Trial(speed, value, problem)


def higher(mine: Trial, base: Trial) -> float:
    """Return how much higher the metric of a trial is than that of the base."""
    return mine.metric - base.metric


def is_finished(folder: Path) -> bool:
    """Whether a run has reached its last step."""
    try:
        (run,) = read_runs([folder])
    except FastprojError:  # not begun, or killed before its first row
        return False
    last = run.rows[-1]
    return last["split"] == "val" and int(last["step"]) == run.total_steps


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


def at_commit(
    project: TrainedProject,
    commit: str,
    folder: Path,
) -> TrainedProject:
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


@dataclass
class Request:
    """What to compare."""

    trainer: Trainer
    candidates: list[list[str]]
    """Their options; without any, the working tree itself."""
    commit: str | None
    """Of the base; the working tree without the options by default."""
    named: str | None
    """The metric that the user named."""
    seeds: int
    hours: float | None
    metric: Metric | None = None
    """Known from the first run."""

    def run(self) -> tuple[list[dict[str, Any]], bool]:
        """Return a record of each candidate, and whether it was interrupted."""
        begin = time.monotonic()
        project = self.trainer.project
        sides = {}
        for texts in self.candidates:
            name = " ".join(texts) or "the working tree"
            sides[name] = Side(name, project, arguments(texts))
            sides[name].check()
        base = Side("the recipe", project, [])
        if self.commit:
            code = at_commit(project, self.commit, self.trainer.folder / "base")
            base = Side(self.commit, code, [])

        comparisons: dict[str, Comparison] = {}
        deadline = math.inf if self.hours is None else begin + 3600 * self.hours
        bar = tqdm(total=self.seeds * (1 + len(sides)), unit=" runs", disable=None)
        turns = Turns(self.measure, self.seeds, deadline, bar.update, higher)
        interrupted = False
        try:
            turns.compare(base, sides, comparisons)
        except (KeyboardInterrupt, SystemExit):  # the latter by SIGTERM
            interrupted = True
        bar.close()

        facts = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "commit": _commit(project.folder),
            "base": base.name,
            "seconds": round(time.monotonic() - begin, 1),
        }
        metric = self.metric or Metric(self.named or "")
        records = []
        for name, comparison in comparisons.items():
            records.append(facts | {"candidate": name} | record(comparison, metric))
        return records, interrupted

    def measure(self, sides: dict[str, Side], seed: int) -> dict[str, Trial]:
        """Train sides with a seed, unless they have been; return what each measured."""
        counts_cpu = self.trainer.counts_cpu({}) and "num_workers" not in str(self.candidates)
        trainings = {}
        for side in sides.values():
            folder = side.run(seed)  # of two sides, if their code and options are the same
            if folder not in trainings and not is_finished(folder):
                trainings[folder] = side.training(seed, counts_cpu)
        train(list(trainings.values()))
        trials = {}
        for name in sorted(sides):  # the base first
            folder = sides[name].run(seed)
            problem = trainings[folder].problem if folder in trainings else ""
            trial = Trial(problem=problem)
            if not problem:
                (run,) = read_runs([folder])
                self.metric = self.metric or find_metric(run, self.named)
                trial = self.metric.trial(run)
            if trial.problem and name == BASE:
                raise FastprojError(f"the base fails with seed {seed}: {trial.problem}")
            trials[name] = trial
        return trials


def record(comparison: Comparison, metric: Metric) -> dict[str, Any]:
    """Return what a comparison says about its candidate."""
    facts: dict[str, Any] = {"metric": metric.name, "pairs": len(comparison.trials)}
    if comparison.problem:
        text = f"crash: {comparison.problem}"
        return facts | {"verdict": "crash", "decision": "crash", "text": text}
    if len(comparison.trials) < 2:
        text = "not compared: fewer than two pairs were trained, which is no evidence"
        return facts | {"verdict": "not compared", "decision": "discard", "text": text}

    estimate = comparison.estimate(higher)
    change, low, high, _ = estimate
    verdict = "worse" if (change > 0) == metric.lower_is_better else "better"
    if not estimate.is_clear:
        verdict = "no difference shown"
    text = f"{verdict}: "
    if metric.name != SPEED:
        text += f"{metric.name} {change:+.3g} (95%: {low:+.3g} to {high:+.3g}); "
    text += comparison.speed_text()
    speed = comparison.speed()
    return facts | {
        "verdict": verdict,
        "decision": "keep" if verdict == "better" else "discard",
        "text": text if estimate.is_clear else text + _needed(comparison),
        "change": change,
        "interval": [low, high],
        "speed": speed.mean,
        "speed_interval": [speed.low, speed.high],
    }


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
    line = "{date}  {commit}  {decision}  {candidate} against {base}: {text}"
    lines = [printable(line.format_map(defaultdict(str, record))) for record in records]
    return "\n".join(lines) or "no comparison yet"
