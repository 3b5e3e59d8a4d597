"""Where the time of a run goes.

By phases of a step, by Python functions, by operators, or as ranges for nsys.
"""

import cProfile
import io
import pstats
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, record_function

from ..component import Component, Step
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import Metrics
from ..distributed import World
from ..run import Run

PHASES = ("data", "forward_backward", "optimizer", "other")


@dataclass(frozen=True)
class ProfilerConfig(Section):
    """Profilers of the training loop; they write to `profile` in the folder of the run."""

    enabled: bool = False
    """Measure the training loop."""
    kind: Literal["basic", "advanced", "torch", "nvtx"] = "basic"
    """basic: phases of all steps; advanced: Python functions; torch: operators and memory; nvtx:
    ranges for nsys."""
    skip: int = within("[1, inf)", 10)
    """Optimizer steps at the start of this process that are not measured: they are slower."""
    steps: int = within("[1, 1000]", 5)
    """Optimizer steps to record; `basic` measures all steps after the skipped ones."""


class Profiler(Component):
    """Measures each rank; a rank other than 0 has its number in the names of its files."""

    name = "profiler"

    def __init__(
        self,
        cfg: ProfilerConfig,
        world: World,
    ) -> None:
        self.cfg = cfg
        self.world = world
        self.folder = Path()
        self.done = 0  # steps of this process
        self.logged = False
        self.phases = Phases(world.device)
        self.recording = ExitStack()

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        if self.cfg.kind == "nvtx" and self.world.device.type != "cuda":
            why = f"its ranges need CUDA, and this run is on {self.world.device}"
            self.cfg.refuse("kind", f"{why}: use torch")

    def on_train_start(self, run: Run) -> None:
        self.folder = run.folder / "profile"

    def wrap_step(
        self,
        run: Run,
        step: Step,
    ) -> Step:
        def timed_gradients(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            self.phases.end("data")
            with record_function("forward_backward"):
                metrics = step.compute_gradients(batch, is_first, is_last)
            self.phases.end("forward_backward")
            return metrics

        def timed_update() -> Tensor:
            self.phases.end("other")
            with record_function("optimizer"):
                norm = step.update_weights()
            self.phases.end("optimizer")
            return norm

        return Step(timed_gradients, timed_update)

    def on_step_end(self, run: Run) -> None:
        self.done += 1
        self.phases.steps += bool(self.phases.marks)
        if self.cfg.kind == "basic" and self.done >= self.cfg.skip and not self.phases.marks:
            self.phases.begin()
        elif self.done == self.cfg.skip:
            kinds = {"advanced": self._functions, "torch": self._operators, "nvtx": self._ranges}
            self.recording.enter_context(kinds[self.cfg.kind]())
        elif self.done == self.cfg.skip + self.cfg.steps:
            self.recording.close()

    def on_log(
        self,
        run: Run,
        row: dict[str, float],
    ) -> None:
        if self.phases.steps > 0:
            row |= self.phases.read()
        if not self.logged:
            # a tracker starts with the first row, which may take seconds: measure after it
            self.phases.marks = []
            self.logged = True

    def on_validation(
        self,
        run: Run,
        results: dict[str, float],
    ) -> None:
        if self.phases.marks:
            self.phases.begin()  # its time is in no row

    def on_train_end(self, run: Run) -> None:
        self.recording.close()  # of a run that is too short
        if self.phases.all_steps > 0:
            self._report("phases.txt", self.phases.table())

    @contextmanager
    def _functions(self) -> Iterator[None]:
        """Record Python functions of the main thread; pstats and snakeviz read functions.prof."""
        with cProfile.Profile() as functions:
            yield
        functions.dump_stats(self._file("functions.prof"))
        text = io.StringIO()
        statistics = pstats.Stats(functions, stream=text)
        statistics.sort_stats("tottime").print_stats(60)
        self._report("functions.txt", text.getvalue().strip())

    @contextmanager
    def _operators(self) -> Iterator[None]:
        """Record operators, kernels and memory; ui.perfetto.dev shows trace.json."""
        on_cpu = self.world.device.type == "cpu"
        activities = [ProfilerActivity.CPU] if on_cpu else torch.profiler.supported_activities()
        with torch.profiler.profile(
            activities=activities,
            record_shapes=True,
            profile_memory=True,
            acc_events=True,  # as it warns else
        ) as profile:
            yield
        profile.export_chrome_trace(str(self._file("trace.json")))
        by = "self_cpu_time_total" if on_cpu else "self_device_time_total"
        table = profile.key_averages().table(by, row_limit=40, max_name_column_width=40)
        self._report("operators.txt", table)

    @contextmanager
    def _ranges(self) -> Iterator[None]:
        """Let nsys record, with a range for each phase and operator."""
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        with torch.autograd.profiler.emit_nvtx():
            yield
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()

    def _report(self, name: str, table: str) -> None:
        """Write a table to a file; print its first lines on rank 0."""
        self._file(name).write_text(f"{table}\n", encoding="utf-8")
        if self.world.rank == 0:
            print("\n".join(table.splitlines()[:30]))

    def _file(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        prefix = f"rank-{self.world.rank}-" if self.world.rank else ""
        return self.folder / f"{prefix}{name}"


class Phases:
    """Milliseconds in each phase.

    Of the host on a CPU; else of the device, by events that are read with a row.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.by_events = device.type not in ("cpu", "mps")
        self.marks: list[tuple[str, Any]] = []
        """The phases since the row began, each with its end; empty if nothing is measured."""
        self.steps = 0  # in this row
        self.all_steps = 0
        self.totals = dict.fromkeys(PHASES, 0.0)

    def begin(self) -> None:
        """Begin a row."""
        self.marks = [("", self._now())]
        self.steps = 0

    def end(self, phase: str) -> None:
        """End a phase, and begin the next one."""
        if self.marks:
            self.marks.append((phase, self._now()))

    def _now(self) -> Any:
        if not self.by_events:
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def read(self) -> dict[str, float]:
        """Return the milliseconds per step of each phase, which are finished, and begin anew."""
        if not self.by_events:  # an event would not have happened yet
            self.end("other")
        row = {f"ms_{phase}": 0.0 for phase in PHASES}
        for (_, start), (phase, end) in pairwise(self.marks):
            milliseconds = start.elapsed_time(end) if self.by_events else 1000 * (end - start)
            self.totals[phase] += milliseconds
            row[f"ms_{phase}"] += milliseconds / self.steps
        self.all_steps += self.steps
        self.begin()
        return row

    def table(self) -> str:
        """Return the means over all rows."""
        whole = sum(self.totals.values())
        lines = [f"{'phase':18}{'ms per step':>12}{'share':>8}"]
        for phase, total in self.totals.items():
            mean = total / self.all_steps
            lines.append(f"{phase:18}{mean:12.3f}{total / whole:8.1%}")
        return "\n".join(lines)
