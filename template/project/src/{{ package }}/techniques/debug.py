"""Debugging tools: the `debug.*` options. Each of them slows training down."""

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import cuda
from ..config import Config
from ..contracts import Batch, call, map_tensors, size_of
from ..distributed import World
from ..errors import UserError
from ..hooks import Hook

SYNC_WARMUP = 3
"""Steps in which torch itself synchronizes: it rebuilds buckets, chooses kernels, allocates."""


class DebugTools(Hook):
    """The debugging tools that are on.

    Raises:
        UserError: the device does not support one, another option conflicts with it, or gradcheck failed.
    """

    def __init__(self, cfg: Config, world: World, model: nn.Module, batch: Callable[[], Batch]) -> None:
        self.cfg = cfg.debug
        self.step = 0
        if self.cfg.sync != "off" and world.device.type != "cuda":
            self.cfg.refuse("sync", f"only CUDA reports synchronizations, and this run is on {world.device}; use off")
        if self.cfg.nan and cfg.speed.compile != "off":
            self.cfg.refuse("nan", "compiled code has no modules to check; set speed.compile to off")
        if self.cfg.gradcheck and not next(model.parameters()).is_meta:  # under FSDP, rank 0 checks
            gradcheck(model, batch())
        if self.cfg.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # docs.nvidia.com/cuda/cublas, reproducibility
            cuda.autotune(False)
            torch.use_deterministic_algorithms(True)

    @contextmanager
    def running(self, model: nn.Module, folder: Path) -> Iterator[None]:
        """Switch the tools on, and off at the end."""
        if self.cfg.nan:
            find_nan(model)
        torch.autograd.set_detect_anomaly(self.cfg.anomaly)
        try:
            yield
        finally:
            self.before_log()
            torch.autograd.set_detect_anomaly(False)
            torch.use_deterministic_algorithms(False)

    def before_step(self, step: int) -> None:
        """From here until `before_log`, nothing should synchronize with the device."""
        self.step += 1
        if self.cfg.sync != "off" and self.step > SYNC_WARMUP:
            cuda.report_synchronization(self.cfg.sync)

    def before_log(self) -> None:
        """Allow synchronization, to read metrics."""
        if self.cfg.sync != "off":
            cuda.report_synchronization("default")


def find_nan(model: nn.Module) -> None:
    """Register hooks that check the output of each module, innermost first, and the gradient of that output.

    Raises:
        UserError: later, in forward or backward, at the first value that is not finite.
    """
    for name, module in model.named_modules():
        module.register_forward_hook(_check_output(name or "the model"))


def _check_output(name: str) -> Any:
    def check(module: nn.Module, inputs: object, output: object) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        for part in parts:
            if isinstance(part, Tensor) and part.is_floating_point():
                _check(part, f"the output of {name} ({type(module).__name__})")
                if part.requires_grad:
                    part.register_hook(lambda gradient: _check(gradient, f"the gradient at the output of {name}"))

    return check


def _check(value: Tensor, place: str) -> None:
    if not bool(value.isfinite().all()):
        kind = "NaN" if bool(value.isnan().any()) else "infinite"
        raise UserError(f"{place} is {kind}: that is the first such value (debug.nan)")


def gradcheck(model: nn.Module, batch: Batch) -> None:
    """Compare the gradients of the loss with finite differences, in float64, on two samples near the initial weights.

    Each weight is moved along a random direction, as in the fast mode of torch.autograd.gradcheck, which would compute
    whole Jacobians on a difference and run out of memory; this names the weight. Random numbers are added to all
    weights first, as a ReLU has no derivative at an initial zero.

    Raises:
        UserError: they differ.
    """
    device = torch.device("cpu")  # Apple's GPUs have no float64
    net = copy.deepcopy(model).to(device, torch.float64).eval()  # without dropout, and BatchNorm by its statistics
    generator = torch.Generator().manual_seed(0)
    count = 2 if size_of(batch) else None  # a graph, for example, is not divided
    two = map_tensors(lambda part: part[:count].to(device) if count else part.to(device), batch)
    parts = map_tensors(lambda part: part.double() if part.is_floating_point() else part, two)
    trained = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for weight in trained.values():
            weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype), alpha=0.02)
    _loss_of(net, parts).backward()
    for name, weight in trained.items():
        direction = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        expected = _slope(net, parts, weight, direction)
        found = 0.0 if weight.grad is None else (weight.grad * direction).sum().item()
        if abs(found - expected) > 1e-3 * max(abs(found), abs(expected)) + 1e-5:
            raise UserError(
                f"debug.gradcheck: the gradient of {name} is wrong ({found:.6g} along a direction, where finite "
                f"differences give {expected:.6g}): check the backward of the operations that use it"
            )
    print("debug.gradcheck: the gradients agree with finite differences in float64", flush=True)


@torch.no_grad()
def _slope(net: nn.Module, parts: Batch, weight: Tensor, direction: Tensor, width: float = 1e-6) -> float:
    """Return the central difference of the loss along a direction of one weight."""
    losses = []
    for step in (width, -2 * width, width):
        weight.add_(direction, alpha=step)
        losses.append(_loss_of(net, parts).item())
    return float(losses[0] - losses[1]) / (2 * width)


def _loss_of(net: nn.Module, parts: Batch) -> Tensor:
    """Return the loss, with the same random numbers each time; the run's RNG state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found: Tensor = call(net, parts)[0]
    return found
