"""Trials: short trainings in processes of their own, ended as soon as their speed is known."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import FastprojError
from ..template.yaml_file import read_yaml
from .options import Options, as_arguments, flat
from .project import TrainedProject

ROWS = 3
"""A trial is measured for at least these rows of metrics."""
LONGEST_S = 900.0
"""A trial fails if they take longer."""
NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|cannot allocate memory|MemoryError|SIGKILL", re.IGNORECASE
)


@dataclass(frozen=True)
class Trial:
    """What a short training measured."""

    samples_per_second: float = 0.0
    peak_mb: float | None = None
    """Largest memory of the process in 10^6 bytes; None if the system does not tell."""
    problem: str = ""
    """The last line of an error; empty if the trial succeeded."""


@dataclass
class Trainer:
    """Starts trials of a project, one after another, in a temporary folder."""

    project: TrainedProject
    given: list[str]
    """Options of the user for all trials."""
    processes: int
    seconds: float
    """Shortest time for which a trial is measured."""
    folder: Path
    log_every: int = 1

    def begin(self) -> Options:
        """Run the first trial, which must succeed; return its options, by the framework's names."""
        first = self.measure({})
        if first.problem:
            raise FastprojError(f"the training command fails: {first.problem}")
        rows = self._rows()
        seconds_per_row = _measured(rows)[1] / (len(rows) - 1)
        self.log_every = max(1, min(50, int(0.25 / seconds_per_row)))
        record = json.loads((self.folder / "trial/config.json").read_text(encoding="utf-8"))
        return flat(record["config"])

    def measure(self, options: Options) -> Trial:
        """Train with options until the speed is known."""
        translated = self.project.names.translate(options)
        if translated is None:
            return Trial(problem=f"{self.project.framework} lacks this option")
        process = self._start(self._trial_options() | translated)
        deadline = time.monotonic() + LONGEST_S
        try:
            while not self._is_measured():
                if process.poll() is not None:
                    return Trial(problem=self._problem(process))
                if time.monotonic() > deadline:
                    return Trial(problem=f"not {ROWS} rows of metrics in {LONGEST_S:.0f} seconds")
                time.sleep(0.02)
            samples, seconds = _measured(self._rows())
            return Trial(samples / seconds, _peak_mb(process.pid) if self.processes == 1 else None)
        finally:
            _end(process, self.processes)

    def train(self, options: Options) -> Path:
        """Train to the end with options of plain PyTorch; return the folder of the run."""
        process = self._start(options)
        try:
            process.wait()
        finally:
            _end(process, self.processes)
        if process.returncode:
            raise FastprojError(f"a trial failed: {self._problem(process)}")
        return self.folder / "trial"

    def _rows(self) -> list[dict[str, Any]]:
        """Return the whole rows of training that the trial has written."""
        file = self.folder / "trial/metrics.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        rows = [json.loads(line) for line in lines]
        return [row for row in rows if row["split"] == "train"]

    def _is_measured(self) -> bool:
        rows = self._rows()
        return len(rows) > ROWS and _measured(rows)[1] >= self.seconds

    def _trial_options(self) -> Options:
        options = self.project.names.trial | {
            self.project.names.name("log.every"): self.log_every,
        }
        recipe = read_yaml(self.project.folder / "configs/default.yaml")
        if callbacks := (recipe.get("trainer") or {}).get("callbacks"):
            # Lightning refuses one that saves checkpoints if these are off.
            kept = [entry for entry in callbacks if "ModelCheckpoint" not in entry["class_path"]]
            options["trainer.callbacks"] = json.dumps(kept)
        return options

    def _start(self, options: Options) -> subprocess.Popen[bytes]:
        shutil.rmtree(self.folder / "trial", ignore_errors=True)
        names = self.project.names
        place = {names.folder: self.folder, names.run: "trial"}
        command = [str(self.project.python)]
        if self.processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command += [*torchrun, str(self.processes)]
            place |= {names.ranks: self.processes} if names.ranks else {}
        command += ["-m", f"{self.project.package}.train", *names.words]
        command += ["--config", "configs/default.yaml", *self.given, *as_arguments(place | options)]
        with (self.folder / "errors").open("wb") as errors:
            return subprocess.Popen(
                command,
                cwd=self.project.folder,
                env=self.project.environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                process_group=0,
            )

    def _problem(self, process: subprocess.Popen[bytes]) -> str:
        """Return why a process ended."""
        printed = (self.folder / "errors").read_text(encoding="utf-8", errors="replace").strip()
        if process.returncode == -signal.SIGKILL or NO_MEMORY.search(printed):
            return "out of memory"
        printed = printed or f"it ended with status {process.returncode}"
        return printed.splitlines()[-1].removeprefix("error: ")


def _measured(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return samples and seconds after the first row, before which kernels are compiled."""
    samples = 0.0
    for before, row in pairwise(rows):
        samples += row["samples_per_second"] * (row["seconds"] - before["seconds"])
    return samples, rows[-1]["seconds"] - rows[0]["seconds"]


def _peak_mb(process: int) -> float | None:
    """Return the largest memory that a process has had, on Linux."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text()
        if peak := re.search(r"VmHWM:\s+(\d+) kB", status):
            return int(peak[1]) * 1024 / 1e6
    return None


def _end(process: subprocess.Popen[bytes], ranks: int) -> None:
    """End a training with its other ranks and the workers of its loaders."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if ranks > 1:  # they are in sessions of their own, which torchrun ends
            process.terminate()
            process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
