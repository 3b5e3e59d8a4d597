"""Instruments for a run that goes wrong: the `debug.*` switches. Each of them makes it slow."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..config import Config
from ..distributed import World
from ..errors import UserError
from ..loaders import Batch

SETTLING = 3
"""Steps in which torch itself may wait: it sorts buckets, chooses kernels, allocates."""
WAIT, WARMUP, ACTIVE = 5, 3, 5
"""Steps that the profiler lets pass, warms up on, and records."""


class Watch:
    """The instruments that were switched on; a context manager around the loop.

    Raises:
        UserError: the device has no such instrument, another switch is in its way, or it found a wrong gradient.
    """

    def __init__(self, cfg: Config, world: World, model: nn.Module, batch: Callable[[], Batch], steps: int) -> None:
        self.cfg, self.world = cfg.debug, world
        self.profiler: Any = None
        self.steps = 0
        if self.cfg.sync != "off" and world.device.type != "cuda":
            self.cfg.refuse("sync", f"only a CUDA device tells of waits, and this run is on {world.device}; use off")
        if self.cfg.nan and cfg.speed.compile != "off":
            self.cfg.refuse("nan", "compiled code has no modules to look at; set speed.compile to off")
        if self.cfg.profile and steps < WAIT + WARMUP + ACTIVE:
            self.cfg.refuse(
                "profile", f"it needs {WAIT + WARMUP + ACTIVE} steps, and the run has {steps}; raise train.steps"
            )
        if self.cfg.gradcheck:
            gradcheck(model, batch())
        if self.cfg.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # docs.nvidia.com/cuda/cublas, reproducibility
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(True)

    def attach(self, model: nn.Module, folder: Path) -> None:
        """Get ready for the loop."""
        self.folder = folder / "profile"
        if self.cfg.nan:
            hunt(model)

    def __enter__(self) -> Self:
        torch.autograd.set_detect_anomaly(self.cfg.anomaly)
        if self.cfg.profile and self.world.is_main:
            phases = torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
            activities = [torch.profiler.ProfilerActivity.CPU]
            activities += [torch.profiler.ProfilerActivity.CUDA] * (self.world.device.type == "cuda")
            self.profiler = torch.profiler.profile(
                activities=activities,
                schedule=phases,
                on_trace_ready=self._write,
                record_shapes=True,
                acc_events=True,  # of one cycle, which is all there is; without, torch 2.11 warns
            )
            self.profiler.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.may_wait()
        torch.autograd.set_detect_anomaly(False)
        torch.use_deterministic_algorithms(False)
        if self.profiler is not None:
            self.profiler.__exit__(None, None, None)

    def steady(self) -> None:
        """From here on nothing should wait for the device. Called at the start of each step."""
        if self.profiler is not None:
            self.profiler.step()
        self.steps += 1
        if self.cfg.sync != "off" and self.steps > SETTLING:
            torch.cuda.set_sync_debug_mode(self.cfg.sync)

    def may_wait(self) -> None:
        """From here on the host reads results."""
        if self.cfg.sync != "off":
            torch.cuda.set_sync_debug_mode("default")

    def _write(self, profiler: torch.profiler.profile) -> None:
        self.folder.mkdir(exist_ok=True)
        profiler.export_chrome_trace(str(self.folder / "trace.json"))
        by = "self_cuda_time_total" if self.world.device.type == "cuda" else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=40)
        (self.folder / "table.txt").write_text(table + "\n", encoding="utf-8")


def hunt(model: nn.Module) -> None:
    """Check the output of each module, and the gradient that comes back to it; the innermost come first.

    Raises:
        UserError: later, in forward or backward, at the first value that is not finite.
    """
    for name, module in model.named_modules():
        module.register_forward_hook(_checks(name or "the model"))


def _checks(name: str) -> Any:
    def after(module: nn.Module, inputs: object, output: object) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        for part in parts:
            if isinstance(part, Tensor) and part.is_floating_point():
                _check(part, f"the output of {name} ({type(module).__name__})")
                if part.requires_grad:
                    part.register_hook(lambda gradient: _check(gradient, f"the gradient at the output of {name}"))

    return after


def _check(value: Tensor, place: str) -> None:
    if not bool(value.isfinite().all()):
        kind = "NaN" if bool(value.isnan().any()) else "infinite"
        raise UserError(f"{place} is {kind}: look there first (debug.nan)")


def gradcheck(model: nn.Module, batch: Batch) -> None:
    """Hold the gradients of the loss against differences, in float64, for two samples at weights near the initial ones.

    Each weight is moved a little along a random direction, as in the fast mode of torch.autograd.gradcheck. But that
    one answers a difference with whole Jacobians, which no memory holds, where this names the weight. All weights get
    some noise first, as at an initial zero a ReLU has no derivative.

    Raises:
        UserError: they differ.
    """
    device = torch.device("cpu")  # Apple's GPUs have no float64
    net = copy.deepcopy(model).to(device, torch.float64).eval()  # without dropout, and BatchNorm by its statistics
    generator = torch.Generator().manual_seed(0)
    parts = tuple(part[:2].to(device) for part in batch)
    parts = tuple(part.double() if part.is_floating_point() else part for part in parts)
    trained = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for weight in trained.values():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype), alpha=0.02)
    _loss(net, parts).backward()
    for name, weight in trained.items():
        direction = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        expected = _slope(net, parts, weight, direction)
        found = 0.0 if weight.grad is None else (weight.grad * direction).sum().item()
        if abs(found - expected) > 1e-3 * max(abs(found), abs(expected)) + 1e-5:
            raise UserError(
                f"debug.gradcheck: the gradient of {name} is wrong ({found:.6g} along a direction in which differences "
                f"give {expected:.6g}): look at the backward of what uses it, and after it"
            )
    print("debug.gradcheck: the model's gradients agree with differences in float64", flush=True)


@torch.no_grad()
def _slope(net: nn.Module, parts: Batch, weight: Tensor, direction: Tensor, width: float = 1e-6) -> float:
    """The loss's central difference along a direction of one weight."""
    losses = []
    for step in (width, -2 * width, width):
        weight.add_(direction, alpha=step)
        losses.append(_loss(net, parts).item())
    return float(losses[0] - losses[1]) / (2 * width)


def _loss(net: nn.Module, parts: Batch) -> Tensor:
    """The loss, with the same noise each time where the model draws some; the run's own generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found: Tensor = net(*parts)[0]
    return found
