"""Options of a step: the optimizer, its schedule, what acts between steps, and what is captured."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import optim
from ..config import Config, DebugConfig, OptimConfig
from ..contracts import Batch
from ..distributed import World
from ..hooks import Hook
from ..metrics import Meter
from ..speed import Precision


def check(cfg: Config, accumulate: int, precision: Precision, world: World) -> None:
    """Refuse options that conflict with each other.

    Raises:
        UserError: names one and the way out.
    """
    if cfg.dist.static_graph and accumulate > 1:
        cfg.dist.refuse("static_graph", f"DDP does not support it with accumulation ({accumulate}); set it to false")
    fused = cfg.optim.fused and cfg.optim.name in ("adamw", "adam", "sgd")
    synchronizing = {
        "fp16 without a fused optimizer": precision.format == "fp16" and not fused,
        "fp16 with train.ema": precision.format == "fp16" and cfg.train.ema is not None,
        "dist.sync_batchnorm": cfg.dist.sync_batchnorm and world.world_size > 1,
        f"train.on_nonfinite={cfg.train.on_nonfinite}": cfg.train.on_nonfinite != "stop",
        "debug.nan": cfg.debug.nan,
        "debug.anomaly": cfg.debug.anomaly,
    }
    for option, on in synchronizing.items():
        if on and cfg.debug.sync == "error":
            cfg.debug.refuse("sync", f"{option} synchronizes in every step; use warn or off")
    if cfg.debug.nan and precision.format == "fp16":
        cfg.debug.refuse("nan", "fp16 overflows regularly; use speed.precision=bf16 or fp32")
    captures = cfg.speed.compile != "off" and cfg.speed.compile_mode in ("reduce-overhead", "max-autotune")
    if captures and world.device.type == "cuda":
        if cfg.speed.compile == "blocks":
            cfg.speed.refuse("compile_mode", "blocks overwrite each other's CUDA graphs; use speed.compile=model")
        if accumulate > 1 or not cfg.optim.set_to_none:
            cfg.speed.refuse("compile_mode", "its CUDA graphs own the gradients; use no accumulation, and set_to_none")
    if cfg.speed.step_graph:
        from . import step_graph

        step_graph.check(cfg, world, precision.format)
    if cfg.lora.rank is not None and precision.format == "fp8":
        cfg.lora.refuse("rank", "it does not go with speed.precision=fp8; use bf16, or null")


def debug_hooks(cfg: Config, world: World, model: nn.Module, batch: Callable[[], Batch], steps: int) -> list[Hook]:
    """`debug.*`: the debugging tools; `batch` returns a prepared batch to try the model on."""
    if cfg.debug == DebugConfig():
        return []
    from .debug import DebugTools

    found: list[Hook] = [DebugTools(cfg, world, model, batch)]
    if cfg.debug.profile:
        from .profiler import Profiler

        found.append(Profiler(cfg.debug, world, steps))
    return found


def build_optimizer(model: nn.Module, cfg: OptimConfig) -> torch.optim.Optimizer:
    """`optim.name`: create the optimizer.

    Raises:
        UserError: its package is not installed, or the model has no parameters that it applies to, or a wrong
            `lr_scale`; or a parameter group has a learning rate of its own.
    """
    if cfg.name == "adamw":
        optimizer = optim.adamw(model, cfg)
    else:
        from . import optimizers

        optimizer = optimizers.build(model, cfg)
    if hasattr(model, "lr_scale") or any(group["lr"] != cfg.lr for group in optimizer.param_groups):
        from . import lr_scale

        lr_scale.split(optimizer, model, cfg.lr)
    return optimizer


def describe_optimizer(optimizer: torch.optim.Optimizer, name: str) -> str:
    """`optim.name`, as the first lines of a run say it."""
    if name == "adamw":
        return name
    from . import optimizers

    return optimizers.describe(optimizer, name)


def build_schedule(cfg: OptimConfig, peak_lr: float, total_steps: int) -> optim.Schedule:
    """`optim.schedule`: learning rate and momentum by optimizer step."""
    if cfg.schedule == "onecycle" and cfg.anneal_strategy == "cos" and not cfg.three_phase:
        return partial(optim.onecycle, cfg, peak_lr, total_steps)
    from . import schedules

    return partial(schedules.schedule, cfg, peak_lr, total_steps)


def hooks(
    cfg: Config,
    model: nn.Module,
    spec: Any,
    batch: Callable[[], Batch],
    precision: Precision,
    world: World,
    total_steps: int,
    peak_lr: float,
) -> list[Hook]:
    """`log.mfu`, `train.ema`, `train.init_from`, `optim.schedule=range`, `phases` of a model: what acts between steps.

    Raises:
        UserError: the run is too short for a range test, or the phases do not fit the model or an option.
    """
    found: list[Hook] = []
    if hasattr(model, "phases"):
        from .phases import Phases

        found.append(Phases(cfg, model))
    elif cfg.log.mfu is True or (cfg.log.mfu == "auto" and world.device.type != "cpu"):
        from . import mfu

        found += mfu.hooks(cfg, spec, batch(), world, precision.format)
    if cfg.train.ema is not None:
        from .ema import Ema

        found.append(Ema(model, cfg.train.ema, world))
    if cfg.train.init_from is not None:
        from .init_from import InitFrom

        found.append(InitFrom(cfg.train, world))
    if cfg.optim.schedule == "range":
        from .lr_range import MIN_STEPS, RangeTest

        if total_steps < MIN_STEPS:
            few = f"a range test needs at least {MIN_STEPS} steps, and the run has {total_steps}; raise train.steps"
            cfg.optim.refuse("schedule", few)
        found.append(RangeTest(peak_lr / cfg.optim.lr))
    return found


def capture_step(
    forward_backward: Callable[[Batch, bool], None],
    update: Callable[[], Tensor],
    cfg: Config,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
) -> tuple[Callable[[Batch, bool], None], Callable[[], Tensor]]:
    """`speed.step_graph`: both halves of a step, captured at the first micro-batch and replayed from then on."""
    if not cfg.speed.step_graph:
        return forward_backward, update
    from .step_graph import StepGraph

    graph = StepGraph(forward_backward, model, optimizer, cfg.optim, meter)
    return graph.forward_backward, graph.update


def skipped_steps(scaler: torch.amp.GradScaler) -> int:
    """`speed.precision=fp16`: the steps that the scaler has skipped; waits until the device has made the last one."""
    if not scaler.is_enabled():
        return 0
    from ..grad_scaler import CountingScaler

    assert isinstance(scaler, CountingScaler)
    return scaler.skipped_steps()
