"""Runs the stages of `tools/tune.py` one after the other, and compares what they keep with the config as it was."""

import argparse
import hashlib
import itertools
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from .. import trial
from . import result
from .found import ROUNDS, Compared, Facts, Finding, Measured, Options, as_options
from .trials import BudgetError, Trials

STAGES = ("batch", "loader", "speed", "lr")
TRIALS = {"batch": 8, "loader": 8, "speed": 10, "lr": 4}
"""Trials that a stage takes, about."""
VERIFY = 6
"""Trials of the comparison at the end, for which time is left."""


class Tuner:
    """Runs the stages one after the other, each with what the ones before have kept."""

    def __init__(self, args: argparse.Namespace, base: list[str]) -> None:
        """Check the options, and measure the config as it is.

        Raises:
            UserError: the config does not run, or the results cannot be written.
        """
        self.args, self.base = args, base
        _check_text([*base, str(args.write), str(args.output)])
        files = _files(base)
        if args.write.is_dir() or args.write.resolve() in [file.resolve() for file in files]:
            why = "is a folder" if args.write.is_dir() else "is part of the config that is tuned"
            raise UserError(f"cannot write {args.write}: it {why}; give another --write")
        _check_writable(args.write.parent, "--write")
        self.former = result.kept(args.write, args.only, {it.removeprefix("--").partition("=")[0] for it in base})
        """What other stages have found before, which all trials use."""
        kept = as_options(_values(self.former))
        if kept:
            print(f"with what is in {args.write}: {shlex.join(kept)}", file=sys.stderr, flush=True)
        self.config = _config([*base, *kept])
        _check_writable(args.output, "--output", create=True)
        self.curve: dict[int, float] = {}
        self.ceilings: dict[int, float] = {}
        self.demand, self.tests = 0.0, list[list[list[float]]]()
        self.compared: Compared | None = None
        self.busy = trial.busy()
        if self.busy:
            print(f"warning: {self.busy}", file=sys.stderr, flush=True)
        self.trials = Trials([*base, *kept], args.output, args.budget, _key(files))
        self.findings = self.trials.findings
        self.facts = Facts(**self.trials.ask(self.config))
        self.trials.ranks, self.trials.train = self.facts.ranks, self.config["train"]
        if self.facts.device == "cpu":
            self.trials.host_memory_gb = 0.9 * self.facts.memory_gb
        self.first = self._first()

    def _first(self) -> Measured:
        """Measure the config as it is, which says how long a trial takes."""
        found = self.trials.measure({})
        if not found.ok and self.args.only[0] != "batch":
            raise UserError("the config is out of memory: add the stage batch, or a smaller train.micro_batch")
        self.trials.speed = found.speed
        self.trials.needs = found.seconds + 4.0  # the first one is shorter than the others
        self._check_budget(self.trials.left() < 2 * self.trials.needs and not self.trials.resumed)
        return found

    def _check_budget(self, too_small: bool) -> None:
        if too_small:
            stage = self.args.only[0]
            needed = max((TRIALS[stage] + VERIFY) * self.trials.needs, 1.5 * self.args.budget)
            raise UserError(
                f"a budget of {self.args.budget:g} s is too small: the stage {stage} needs about {needed:.0f} s here; "
                "the trials are kept, and the same command goes on from there"
            )

    @property
    def values(self) -> Options:
        """What the stages so far have kept."""
        return _values(self.findings)

    def run(self) -> None:
        """Run the stages, and compare what they kept with the config as it was."""
        end = self.trials.deadline
        self.trials.deadline = end - min(VERIFY * self.trials.needs, 0.4 * self.args.budget)
        for stage in self.args.only:
            self.trials.stage = stage
            try:
                self._stage(stage)
            except BudgetError:
                self._check_budget(not self.findings)
                why = f"the budget of {self.args.budget:g} s is used up; the same command goes on from here"
                self.findings.append(Finding(stage, "", "not finished", why))
                break
        self.trials.deadline, self.trials.stage = end, "result"
        self._verify()

    def _stage(self, stage: str) -> None:
        if stage == "batch":
            from . import batch

            self.curve = batch.tune(self.trials, self.facts, self.config, self.args.larger_global_batch)
        elif stage == "loader":
            from . import loader

            self.ceilings, self.demand = loader.tune(self.trials, self.facts, self.config, self.values)
        elif stage == "speed":
            from . import switches

            switches.tune(self.trials, self.facts, self.config, self.values)
        else:
            from . import rate

            self.tests = rate.tune(self.trials, self.config, self.values)

    def _verify(self) -> None:
        """Compare all that is kept with the config as it was; as long as it is slower, drop what gained least."""
        base: Options = {}
        if not self.first.ok:  # it does not fit, so compare with the micro-batch that does
            base = next((it.values for it in self.findings if it.stage == "batch"), {})
        attempt = 0
        while fast := [it for it in self.findings if it.values and it.stage != "lr" and it.values != base]:
            try:
                rounds = min(max(int(self.trials.left() / (2 * self.trials.needs)), 1), ROUNDS)
                self.compared = self.trials.compare(base, self.values, f"result {attempt} ", 0.0, rounds)
            except BudgetError:
                return
            if self.compared.ratio >= 1.0:
                return
            lost = min(fast, key=lambda it: it.ratio)
            why = f"it lost together with the others at the end: {self.compared.reason or self.compared}"
            self.findings[self.findings.index(lost)] = replace(lost, verdict="dropped", why=why, values={})
            self.compared, attempt = None, attempt + 1

    def summary(self) -> str:
        """Return how the result compares."""
        if self.compared is not None:
            return f"together: {self.compared}, {self.compared.ratio:.2f} times as fast"
        fast = [it for it in self.findings if it.values and it.stage != "lr"]
        if not self.first.ok:
            return "the config as it was does not fit into the memory"
        if fast:
            return "not compared with the config as it was: the budget is used up"
        return "the learning rate changes results" if self.args.only == ["lr"] else "no proven gain in speed"

    def write(self) -> None:
        """Write the config, the figure and all that was found.

        Raises:
            UserError: a file cannot be written.
        """
        package = __package__.rpartition(".tools")[0]
        same, target = shlex.join(self.base), shlex.quote(f"--config={self.args.write}")
        header = [
            f"Found by `python -m {package}.tools.tune`, {time.strftime('%Y-%m-%d')}, on {self.facts.machine}",
            f"for {same}. {self.summary()[:1].upper()}{self.summary()[1:]}.",
            *(["Values of other stages are from before; all trials had them."] if self.former else []),
            f"Use it: python -m {package}.train {same} {target}",
            f"or:     launch/local.sh {target}",
            *([f"Measure again: {self.busy}."] if self.busy else []),
        ]
        result.write_config([*self.former, *self.findings], self.args.write, header)
        micro_batch = self.values.get("train.micro_batch", self.config["train"]["micro_batch"])
        target = self.args.output / "tune.png"
        result.draw(target, self.findings, self.curve, micro_batch, self.ceilings, self.demand, self.tests)

    def as_json(self) -> dict[str, Any]:
        """Return all that was found."""
        compared = self.compared and {**asdict(self.compared), "ratio": self.compared.ratio}
        facts = {name: it for name, it in asdict(self.facts).items() if it != math.inf}
        return {
            "config": str(self.args.write),
            "values": _values(self.former) | self.values,
            "findings": [asdict(it) for it in (*self.former, *self.findings)],
            "compared": compared,
            "throughput": self.curve,
            "loader": self.ceilings,
            "demand": self.demand,
            "machine": facts,
            "busy": self.busy,
        }


