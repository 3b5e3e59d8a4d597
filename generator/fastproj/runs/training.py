"""Trainings of a project, each a process; on a CPU they take turns and count CPU time."""

import math
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import signals
from ..errors import FastprojError, printable
from .project import TrainedProject
from .run import METRICS, read_rows

ROWS = 3
"""A training is measured for at least these rows of metrics."""
LONGEST_S = 900.0
"""It fails if they take longer."""
TURN_S = 0.1
KEPT = str(2**32)
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": KEPT,
    "MALLOC_MMAP_THRESHOLD_": KEPT,
}
"""glibc keeps freed memory: otherwise, one of two equal trainings can be a third slower."""
NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|cannot allocate memory|MemoryError", re.IGNORECASE
)


@dataclass
class Training:
    """A training that writes a run."""

    project: TrainedProject
    options: list[str]
    run: Path
    """Folder of the run; a file `.log` beside it has the output."""
    counts_cpu: bool
    """Whether the seconds of its rows are CPU time, which other programs hardly change."""
    seconds: float = math.inf
    """It is ended when its rows have these seconds; by default, it trains to its last step."""
    deadline: float = math.inf
    """Of `time.monotonic`."""
    problem: str = ""
    """Why it failed."""

    @property
    def log(self) -> Path:
        """The file with the output."""
        return self.run.with_name(f"{self.run.name}.log")

    def begin(self) -> None:
        """Start the process."""
        self.run.parent.mkdir(parents=True, exist_ok=True)
        # what is printed is in the order of time, errors last
        environment = self.project.environment() | {"PYTHONUNBUFFERED": "1"}
        if self.counts_cpu:
            environment = ONE_THREAD | environment
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.project.command(self.options, self.counts_cpu),
                cwd=self.project.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def is_over(self) -> bool:
        """Whether it has ended, or is measured."""
        is_trial = self.seconds < math.inf
        if self.process.poll() is not None:
            if self.process.returncode or is_trial:
                self.problem = self._problem()
            return True
        try:
            is_measured = is_trial and self._is_measured()
        except FastprojError as error:
            self.problem = str(error)
            return True
        if time.monotonic() > self.deadline and not is_measured:
            self.problem = f"not {ROWS} rows of metrics within the time"
        return is_measured or bool(self.problem)

    def _is_measured(self) -> bool:
        file = self.run / METRICS
        rows = read_rows(file) if file.is_file() else []
        times = [row.get("seconds", math.inf) for row in rows if row["split"] == "train"]
        return len(times) > ROWS and times[-1] - times[0] >= self.seconds

    def _problem(self) -> str:
        printed = self.log.read_text(encoding="utf-8", errors="replace").strip()
        if NO_MEMORY.search(printed):
            return "out of memory"
        if self.process.returncode == -signal.SIGKILL or "SIGKILL" in printed:
            return "killed, as by a system without memory"
        printed = printed or f"it ended with status {self.process.returncode}"
        return printable(printed.splitlines()[-1].removeprefix("error: "))

    def send(self, number: int) -> None:
        """Send a signal to its process, and to the workers of its loaders."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End all its processes."""
        with suppress(subprocess.TimeoutExpired):
            if self.project.processes > 1:  # ranks have sessions of their own; torchrun ends them
                self.process.terminate()
                self.process.wait(60)
        self.send(signal.SIGKILL)
        self.process.wait()


def train(trainings: list[Training]) -> None:
    """Make trainings: in turns if all count CPU time, or else one after another."""
    if all(training.counts_cpu for training in trainings):
        _take_turns(trainings)
    else:
        for training in trainings:
            _take_turns([training])


def _take_turns(trainings: list[Training]) -> None:
    started: list[Training] = []
    try:
        for training in trainings:
            with signals.delayed():
                training.begin()
                started.append(training)
        running = trainings
        while running:
            for training in running:
                training.send(signal.SIGCONT)
                time.sleep(TURN_S)
                if len(running) > 1:
                    training.send(signal.SIGSTOP)
            running = [training for training in running if not training.is_over()]
    finally:
        for training in started:
            training.end()
