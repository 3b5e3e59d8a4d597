"""Trials: short trainings in a temporary folder, which are ended when their speed is known."""

import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FastprojError
from .options import Options, as_arguments
from .paired import Trial
from .project import Machine, TrainedProject
from .run import read_runs
from .times import samples_per_second, seconds_per_step
from .training import LONGEST_S, Training, train

WORKERS = "loader.num_workers"
CHANNELS_LAST = "speed.channels_last"
AUTOMATIC = {
    "speed.precision": re.compile(r"^((?:bf|fp|tf)\d+): ", re.MULTILINE),
    WORKERS: re.compile(r"^(\d+) workers: ", re.MULTILINE),
}
"""Where the first lines of a run say what `auto` means."""


@dataclass
class Trainer:
    """Makes trials of a project."""

    project: TrainedProject
    seconds: float
    """Shortest time for which a trial is measured."""
    folder: Path
    """The temporary folder."""
    deadline: float
    """Of `time.monotonic`; a trial that is not measured then fails."""
    machine: Machine = field(init=False)
    recipe: Options = field(default_factory=dict, init=False)
    """The options of the first trial, by the framework's names."""
    first_s: float = field(init=False)
    """Seconds of the first trial."""
    log_every: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        begin = time.monotonic()
        self.machine = self.project.machine()
        first = self._training({}, 0, self.counts_cpu({}))
        first.seconds = 0.0
        train([first])
        if first.problem:
            raise FastprojError(f"the training command fails: {first.problem}")
        self.first_s = time.monotonic() - begin
        (run,) = read_runs([first.run])
        step_s = seconds_per_step(run)
        self.log_every = max(1, min(50, int(0.25 / step_s))) if step_s else 50
        self.recipe = dict(run.options)
        printed = first.log.read_text(encoding="utf-8", errors="replace")
        for name, line in AUTOMATIC.items():
            if self.recipe.get(name) == "auto" and (choice := line.search(printed)):
                self.recipe[name] = int(choice[1]) if choice[1].isdigit() else choice[1]
        if self.recipe.get(CHANNELS_LAST) == "auto":
            self.recipe[CHANNELS_LAST] = self.machine.device == "cuda"

    @property
    def on_gpu(self) -> bool:
        """Whether the project trains on a GPU."""
        return self.machine.device != "cpu"

    def value(
        self,
        option: str,
        kept: Options | None = None,
    ) -> Any:
        """Return the value in force of an option, given by its name in plain PyTorch."""
        return (kept or {}).get(option, self.recipe.get(self.project.names.name(option)))

    def measure(self, sides: dict[str, Options], seed: int) -> dict[str, Trial]:
        """Train with the options of each side until its speed is known; all have one seed."""
        trainings: dict[str, Training] = {}
        counts_cpu = all(map(self.counts_cpu, sides.values()))
        for name, options in sides.items():
            trainings[name] = self._training(options, len(trainings), counts_cpu)
        train(list(trainings.values()))
        trials = {}
        for name, training in trainings.items():
            run = None if training.problem else read_runs([training.run])[0]
            speed = samples_per_second(run) if run else None
            trials[name] = Trial(speed or 0.0, problem=training.problem)
        return trials

    def counts_cpu(self, options: Options) -> bool:
        """Whether CPU time tells the speed: on a CPU, where nothing is done in other processes."""
        is_alone = self.project.processes == 1 and not self.value(WORKERS, options)
        return is_alone and not self.on_gpu

    def _training(
        self,
        options: Options,
        place: int,
        counts_cpu: bool,
    ) -> Training:
        names = self.project.names
        folder = self.folder / str(place)
        shutil.rmtree(folder, ignore_errors=True)
        all_trials = names.trial | {names.name("log.every"): self.log_every}
        where = {names.folder: folder, names.run: "trial"}
        translated = names.translate(options) or {}
        return Training(
            self.project,
            as_arguments(where | all_trials | translated),
            folder / "trial",
            counts_cpu,
            max(self.seconds, 1e-3),
            min(time.monotonic() + LONGEST_S, self.deadline),
        )