def _check_text(options: list[str]) -> None:
    for option in options:
        try:
            option.encode()
        except UnicodeEncodeError:  # the config that is written names it
            raise UserError(f"an option is not UTF-8 ({option!a}): rename the file") from None


def _check_writable(folder: Path, option: str, create: bool = False) -> None:
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): give another {option}") from error


def _config(base: list[str]) -> dict[str, Any]:
    """Return the config as the training command reads it.

    Raises:
        UserError: it refuses an option or a file.
    """
    import yaml

    command = [sys.executable, "-m", trial.PROGRAM, *base, "--print_config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["the training command does not start"]
        raise UserError(lines[-1].removeprefix("error: "))
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def _values(findings: Iterable[Finding]) -> Options:
    return {name: value for finding in findings for name, value in finding.values.items()}


def _files(base: list[str]) -> list[Path]:
    """Return the config files of a command line."""
    files = [after for before, after in itertools.pairwise(base) if before == "--config"]
    return [Path(file) for file in (*files, *(it.partition("=")[2] for it in base if it.startswith("--config=")))]


def _key(files: list[Path]) -> dict[str, Any]:
    """Return what a kept trial must share with those of today."""
    import torch

    from ...environment import environment, versions
    from ...faults import provenance

    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    here = {"machine": provenance.machine(torch.device("cpu")), "versions": versions(), "environment": environment()}
    return {"code": provenance.code(), "files": contents, **here}
