"""Throughput, host time, memory and kernels of well-known models: eager, compiled and with graphs.

All samples are on the device, so that the step is measured and not the loader.
"""

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

from ..check import Check, Figures, Lab, MissingHardwareError
from ..projects import CAPTURABLE, STEP_GRAPH, Project
from .subjects import SUBJECTS, Subject

ROWS = 2
"""Rows that are measured, after the first, which is warm-up; then comes host time."""
IDLE = 8
"""Steps that begin with an idle device, so that only the host's time counts."""
WARMUP, PROFILED = 6, 3
"""Steps before the profile, and in it."""
OPTIONS = ["--train.steps=100000", "--train.eval_every=100000"]
OPTIONS += ["--speed.precision=auto", "--data.cache=device", "--optim.lr=1e-4", *CAPTURABLE]
MEMORY = 75 * 10**9
"""Bytes on a device that must be enough for each of the sizes."""


class Stopwatch:
    """Measures a run, and ends it."""

    def __init__(self, device: torch.device, every: int) -> None:
        self.on_cuda, self.every = device.type == "cuda", every
        last = (1 + ROWS) * every
        self.idle = range(last + 2, last + 2 + IDLE)
        self.step, self.idle_since = 0, 0.0
        self.rows: list[dict[str, float]] = []
        self.host: list[float] = []

    def before_step(self, step: int) -> None:
        now = time.perf_counter()
        if self.step in self.idle:
            self.host.append(now - self.idle_since)
        self.step += 1
        if self.step in self.idle and self.on_cuda:
            torch.cuda.synchronize()
        self.idle_since = time.perf_counter()

    def on_metrics(self, row: dict[str, float]) -> bool:
        self.rows.append(dict(row))
        return self.step > self.idle.stop

    def figures(self) -> Figures:
        """Return the medians; each must be a positive number, and no device exceeds its peak."""
        measured = self.rows[1 : 1 + ROWS]
        names = [name for name in ("samples_per_second", "tflops", "mfu") if name in measured[0]]
        found: Figures = {name: statistics.median(row[name] for row in measured) for name in names}
        found["host_us"] = 1e6 * statistics.median(self.host)
        if self.on_cuda:
            found["memory_gb"] = max(row["memory_gb"] for row in measured)
        _check_measured(found)
        assert found.get("mfu", 0) < 1, f"MFU of {found['mfu']:.3g}"
        return found


class Profile:
    """Counts kernels and launches of a step, and ends the run."""

    every = WARMUP + PROFILED + 1

    def __init__(self) -> None:
        self.step = 0
        self.profiler: Any = None

    def before_step(self, step: int) -> None:
        self.step += 1
        if self.step == WARMUP + 1:
            kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            torch.cuda.synchronize()
            self.profiler = torch.profiler.profile(activities=kinds, acc_events=True)
            self.profiler.start()
        if self.step == self.every:
            torch.cuda.synchronize()
            self.profiler.stop()

    def on_metrics(self, row: dict[str, float]) -> bool:
        return True

    def figures(self) -> Figures:
        """Return the mean numbers, which must be positive."""
        events = self.profiler.events()
        on_device = [it.name for it in events if it.device_type.name == "CUDA" and not it.is_user_annotation]
        kernels = [name for name in on_device if not name.startswith(("Memcpy", "Memset"))]
        starts = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")
        launches = [event.name for event in events if event.name.startswith(starts)]
        found = {"kernels": len(kernels) / PROFILED, "launches": len(launches) / PROFILED}
        _check_measured(found)
        return {**found}


def _check_measured(figures: Figures) -> None:
    wrong = {name: value for name, value in figures.items() if not 0 < value < math.inf}
    assert not wrong, f"not measured: {wrong}"


def measure(lab: Lab, subject: Subject, mode: str) -> Figures:
    """Train some steps, and return throughput, host time and memory."""
    if mode != "eager":
        _parse(lab, subject, mode)
        lab.needs_cuda()
    watch = lab.project(subject.model).hook(Stopwatch, lab.device, 10 if lab.dry else subject.every)
    _train(lab, subject, mode, watch, subject.mfu)
    return watch.figures() | ({"size": "tiny"} if lab.dry else {})


def profile(lab: Lab, subject: Subject, mode: str) -> Figures:
    """Train some steps, and return the numbers of kernels and launches; what is measured after this is slower."""
    _parse(lab, subject, mode)
    lab.needs_cuda()
    counter = lab.project(subject.model).hook(Profile)
    _train(lab, subject, mode, counter, mfu=False)
    return counter.figures()


def _options(subject: Subject, mode: str) -> list[str]:
    modes = {"eager": [], "graphs": [STEP_GRAPH], "compiled": [f"--speed.compile={subject.compile}"]}
    return [*OPTIONS, *modes[mode]]


def _parse(lab: Lab, subject: Subject, mode: str) -> None:
    """Refuse, without a GPU as well, options that a run on one would."""
    project, options = lab.project(subject.model), [*_options(subject, mode), *subject.options]
    parse = project.check_graphs if mode == "graphs" else project.config
    parse(*options)


def _train(lab: Lab, subject: Subject, mode: str, watch: Stopwatch | Profile, mfu: bool) -> None:
    project = lab.project(subject.model)
    data = subject.data(project, lab.dry) if subject.data else None
    size = subject.small if lab.dry else subject.options
    options = [*_options(subject, mode), *size, f"--log.every={watch.every}", f"--log.mfu={str(mfu).lower()}"]
    try:
        with _only_training(project):
            project.train(*options, hooks=[watch], data=data)
    except torch.OutOfMemoryError as error:
        if torch.cuda.get_device_properties(lab.device).total_memory < MEMORY:
            raise MissingHardwareError("needs 80 GB of GPU memory") from error
        raise


@contextmanager
def _only_training(project: Project) -> Iterator[None]:
    """Leave out the validation and the checkpoint at the end, which for GPT-2 has 1.5 GB."""
    run = project.module("run").Run
    with mock.patch.object(run, "validate"), mock.patch.object(run, "save"):
        yield


def checks(lab: Lab) -> list[Check]:
    """Return eager and captured steps of each subject."""
    return [_check(subject, mode) for subject in SUBJECTS for mode in ("eager", "graphs")]


def compiled_checks(lab: Lab) -> list[Check]:
    """Return compiled steps of each subject, which take longest to start."""
    return [_check(subject, "compiled") for subject in SUBJECTS if subject.compile]


def profiled_checks(lab: Lab) -> list[Check]:
    """Return the profiles, which slow down what comes after them in the process."""
    modes = [(subject, mode) for mode in ("eager", "graphs", "compiled") for subject in SUBJECTS]
    return [
        Check(f"{subject.name}: kernels, {mode}", "kernels", partial(profile, subject=subject, mode=mode), 120)
        for subject, mode in modes
        if mode != "compiled" or subject.compile
    ]


def _check(subject: Subject, mode: str) -> Check:
    return Check(f"{subject.name}: {mode}", "speed", partial(measure, subject=subject, mode=mode), 120)
