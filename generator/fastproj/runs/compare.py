"""`fastproj compare`: whole trainings of candidates beside those of a base, with the same seeds."""

import hashlib
import io
import json
import math
import os
import subprocess
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Any

from tqdm import tqdm

from ..errors import FastprojError, UsageError, printable
from .diagnosis import is_lower_better
from .paired import Comparison, Estimate, Trial, Turns
from .project import TrainedProject
from .run import METRICS, Run, read_runs
from .times import samples_per_second
from .trials import Trainer, end_training

LOG = "experiments.jsonl"
SPEED = "samples_per_second"
SHOWN = 7.85
"""Pairs that show a mean difference of one standard deviation with a chance of 80%."""


@dataclass(frozen=True)
class Side:
    """What is compared: code, and options of its training command."""

    name: str
    trainer: Trainer
    arguments: list[str]

    def run_name(self, seed: int) -> str:
        """Return the name of the run with a seed; other code or options have another name."""
        options = [self.trainer.processes, self.trainer.given, self.arguments]
        content = hashlib.sha256(repr(options).encode())
        code = self.trainer.project.code
        files = [*(code / "src").rglob("*.py"), *(code / "configs").glob("*.yaml")]
        for file in sorted(files):
            if file.is_file() and file.name != "tuned.yaml":
                content.update(f"{file.relative_to(code)}\n".encode(errors="surrogateescape"))
                content.update(file.read_bytes())
        return f"compare-{content.hexdigest()[:8]}-seed{seed}"


@dataclass(frozen=True)
class Metric:
    """What the comparison is about: a validation metric at the end of a run, or the speed."""

    name: str
    lower_is_better: bool

    def gain(self, mine: Trial, base: Trial) -> float:
        """Return how much better a trial is than the base."""
        difference = mine.metric - base.metric
        return -difference if self.lower_is_better else difference


def train(
    side: Side,
    seed: int,
    metric: str,
    must_succeed: bool,
) -> Trial:
    """Train a side with a seed, and return the metric at the end and the speed."""
    run = train_run(side, seed)
    if isinstance(run, str):
        if must_succeed:
            raise FastprojError(f"the base fails with seed {seed}: {run}")
        return Trial(problem=run)
    speed = samples_per_second(run) or 0.0
    rows = run.of("val", metric)
    value = rows[-1][metric] if rows else math.nan
    if metric == SPEED:
        value = math.log(speed) if speed else math.nan
    problem = "" if math.isfinite(value) else f"{metric} is {value} at the end"
    return Trial(speed, metric=value, problem=problem)


def train_run(side: Side, seed: int) -> Run | str:
    """Train an ordinary run, or resume or read it if it is there; return the problem of a crash."""
    trainer = side.trainer
    names = trainer.project.names
    name = side.run_name(seed)
    folder = trainer.project.folder / "runs" / name
    if run := _finished(folder):
        return run
    place = [f"--{names.folder}={folder.parent}", *names.resume.format(name=name).split()]
    process = trainer.start([*place, f"--{names.seed}={seed}", *side.arguments])
    try:
        process.wait()
    finally:
        end_training(process, trainer.processes)
    if process.returncode:
        return trainer.problem(process)
    return read_runs([folder])[0]


