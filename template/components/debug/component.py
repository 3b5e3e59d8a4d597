"""Debugging tools. Each slows the training down, so all are off by default."""

import copy
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import precision
from ..component import Component, Step
from ..config import BaseConfig, SpeedConfig
from ..config_base import Section
from ..contracts import Metrics
from ..distributed import World
from ..errors import UserError
from ..loader import map_tensors
from ..metrics import compute_loss
from ..run import Run

WARMUP = 3
"""Steps in which torch itself synchronizes: it allocates memory, and chooses kernels."""


@dataclass(frozen=True)
class DebugConfig(Section):
    """Debugging tools."""

    enabled: bool = False
    """Use the tools below."""
    nan: bool = False
    """Stop at the first module whose output or gradient is not finite, and name it."""
    anomaly: bool = False
    """Show the forward operation whose backward pass fails or returns NaN (torch.autograd's anomaly detection)."""
    gradcheck: bool = False
    """Before training, compare the gradient of each parameter with finite differences, in float64 on the CPU."""
    deterministic: bool = False
    """Use deterministic algorithms only; an operation without one raises an error."""
    synchronization: Literal["off", "warn", "error"] = "off"
    """CUDA: report operations that wait for the device, outside logging, validation and the first steps."""


class Debug(Component):
    """Switches the tools on when training starts, and off when it ends."""

    name = "debug"

    def __init__(self, cfg: DebugConfig, world: World) -> None:
        self.cfg, self.world = cfg, world
        self.undo: list[Callable[[], object]] = []
        self.first_step = 0

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        device = self.world.device
        if self.cfg.synchronization != "off" and device.type != "cuda":
            why = f"only CUDA reports it, and this run is on {device}: use off"
            self.cfg.refuse("synchronization", why)
        if self.cfg.gradcheck and "fsdp" in enabled:
            why = "debug.gradcheck needs whole weights, which fsdp divides"
            raise UserError(f"{why}: set fsdp.enabled=false")
        if self.cfg.nan:
            self._check_nan(cfg.speed, enabled)

    def on_train_start(self, run: Run) -> None:
        if self.cfg.nan:
            self.undo += [handle.remove for handle in find_nan(run.model)]
        if self.cfg.anomaly:
            before = torch.is_anomaly_enabled()
            torch.autograd.set_detect_anomaly(True)
            self.undo.append(lambda: torch.autograd.set_detect_anomaly(before))
        if self.cfg.deterministic:
            self._be_deterministic()

    def wrap_step(self, run: Run, step: Step) -> Step:
        self.first_step = run.step
        gradcheck_at = run.step if self.cfg.gradcheck else -1

        def checked(batch: Any, loss_weight: float, is_last: bool) -> Metrics:
            nonlocal gradcheck_at
            if run.step == gradcheck_at:
                gradcheck(run.model, batch)
                gradcheck_at = -1
                run.world.run_on_rank_zero(
                    lambda: print("debug.gradcheck: the gradients agree with finite differences")
                )
            if self.cfg.nan:
                map_tensors(lambda part: _check(part, "a tensor of the batch"), batch)
            if self.cfg.synchronization != "off" and run.step >= self.first_step + WARMUP:
                torch.cuda.set_sync_debug_mode(self.cfg.synchronization)
            return step.compute_gradients(batch, loss_weight, is_last)

        return step._replace(compute_gradients=checked)

    def on_step_end(self, run: Run) -> None:
        if self.cfg.synchronization != "off" and self.world.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")

    def on_train_end(self, run: Run) -> None:
        self.on_step_end(run)
        for action in reversed(self.undo):
            action()

    def _check_nan(self, speed: SpeedConfig, enabled: Collection[str]) -> None:
        compiler = "regional_compile.enabled=false" if "regional_compile" in enabled else ""
        if speed.compile != "off":
            compiler = compiler or "speed.compile=off"
        if compiler:
            self.cfg.refuse("nan", f"compiled code has no modules: set {compiler}")
        if precision.name_of(speed, self.world.device) == "fp16":
            why = "with fp16, gradients that overflow are normal"
            self.cfg.refuse("nan", f"{why}: set speed.precision=fp32")

    def _be_deterministic(self) -> None:
        before, benchmark = (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
        )
        # cuBLAS: "Results reproducibility"
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
        self.undo.append(lambda: torch.use_deterministic_algorithms(before))
        self.undo.append(lambda: setattr(torch.backends.cudnn, "benchmark", benchmark))


def find_nan(model: nn.Module) -> list[Any]:
    """Check each module's output, the innermost first, and the gradient of that output; return the hooks."""
    hooks = []
    for name, module in model.named_modules():
        place = f"{name or 'the model'} ({type(module).__name__})"
        hooks.append(
            module.register_forward_hook(
                lambda _module, _inputs, output, place=place: _visit(output, place)
            )
        )
    return hooks


def _visit(output: Any, place: str) -> None:
    for part in output if isinstance(output, tuple | list) else [output]:
        if isinstance(part, Tensor):
            _check(part, f"the output of {place}")
            if part.requires_grad:
                part.register_hook(
                    lambda gradient: _check(gradient, f"the gradient of the output of {place}")
                )


def _check(value: Tensor | None, what: str) -> None:
    if value is not None and value.is_floating_point() and not bool(value.isfinite().all()):
        kind = "NaN" if bool(value.isnan().any()) else "infinity"
        raise UserError(f"debug.nan: {what} is the first with {kind}")


def gradcheck(model: nn.Module, batch: Any) -> None:
    """Compare the slope of the loss along a random direction of each parameter with finite differences, on two samples.

    One slope per parameter, because torch's `gradcheck` of a parameter would compute losses for
    each of its elements.
    """
    generator = torch.Generator().manual_seed(0)
    # no dropout, and BatchNorm's running statistics
    net = copy.deepcopy(model).to("cpu", torch.float64).eval()
    two = map_tensors(
        lambda part: part[:2].cpu().double() if part.is_floating_point() else part[:2].cpu(), batch
    )
    weights = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    for weight in weights.values():  # away from initial zeros, where a ReLU has no derivative
        weight.data.add_(
            torch.randn(weight.shape, generator=generator, dtype=weight.dtype), alpha=0.02
        )
    gradients = torch.autograd.grad(_loss(net, two), [*weights.values()], materialize_grads=True)
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        direction = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        found, expected = (gradient * direction).sum().item(), _slope(net, two, weight, direction)
        if abs(found - expected) > 1e-3 * max(abs(found), abs(expected)) + 1e-5:
            slopes = f"{found:.6g} along a direction, where finite differences give {expected:.6g}"
            raise UserError(
                f"debug.gradcheck: the gradient of {name} is wrong ({slopes}): check the code that uses it"
            )


@torch.no_grad()
def _slope(
    net: nn.Module, batch: Any, weight: Tensor, direction: Tensor, width: float = 1e-8
) -> float:
    """Return the central difference of the loss; a larger width would cross more kinks of ReLUs."""
    losses = []
    for distance in (width, -2 * width):
        weight.add_(direction, alpha=distance)
        losses.append(_loss(net, batch).item())
    weight.add_(direction, alpha=width)
    return (losses[0] - losses[1]) / (2 * width)


def _loss(net: nn.Module, batch: Any) -> Tensor:
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same noise each time
        torch.set_default_dtype(torch.float64)  # of tensors that the model creates
        try:
            return compute_loss(net, batch)[0]
        finally:
            torch.set_default_dtype(before)
