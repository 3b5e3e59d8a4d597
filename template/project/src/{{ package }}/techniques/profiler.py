"""Profilers of the training process: `debug.profile`, which `tools/profile.py` starts, and reads the files of."""

import cProfile
import io
import json
import pstats
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity

from .. import cuda, distributed
from ..config import DebugConfig
from ..contracts import no_compile_reason
from ..distributed import World
from ..hooks import Hook

WARMUP = 3
"""Steps before the first that is recorded, in which the profiler itself starts."""
OPERATOR = re.compile(r"(?!c10d::)\w+::\w+|triton_\w+|graph_\w+|Torch-Compiled .*")
"""Names of what computes, among those of annotations, Python functions, collectives and the kernels of a GPU."""


class Profiler(Hook):
    """Records some steps of each rank.

    Raises:
        UserError: the run is too short, or the device does not support the kind.
    """

    def __init__(self, cfg: DebugConfig, world: World, steps: int) -> None:
        self.kind = "trace" if cfg.profile is True else cfg.profile
        self.world, self.first, self.steps = world, cfg.profile_start, cfg.profile_steps
        if self.kind == "nvtx" and world.device.type != "cuda":
            cfg.refuse("profile", f"its ranges need CUDA, and this run is on {world.device}; use trace")
        needed = self.first + self.steps
        if steps < needed:
            cfg.refuse("profile", f"it needs {needed} steps, and the run has {steps}; raise train.steps")
        self.on_device = distributed.has_streams(world.device)
        self.step, self.recording = 0, False
        self.folder, self.no_compile = Path(), ""
        self.functions = cProfile.Profile()
        self.torch: torch.profiler.profile | None = None
        self.nsys: cuda.NsysRecording | None = None

    @contextmanager
    def running(self, model: nn.Module, folder: Path) -> Iterator[None]:
        """Record steps of the training loop, and write the files in `profile` in the run's folder."""
        self.folder, self.no_compile = folder / "profile", no_compile_reason(model)
        if self.kind in ("simple", "trace"):
            self.torch = self._torch_profiler()
            self.torch.start()
        try:
            yield
        finally:
            self._end()
            if self.torch is not None:
                self.torch.stop()

    def before_step(self, step: int) -> None:
        """Begin or end to record."""
        self.step += 1
        if self.torch is not None:
            self.torch.step()
        elif self.step == self.first:
            self._begin()
        elif self.step == self.first + self.steps:
            self._end()
        elif self.recording and self.nsys is not None:
            self.nsys.begin(self.step)

    def _begin(self) -> None:
        self.recording = True
        if self.kind == "advanced":
            self.functions.enable()
        else:
            self.nsys = cuda.NsysRecording(self.step)

    def _end(self) -> None:
        if not self.recording:
            return
        self.recording = False
        if self.kind == "advanced":
            self.functions.disable()
            self._write_functions()
        elif self.nsys is not None:
            self.nsys.end()

    def _file(self, name: str) -> Path:
        """Return the place of a file; the name has the rank, but for rank 0."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem, dot, suffix = name.partition(".")
        return self.folder / (f"{stem}-rank-{self.world.rank}{dot}{suffix}" if self.world.rank else name)

    def _write_functions(self) -> None:
        self.functions.dump_stats(self._file("functions.prof"))
        text = io.StringIO()
        pstats.Stats(self.functions, stream=text).sort_stats("tottime").print_stats(60)
        self._file("functions.txt").write_text(text.getvalue(), encoding="utf-8")

    def _torch_profiler(self) -> torch.profiler.profile:
        traces = self.kind == "trace"
        verbose: Any = torch._C._profiler._ExperimentalConfig(verbose=True)  # else `export_stacks` writes nothing
        return torch.profiler.profile(
            activities=torch.profiler.supported_activities() if self.on_device else [ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=self.first - WARMUP, warmup=WARMUP, active=self.steps, repeat=1),
            on_trace_ready=self._write_traces if traces else self._write_operators,
            record_shapes=True,
            with_flops=True,
            profile_memory=traces,
            with_stack=traces,
            experimental_config=verbose if traces else None,
            acc_events=True,  # of one cycle, which is all there is; without, torch 2.11 warns
        )

    def _write_traces(self, profiler: torch.profiler.profile) -> None:
        self._write_operators(profiler)
        profiler.export_chrome_trace(str(self._file("trace.json")))
        by = "self_device_time_total" if self.on_device else "self_cpu_time_total"
        profiler.export_stacks(str(self._file("stacks.txt")), by.replace("device", "cuda"))
        table = profiler.key_averages().table(sort_by=by, row_limit=40)
        self._file("table.txt").write_text(table + "\n", encoding="utf-8")

    def _write_operators(self, profiler: torch.profiler.profile) -> None:
        """Write the time of each operator: on the device's own clock, or the host's."""
        operators = []
        for found in profiler.key_averages(group_by_input_shape=True):
            # Not the kernels: the time of those that Triton names like their operator is the operator's already.
            if OPERATOR.fullmatch(found.key) and found.device_type.name == "CPU":
                time = found.self_device_time_total if self.on_device else found.self_cpu_time_total
                numbers = sum(_numel(shape) for shape in found.input_shapes)
                its = {"calls": found.count, "us": time, "flops": found.flops, "numbers": numbers}
                operators.append({"name": found.key, **its})
        events: Any = profiler.events()
        steps = [it for it in events if it.name.startswith("ProfilerStep") and it.device_type.name == "CPU"]
        whole = sum(it.time_range.elapsed_us() for it in steps)
        record = {"steps": self.steps, "us": whole, "no_compile": self.no_compile, "operators": operators}
        if self.on_device:
            kernels = [it for it in events if _is_kernel(it)]
            record["busy_us"] = _union([it.time_range for it in kernels])
            computing = _union([it.time_range for it in kernels if not it.name.startswith("nccl")])
            record["exposed_us"] = record["busy_us"] - computing
        self._file("operators.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


def _numel(shape: Any) -> int:
    """Return the numbers in an input; a list of tensors, or a scalar, counts none."""
    number = 1 if shape and all(isinstance(size, int) for size in shape) else 0
    for size in shape if number else ():
        number *= size
    return number


def _is_kernel(event: Any) -> bool:
    """Whether an event is work of the device, and no range of the host's."""
    return not (event.device_type.name == "CPU" or event.is_user_annotation or event.name.startswith("ProfilerStep"))


def _union(ranges: list[Any]) -> float:
    """Return the microseconds in which at least one of some ranges goes on."""
    total, until = 0.0, float("-inf")
    for each in sorted(ranges, key=lambda it: float(it.start)):
        total += max(0.0, each.end - max(each.start, until))
        until = max(until, each.end)
    return total