def _finished(folder: Path) -> Run | None:
    """Return a run that has reached its last step."""
    if not (folder / METRICS).is_file():
        return None
    try:
        run = read_runs([folder])[0]
    except FastprojError:  # killed before its first row: it is trained again
        return None
    last = run.rows[-1]
    is_finished = last["split"] == "val" and last["step"] == run.total_steps
    return run if is_finished else None


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
        begin = time.monotonic()
        base = Side(self.base or "the recipe", self.trainer, [])
        if self.base:
            project = at_commit(self.trainer.project, self.base, self.trainer.folder / "base")
            base = replace(base, trainer=replace(self.trainer, project=project))
        sides = {}
        for texts in self.candidates:
            name = " ".join(texts) or "the working tree"
            sides[name] = Side(name, self.trainer, arguments(texts))

        results: list[Result] = []
        comparisons: dict[str, Comparison] = {}
        deadline = math.inf if self.hours is None else begin + 3600 * self.hours
        bar = tqdm(total=self.seeds * (1 + len(sides)), unit=" runs", disable=None)
        interrupted = False
        try:
            metric = self._find_metric(base)
            turns = Turns[Side](
                lambda side, seed: train(side, seed, metric.name, must_succeed=side is base),
                self.seeds,
                deadline,
                bar.update,
                metric.gain,
                time.monotonic() - begin,
            )
            turns.compare(base, sides, comparisons=comparisons)
        except (KeyboardInterrupt, SystemExit):  # the latter by SIGTERM
            interrupted = True
        bar.close()
        for name, comparison in comparisons.items():
            results.append(Result(name, metric, comparison))
        seconds = time.monotonic() - begin
        project = self.trainer.project
        return [result.record(base.name, project, seconds) for result in results], interrupted

    def _find_metric(self, base: Side) -> Metric:
        """Train the base once, and return the metric that is named or that the recipe monitors."""
        run = train_run(base, 0)
        if isinstance(run, str):
            raise FastprojError(f"the training command fails: {run}")
        name = self.metric or str(run.option("train.monitor") or "loss")
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


@dataclass(frozen=True)
class Result:
    """What a comparison says about a candidate."""

    name: str
    metric: Metric
    comparison: Comparison

    @property
    def change(self) -> Estimate:
        """How much higher the metric is, with its interval."""
        gain = self.comparison.estimate(self.metric.gain)
        if self.metric.lower_is_better:
            return Estimate(-gain.mean, -gain.high, -gain.low, gain.pairs)
        return gain

    @property
    def speed(self) -> list[float]:
        """How many times as fast it is, with its interval."""
        estimate = self.comparison.estimate()
        logarithms = (estimate.mean, estimate.low, estimate.high)
        return [math.exp(value) for value in logarithms]

    @property
    def verdict(self) -> str:
        """Return one of: crash, not compared, better, worse, no difference shown."""
        if self.comparison.problem:
            return "crash"
        if len(self.comparison.trials) < 2:
            return "not compared"
        gain = self.comparison.estimate(self.metric.gain)
        if not gain.is_clear:
            return "no difference shown"
        return "better" if gain.mean > 0 else "worse"

    def text(self) -> str:
        """Return the answer in one line."""
        if self.verdict == "crash":
            return f"crash: {self.comparison.problem}"
        if self.verdict == "not compared":
            return "not compared: fewer than two pairs were trained, which is no evidence"
        change = self.change
        text = f"{self.verdict}: "
        if self.metric.name != SPEED:
            interval = f"95%: {change.low:+.3g} to {change.high:+.3g}"
            text += f"{self.metric.name} {change.mean:+.3g} ({interval}, {change.pairs} pairs); "
        speed, low, high = self.speed
        text += f"{speed:.2f} times as fast (95%: {low:.2f} to {high:.2f})"
        return text + self._needed()

    def _needed(self) -> str:
        """Return how many pairs would show half of the spread of the base's runs."""
        values = [trial.metric for trial in self.comparison.base]
        if self.verdict != "no difference shown" or len(values) < 2 or stdev(values) == 0:
            return ""
        pairs = zip(self.comparison.trials, self.comparison.base, strict=True)
        noise = stdev([self.metric.gain(mine, base) for mine, base in pairs])
        half = stdev(values) / 2
        needed = math.ceil(SHOWN * (noise / half) ** 2) + 2
        return f"; about {needed} pairs would show {half:.2g}, half of the spread between seeds"

    def record(
        self,
        base: str,
        project: TrainedProject,
        seconds: float,
    ) -> dict[str, Any]:
        """Return the line of experiments.jsonl."""
        decision = {"better": "keep", "crash": "crash"}.get(self.verdict, "discard")
        record: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "commit": _commit(project.folder),
            "base": base,
            "candidate": self.name,
            "metric": self.metric.name,
            "pairs": len(self.comparison.trials),
            "verdict": self.verdict,
            "decision": decision,
            "seconds": round(seconds, 1),
            "text": self.text(),
        }
        if len(self.comparison.trials) > 1:
            change = self.change
            speed, *interval = self.speed
            record |= {"change": change.mean, "interval": [change.low, change.high]}
            record |= {"speed": speed, "speed_interval": interval}
        return record


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
