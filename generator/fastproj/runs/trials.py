"""Trials: short trainings in processes of their own, which are ended as soon as their speed is known."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from ..shared.errors import FastprojError
from ..shared.yaml_file import read_yaml
from .options import Options, as_arguments, flat, for_framework
from .project import TrainedProject

ENDLESS = 1_000_000
"""Steps of a trial, and between its validations: it is ended long before."""
ROWS, LONGEST = 3, 900.0
"""A trial is measured for at least these rows, and fails if they take longer than the longest time, in seconds."""
NO_MEMORY = re.compile(
    "out of memory|can't allocate memory|cannot allocate memory|MemoryError", re.IGNORECASE
)


@dataclass(frozen=True)
class Trial:
    """What a short training measured."""

    samples_per_second: float = 0.0
    peak_mb: float | None = None
    """Largest memory of the process in 10^6 bytes; None if the system does not tell."""
    problem: str = ""
    """The last line of an error; empty if the trial succeeded."""


class Trainer:
    """Starts trials of a project, one after another, in a temporary folder."""

    def __init__(self, project: TrainedProject, given: str, processes: int, seconds: float) -> None:
        try:
            self.given = shlex.split(given)
        except ValueError as error:
            raise FastprojError(
                f"--options cannot be read ({error}): quote them as in a shell"
            ) from error
        self.project, self.processes, self.seconds = project, processes, seconds
        self.every, self.recipe = 1, Options()
        self.folder = Path(tempfile.mkdtemp(prefix="fastproj-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self) -> Options:
        """Run the first trial, which must succeed; return the options of the recipe, by the framework's names."""
        first = self.measure({})
        if first.problem:
            raise FastprojError(f"the training command fails: {first.problem}")
        self.recipe = flat(
            json.loads((self.folder / "trial/config.json").read_text(encoding="utf-8"))["config"]
        )
        seconds_per_row = _measured(self.rows())[1] / (len(self.rows()) - 1)
        self.every = max(1, min(50, int(0.25 / seconds_per_row)))
        return self.recipe

    def measure(self, options: Options) -> Trial:
        """Train with options until the speed is known."""
        translated = for_framework(options, self.project.lightning)
        if translated is None:
            return Trial(problem=f"{self.project.framework} lacks this option")
        processes = self._start(as_arguments(self._endless() | translated))
        try:
            deadline = time.monotonic() + LONGEST
            while not self._enough(rows := self.rows()) and time.monotonic() < deadline:
                if any(process.poll() is not None for process in processes):
                    return self._failed([process.wait(60) for process in processes])
                time.sleep(0.02)
            if not self._enough(rows):
                return Trial(problem=f"not {ROWS} rows of metrics in {LONGEST:.0f} seconds")
            samples, seconds = _measured(rows)
            return Trial(
                samples / seconds, _peak_mb(processes[0].pid) if self.processes == 1 else None
            )
        finally:
            _end(processes)

    def train(self, options: Options) -> Path:
        """Train to the end with options of plain PyTorch; return the folder of the run."""
        processes = self._start(as_arguments(options))
        try:
            statuses = [process.wait() for process in processes]
        finally:
            _end(processes)
        if any(statuses):
            raise FastprojError(f"a trial failed: {self._failed(statuses).problem}")
        return self.folder / "trial"

    def rows(self) -> list[dict[str, Any]]:
        """Return the whole rows that the trial has written."""
        file = self.folder / "trial/metrics.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        return [row for line in lines if (row := json.loads(line))["split"] == "train"]

    def _enough(self, rows: list[dict[str, Any]]) -> bool:
        return len(rows) > ROWS and _measured(rows)[1] >= self.seconds

    def _endless(self) -> Options:
        if not self.project.lightning:
            limit = {"run.hours": 2 * LONGEST / 3600}  # for a trial that survives this program
            return limit | {
                "train.steps": ENDLESS,
                "train.eval_every": ENDLESS,
                "log.every": self.every,
            }
        recipe = read_yaml(self.project.folder / "configs/default.yaml")
        callbacks = (recipe.get("trainer") or {}).get("callbacks") or []
        kept = [
            it for it in callbacks if not str(it.get("class_path")).endswith(".ModelCheckpoint")
        ]
        return {
            "trainer.callbacks": json.dumps(kept),
            "trainer.enable_checkpointing": False,
            "trainer.enable_progress_bar": False,
            "trainer.limit_val_batches": 0,
            "trainer.max_epochs": -1,
            "trainer.max_time": "00:00:30:00",
            "trainer.max_steps": ENDLESS,
            "trainer.log_every_n_steps": self.every,
        }

    def _start(self, arguments: list[str]) -> list[subprocess.Popen[bytes]]:
        shutil.rmtree(self.folder / "trial", ignore_errors=True)
        project = self.project
        command = [
            str(project.python),
            "-m",
            f"{project.package}.train",
            *(["fit"] if project.lightning else []),
        ]
        command += ["--config", "configs/default.yaml", *self.given]
        if project.lightning:
            place = {
                "trainer.logger.init_args.save_dir": self.folder,
                "trainer.logger.version": "trial",
            }
            place |= {"trainer.devices": self.processes} if self.processes > 1 else {}
        else:
            place = {"run.dir": self.folder, "run.name": "trial"}
        # Lightning starts the other ranks itself
        ranks = 1 if project.lightning else self.processes
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            shared = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free.getsockname()[1]),
                "WORLD_SIZE": str(ranks),
            }
        shared |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # as launch/local.sh
        found: list[subprocess.Popen[bytes]] = []
        with (self.folder / "errors").open("wb") as errors:
            for rank in range(ranks):
                own = (
                    shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                    if self.processes > 1
                    else {}
                )
                found.append(
                    subprocess.Popen(
                        [*command, *as_arguments(place), *arguments],
                        cwd=project.folder,
                        env=project.environment() | (own if ranks > 1 else {}),
                        stdout=subprocess.DEVNULL,
                        stderr=errors,
                        process_group=found[0].pid if found else 0,
                    )
                )
        return found

    def _failed(self, statuses: list[int]) -> Trial:
        printed = (self.folder / "errors").read_text(encoding="utf-8", errors="replace")
        last = (printed.strip().splitlines() or [f"it ended with status {max(statuses, key=abs)}"])[
            -1
        ]
        fits = -signal.SIGKILL not in statuses and not NO_MEMORY.search(printed)
        return Trial(problem=last.removeprefix("error: ") if fits else "out of memory")


def _measured(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return samples and seconds after the first row, before which workers start and kernels are compiled."""
    samples = seconds = 0.0
    for before, row in pairwise(rows):
        took = row["seconds"] - before["seconds"]
        samples, seconds = samples + row["samples_per_second"] * took, seconds + took
    return samples, seconds


def _peak_mb(process: int) -> float | None:
    """Return the largest memory that a process has had, on Linux."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) * 1024 / 1e6 if found else None
    return None


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    with suppress(ProcessLookupError):
        # with the workers of the loader, and Lightning's other ranks
        os.killpg(processes[0].pid, signal.SIGKILL)
    for process in processes:
        process.wait()
