"""Debugging tools. Each slows the training down, so all are off by default."""

import copy
import math
import os
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
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
from ..loss import compute_loss
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
    """Show the forward operation whose backward pass fails or returns NaN (torch.autograd's anomaly
    detection)."""
    gradcheck: bool = False
    """Before training, compare the gradient of each parameter with finite differences, in float64
    on the CPU."""
    deterministic: bool = False
    """Use deterministic algorithms only; an operation without one raises an error."""
    synchronization: Literal["off", "warn", "error"] = "off"
    """CUDA: report operations that wait for the device, outside logging, validation and the first
    steps."""


class Debug(Component):
    """Switches the tools on when training starts, and off when it ends."""

    name = "debug"

    def __init__(
        self,
        cfg: DebugConfig,
        world: World,
    ) -> None:
        self.cfg = cfg
        self.device = world.device
        self.on_exit = ExitStack()

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        if self.cfg.synchronization != "off" and self.device.type != "cuda":
            why = f"only CUDA reports it, and this run is on {self.device}: use off"
            self.cfg.refuse("synchronization", why)
        if self.cfg.gradcheck and "fsdp" in enabled:
            why = "debug.gradcheck needs whole weights, which fsdp divides"
            raise UserError(f"{why}: set fsdp.enabled=false")
        if self.cfg.nan:
            self._check_nan(cfg.speed, enabled)

    def on_train_start(self, run: Run) -> None:
        if self.cfg.nan:
            for hook in find_nan(run.model):
                self.on_exit.callback(hook.remove)
        if self.cfg.anomaly:
            self.on_exit.enter_context(torch.autograd.set_detect_anomaly(True))
        if self.cfg.deterministic:
            # cuBLAS: "Results reproducibility"
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            cudnn: Any = torch.backends.cudnn
            self.on_exit.callback(setattr, cudnn, "benchmark", cudnn.benchmark)
            cudnn.benchmark = False
            before = torch.are_deterministic_algorithms_enabled()
            self.on_exit.callback(torch.use_deterministic_algorithms, before)
            torch.use_deterministic_algorithms(True)

    def wrap_step(
        self,
        run: Run,
        step: Step,
    ) -> Step:
        warm_step = run.step + WARMUP
        is_checked = not self.cfg.gradcheck

        def checked(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            nonlocal is_checked
            if not is_checked:
                gradcheck(run.model, batch)
                is_checked = True
                if run.world.rank == 0:
                    print("debug.gradcheck: the gradients agree with finite differences")
            if self.cfg.nan:
                map_tensors(lambda part: _check(part, "a tensor of the batch"), batch)
            if self.cfg.synchronization != "off" and run.step >= warm_step:
                torch.cuda.set_sync_debug_mode(self.cfg.synchronization)
            return step.compute_gradients(batch, is_first, is_last)

        return step._replace(compute_gradients=checked)

    def on_step_end(self, run: Run) -> None:
        if self.cfg.synchronization != "off":
            torch.cuda.set_sync_debug_mode("default")

    def on_train_end(self, run: Run) -> None:
        self.on_step_end(run)
        self.on_exit.close()

    def _check_nan(
        self,
        speed: SpeedConfig,
        enabled: Collection[str],
    ) -> None:
        if speed.compile != "off":
            self.cfg.refuse("nan", "compiled code has no modules: set speed.compile=off")
        if "regional_compile" in enabled:
            compiler = "regional_compile.enabled=false"
            self.cfg.refuse("nan", f"compiled code has no modules: set {compiler}")
        if precision.name_of(speed, self.device) == "fp16":
            why = "with fp16, gradients that overflow are normal"
            self.cfg.refuse("nan", f"{why}: set speed.precision=fp32")


def find_nan(model: nn.Module) -> list[Any]:
    """Check the output of each module, the innermost first, and its gradient; return the hooks."""
    hooks = []
    for name, module in model.named_modules():
        place = f"{name or 'the model'} ({type(module).__name__})"
        hooks.append(module.register_forward_hook(partial(_check_output, place)))
    return hooks


def _check_output(
    place: str,
    module: nn.Module,
    inputs: Any,
    output: Any,
) -> None:
    for part in output if isinstance(output, tuple | list) else [output]:
        if isinstance(part, Tensor):
            _check(part, f"the output of {place}")
            if part.requires_grad:
                part.register_hook(partial(_check, what=f"the gradient of the output of {place}"))


def _check(value: Tensor | None, what: str) -> None:
    if value is not None and value.is_floating_point() and not value.isfinite().all():
        kind = "NaN" if value.isnan().any() else "infinity"
        raise UserError(f"debug.nan: {what} is the first with {kind}")


def gradcheck(model: nn.Module, batch: Any) -> None:
    """Compare the gradient of each parameter with finite differences of the loss of two samples.

    Along one random direction per parameter, because torch's `gradcheck` of a parameter would
    compute losses for each of its elements.

    Raises:
        UserError: a gradient is wrong.
    """
    generator = torch.Generator().manual_seed(0)
    # no dropout, and BatchNorm's running statistics
    net = copy.deepcopy(model).to("cpu", torch.float64).eval()
    two_samples = map_tensors(_first_two, batch)
    weights = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    for weight in weights.values():  # away from initial zeros, where a ReLU has no derivative
        weight.data += 0.02 * _direction(weight, generator)
    loss = _loss(net, two_samples)
    gradients = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        direction = _direction(weight, generator)
        slope = (gradient * direction).sum().item()
        expected = _slope(net, two_samples, weight, direction)
        if not math.isclose(slope, expected, rel_tol=1e-3, abs_tol=1e-5):
            slopes = f"{slope:.6g} along a direction, where finite differences give {expected:.6g}"
            raise UserError(
                f"debug.gradcheck: the gradient of {name} is wrong ({slopes}): "
                "check the code that uses it"
            )


def _first_two(part: Tensor) -> Tensor:
    two = part[:2].cpu()
    return two.double() if part.is_floating_point() else two


def _direction(weight: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


@torch.no_grad()
def _slope(
    net: nn.Module,
    batch: Any,
    weight: Tensor,
    direction: Tensor,
) -> float:
    """Return the central difference of the loss."""
    width = 1e-8  # a larger one would cross more kinks of ReLUs
    original = weight.clone()
    weight.copy_(original + width * direction)
    above = _loss(net, batch)
    weight.copy_(original - width * direction)
    below = _loss(net, batch)
    weight.copy_(original)
    return (above - below).item() / (2 * width)


def _loss(net: nn.Module, batch: Any) -> Tensor:
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same noise each time
        torch.set_default_dtype(torch.float64)  # of tensors that the model creates
        try:
            return compute_loss(net, batch)[0]
        finally:
            torch.set_default_dtype(before)
