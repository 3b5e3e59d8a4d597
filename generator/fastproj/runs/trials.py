"""Trials: trainings in processes of their own, in a temporary folder or as ordinary runs."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ..errors import FastprojError, printable
from ..template.yaml_file import read_yaml
from .options import Options, as_arguments
from .paired import Trial
from .project import TrainedProject
from .run import CONFIG, METRICS, Row, read_options, read_row

ROWS = 3
"""A trial is measured for at least these rows of metrics."""
LONGEST_S = 900.0
"""A trial fails if they take longer."""
NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|cannot allocate memory|MemoryError|SIGKILL", re.IGNORECASE
)
AUTOMATIC = {
    "speed.precision": re.compile(r"^((?:bf|fp|tf)\d+): ", re.MULTILINE),
    "loader.num_workers": re.compile(r"^(\d+) workers: ", re.MULTILINE),
}
"""Where the first lines of a run say what `auto` means."""


@dataclass
class Trainer:
    """Starts trials of a project, one after another."""

    project: TrainedProject
    given: list[str]
    """Options of the user for all trials."""
    processes: int
    seconds: float
    """Shortest time for which a trial is measured."""
    folder: Path
    """The temporary folder, also of what the trainings print."""
    deadline: float = math.inf
    """Of `time.monotonic`; a trial that is not measured then fails."""
    log_every: int = 1
    first_s: float = 0.0
    """Seconds of the first trial."""
    options: Options = field(default_factory=dict)
    """Of all trials, besides those of the candidate."""

    def begin(self) -> Options:
        """Run the first trial, which must succeed; return its options, by the framework's names."""
        self.options = self._trial_options()
        begin = time.monotonic()
        first = self.measure({})
        self.first_s = time.monotonic() - begin
        if first.problem:
            raise FastprojError(f"the training command fails: {first.problem}")
        rows = self._rows()
        seconds_per_row = _measured(rows)[1] / (len(rows) - 1)
        self.log_every = max(1, min(50, int(0.25 / seconds_per_row)))
        self.options = self._trial_options()
        recipe = read_options(self.folder / "trial" / CONFIG)
        printed = (self.folder / "printed").read_text(encoding="utf-8", errors="replace")
        for name, line in AUTOMATIC.items():
            if recipe.get(name) == "auto" and (choice := line.search(printed)):
                recipe[name] = int(choice[1]) if choice[1].isdigit() else choice[1]
        return recipe

    def measure(self, options: Options, seed: int = 0) -> Trial:
        """Train with options until the speed is known; all trials have the recipe's seed."""
        translated = self.project.names.translate(options)
        if translated is None:
            return Trial(problem=f"{self.project.framework} lacks this option")
        shutil.rmtree(self.folder / "trial", ignore_errors=True)
        names = self.project.names
        place = {names.folder: self.folder, names.run: "trial"}
        process = self.start(as_arguments(place | self.options | translated))
        end = min(time.monotonic() + LONGEST_S, self.deadline)
        try:
            while not self._is_measured():
                if process.poll() is not None:
                    return Trial(problem=self.problem(process))
                if time.monotonic() > end:
                    return Trial(problem=f"not {ROWS} rows of metrics within the time")
                time.sleep(0.02)
            samples, seconds = _measured(self._rows())
            return Trial(samples / seconds, _peak_mb(process.pid) if self.processes == 1 else None)
        except FastprojError as error:
            return Trial(problem=str(error))
        finally:
            end_training(process, self.processes)

    def _rows(self) -> list[Row]:
        """Return the whole rows of training that the trial has written."""
        file = self.folder / "trial" / METRICS
        lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
        rows = []
        for number, line in enumerate(lines, 1):
            row = read_row(line)
            if row is None or "seconds" not in row:
                raise FastprojError(f"line {number} of its {METRICS} is not a row of metrics")
            if row["split"] == "train":
                rows.append(row)
        return rows

    def _is_measured(self) -> bool:
        rows = self._rows()
        return len(rows) > ROWS and _measured(rows)[1] >= max(self.seconds, 1e-3)

    def _trial_options(self) -> Options:
        names = self.project.names
        options = dict(names.trial)
        options[names.name("log.every")] = self.log_every
        file = self.project.code / "configs/default.yaml"
        try:
            trainer = read_yaml(file).get("trainer")
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise FastprojError(f"cannot read {file} ({reason}): correct it") from error
        callbacks = trainer.get("callbacks") if isinstance(trainer, dict) else None
        if isinstance(callbacks, list):
            # Lightning refuses one that saves checkpoints if these are off.
            kept = [entry for entry in callbacks if "ModelCheckpoint" not in str(entry)]
            options["trainer.callbacks"] = json.dumps(kept, default=str)
        return options

    def start(self, options: list[str]) -> subprocess.Popen[bytes]:
        """Start a training."""
        names = self.project.names
        command = [str(self.project.python)]
        if self.processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command += [*torchrun, str(self.processes)]
            options += as_arguments({names.ranks: self.processes} if names.ranks else {})
        command += ["-m", f"{self.project.package}.train", *names.words]
        command += ["--config", str(self.project.code / "configs/default.yaml")]
        with (
            (self.folder / "errors").open("wb") as errors,
            (self.folder / "printed").open("wb") as printed,
        ):
            return subprocess.Popen(
                [*command, *self.given, *options],
                cwd=self.project.folder,
                env=self.project.environment(),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                process_group=0,
            )

    def problem(self, process: subprocess.Popen[bytes]) -> str:
        """Return why a process ended."""
        printed = (self.folder / "errors").read_text(encoding="utf-8", errors="replace").strip()
        if process.returncode == -signal.SIGKILL or NO_MEMORY.search(printed):
            return "out of memory"
        printed = printed or f"it ended with status {process.returncode}"
        return printable(printed.splitlines()[-1].removeprefix("error: "))


def _measured(rows: list[Row]) -> tuple[float, float]:
    """Return samples and seconds after the first row, before which kernels are compiled."""
    samples = 0.0
    for before, row in pairwise(rows):
        seconds = row["seconds"] - before["seconds"]
        samples += row.get("samples_per_second", 0.0) * seconds
    return samples, rows[-1]["seconds"] - rows[0]["seconds"]


def _peak_mb(process: int) -> float | None:
    """Return the largest memory that a process has had, on Linux."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
        if peak := re.search(r"VmHWM:\s+(\d+) kB", status):
            return int(peak[1]) * 1024 / 1e6
    return None


def end_training(process: subprocess.Popen[bytes], ranks: int) -> None:
    """End a training with its other ranks and the workers of its loaders."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if ranks > 1:  # they are in sessions of their own, which torchrun ends
            process.terminate()
            process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
