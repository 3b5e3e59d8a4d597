"""Throughput, host time, kernels and memory of well-known models: eager, compiled and with graphs.

All samples are on the device, so that the step is measured and not the loader.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..check import Check, Figures, Lab, MissingHardwareError
from ..projects import CAPTURABLE, STEP_GRAPH, Project

ROWS = 2
"""Rows that are measured, after the first, which is warm-up; then come host time and profile."""
IDLE, PROFILED = 8, 3
"""Steps that begin with an idle device, so that only the host's time counts; and steps in the profile."""
OPTIONS = ["--train.steps=100000", "--train.eval_every=100000", "--log.mfu=true"]
OPTIONS += ["--speed.precision=auto", "--data.cache=device", "--optim.lr=1e-4", *CAPTURABLE]
MEMORY = 75 * 10**9
"""Bytes on a device that must be enough for each of the sizes."""


class Stopwatch:
    """Measures a run, and ends it."""

    def __init__(self, device: torch.device, every: int) -> None:
        self.on_cuda = device.type == "cuda"
        last = (1 + ROWS) * every
        self.idle = range(last + 2, last + 2 + IDLE)
        self.profiled = range(self.idle.stop + 2, self.idle.stop + 2 + PROFILED)
        self.step, self.idle_since = 0, 0.0
        self.rows: list[dict[str, float]] = []
        self.host: list[float] = []
        self.profiler: Any = None
        self.kernels = self.launches = 0.0

    def before_step(self, step: int) -> None:
        now = time.perf_counter()
        if self.step in self.idle:
            self.host.append(now - self.idle_since)
        self.step += 1
        if self.step == self.profiled.start and self.on_cuda:
            kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            torch.cuda.synchronize()
            self.profiler = torch.profiler.profile(activities=kinds, acc_events=True)
            self.profiler.start()
        if self.step == self.profiled.stop and self.profiler:
            torch.cuda.synchronize()
            self.profiler.stop()
            self._count()
        if self.step in self.idle and self.on_cuda:
            torch.cuda.synchronize()
        self.idle_since = time.perf_counter()

    def _count(self) -> None:
        events = self.profiler.events()
        on_device = [it.name for it in events if it.device_type.name == "CUDA" and not it.is_user_annotation]
        kernels = [name for name in on_device if not name.startswith(("Memcpy", "Memset"))]
        launches = [
            event.name for event in events if event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch"))
        ]
        self.kernels, self.launches = len(kernels) / PROFILED, len(launches) / PROFILED

    def on_metrics(self, row: dict[str, float]) -> bool:
        self.rows.append(dict(row))
        return self.step > self.profiled.stop

    def figures(self) -> Figures:
        """Return the medians; each must be a positive number, and no device exceeds its peak."""
        measured = self.rows[1 : 1 + ROWS]
        names = [name for name in ("samples_per_second", "tflops", "mfu") if name in measured[0]]
        found: Figures = {name: statistics.median(row[name] for row in measured) for name in names}
        found["host_us"] = 1e6 * statistics.median(self.host)
        if self.on_cuda:
            found |= {"kernels": self.kernels, "launches": self.launches}
            found["memory_gb"] = max(row["memory_gb"] for row in measured)
        wrong = {name: value for name, value in found.items() if not 0 < value < math.inf}
        assert not wrong, f"not measured: {wrong}"
        assert found.get("mfu", 0) < 1, f"MFU of {found['mfu']:.3g}"
        return found


def images(project: Project, tiny: bool, size: int) -> Any:
    """Return random images of 1,000 classes, as the project's own data."""
    data, random = project.module("data"), torch.Generator().manual_seed(0)
    size = 16 if tiny else size
    pixels = torch.randint(256, (512, 3, size, size), dtype=torch.uint8, generator=random)
    split = data.InMemory(pixels, torch.randint(1000, (512,), generator=random))
    spec = data.Spec(3, size, tuple(map(str, range(1000))), (0.5,) * 3, (0.29,) * 3)
    return data.Data(split, split, spec, True)


def tokens(project: Project, tiny: bool, vocabulary: int, context: int) -> Any:
    """Return random tokens, as the project's own data."""
    data, random = project.module("data"), torch.Generator().manual_seed(0)
    vocabulary, context = (256, 32) if tiny else (vocabulary, context)
    text = torch.randint(vocabulary, (64 * context + 1,), dtype=torch.int32, generator=random)
    windows = project.module("readers.windows").Windows(text, context)
    return data.Data(windows, windows, data.Spec(vocabulary, context), True)


@dataclass(frozen=True)
class Subject:
    """A model of a size that others publish figures for."""

    name: str
    model: str
    options: list[str]
    compile: str
    """Value of `speed.compile`; empty where the model is not to be compiled."""
    data: Callable[[Project, bool], Any] | None = None
    """Returns samples, tiny ones for the dry run; None for the built-in ones."""
    small: list[str] = field(default_factory=list)
    """Options for the dry run."""
    every: int = 10
    """Steps between rows, on a GPU: enough to take longer than the clock and the copy of a row do."""


SUBJECTS = [
    Subject("MLP small, batch 64", "mlp", [], "model", every=100),
    Subject(
        "LSTM base, 64 x 256 bytes",
        "lstm",
        ["--model.size=base", "--data.context=256", "--train.micro_batch=64", "--data.val_fraction=0.001"],
        "",
        small=["--data.context=32", "--train.micro_batch=4", "--data.cache=none"],
    ),
    Subject(
        "GPT-2 124M, 16 x 1024 tokens",
        "gpt",
        ["--model.size=124M", "--data.context=1024", "--train.micro_batch=16"],
        "blocks",
        partial(tokens, vocabulary=50257, context=1024),
        ["--data.context=32", "--train.micro_batch=4", "--data.cache=none"],
    ),
    Subject(
        "ViT-S/16, 256 x 224 pixels",
        "vit",
        ["--model.size=S/16", "--train.micro_batch=256"],
        "blocks",
        partial(images, size=224),
        ["--train.micro_batch=8"],
    ),
    Subject(
        "VAE base, 256 x 64 pixels",
        "vae",
        ["--model.size=base", "--train.micro_batch=256"],
        "model",
        partial(images, size=64),
        ["--train.micro_batch=8"],
    ),
    Subject(
        "ResNet-50, 256 x 224 pixels",
        "resnet",
        ["--model.size=50", "--train.micro_batch=256"],
        "model",
        partial(images, size=224),
        ["--train.micro_batch=8"],
    ),
]


def measure(lab: Lab, subject: Subject, mode: str) -> Figures:
    """Train some steps, and return the figures."""
    modes = {"eager": [], "graphs": [STEP_GRAPH], "compiled": [f"--speed.compile={subject.compile}"]}
    project = lab.project(subject.model)
    every = 10 if lab.dry else subject.every
    watch = project.hook(Stopwatch, lab.device, every)
    shared = [*OPTIONS, f"--log.every={every}"]
    project.config(*shared, *subject.options, *modes[mode])
    if mode == "graphs":
        project.check_graphs(*shared, *subject.options, *modes[mode])
    if mode != "eager":
        lab.needs_cuda()
    data = subject.data(project, lab.dry) if subject.data else None
    size = subject.small if lab.dry else subject.options
    try:
        project.train(*shared, *size, *modes[mode], hooks=[watch], data=data)
    except torch.OutOfMemoryError as error:
        if torch.cuda.get_device_properties(lab.device).total_memory < MEMORY:
            raise MissingHardwareError("needs 80 GB of GPU memory") from error
        raise
    return watch.figures() | ({"size": "tiny"} if lab.dry else {})


def checks(lab: Lab) -> list[Check]:
    """Return eager and captured steps of each subject."""
    return [_check(subject, mode) for subject in SUBJECTS for mode in ("eager", "graphs")]


def compiled_checks(lab: Lab) -> list[Check]:
    """Return compiled steps of each subject, which take longest to start."""
    return [_check(subject, "compiled") for subject in SUBJECTS if subject.compile]


def _check(subject: Subject, mode: str) -> Check:
    return Check(f"{subject.name}: {mode}", "speed", partial(measure, subject=subject, mode=mode), 120)
