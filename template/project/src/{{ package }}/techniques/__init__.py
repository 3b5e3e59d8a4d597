"""One technique a module, imported only by a run whose switch is on: a run with all of them off is understood without.

Each function here looks at a switch and does nothing, or gives None, where it is off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..config import Config, DebugConfig
from ..data import Spec
from ..distributed import World
from ..loaders import Batch
from ..metrics import Sums
from ..model import build
from ..speed import Precision

if TYPE_CHECKING:
    from .debug import Watch
    from .ema import Ema
    from .lr_range import RangeTest
    from .mfu import Work

ForwardBackward = Callable[[Batch, bool], Sums]
Update = Callable[[], tuple[Tensor, bool]]


def check(cfg: Config, accumulate: int, precision: Precision, world: World) -> None:
    """Refuse switches that contradict each other.

    Raises:
        UserError: names one and its way out.
    """
    if cfg.dist.static_graph and accumulate > 1:
        cfg.dist.refuse("static_graph", f"torch's reducer fails with accumulation ({accumulate}); switch it off")
    waits = precision.format == "fp16" or cfg.optim.name == "lamb" or cfg.debug.nan or cfg.debug.anomaly
    if cfg.debug.sync == "error" and waits:
        cfg.debug.refuse("sync", "fp16, lamb, debug.nan and debug.anomaly wait in every step; use warn, or do without")
    if cfg.debug.nan and precision.format == "fp16":
        cfg.debug.refuse("nan", "fp16 overflows as a matter of course; use speed.precision=bf16 or fp32")
    records = cfg.speed.compile != "off" and cfg.speed.compile_mode in ("reduce-overhead", "max-autotune")
    if records and world.device.type == "cuda":
        if cfg.speed.compile == "blocks":
            cfg.speed.refuse("compile_mode", "blocks overwrite each other's recorded graphs; use speed.compile=model")
        if accumulate > 1 or not cfg.optim.set_to_none:
            cfg.speed.refuse("compile_mode", "its recorded graphs own the gradients; use no accumulation, set_to_none")
    if cfg.speed.step_graph:
        from . import step_graph

        step_graph.check(cfg, world, precision.format)


def rebuild(model: nn.Module, cfg: Config, precision: Precision, world: World) -> nn.Module:
    """Change how the model computes, before the optimizer is made; weights keep their names and values.

    Raises:
        UserError: it has no parts that the switch could act on, or switches contradict each other.
    """
    eager = getattr(model, "eager", "")
    if cfg.speed.compile != "off" and eager:
        cfg.speed.refuse("compile", f"{eager}; use off")
    if cfg.dist.sync_batchnorm and world.world_size > 1:
        from . import ddp

        model = ddp.sync_batchnorm(model, cfg.dist, world)
    if precision.format == "fp8":
        from . import fp8

        fp8.convert(model)
    if cfg.speed.activation_checkpointing != "none":
        from . import recompute

        recompute.apply(model, cfg.speed)
    if cfg.speed.compile == "blocks":
        from . import compile_blocks

        compile_blocks.apply(model, cfg.speed)
    if cfg.dist.strategy == "fsdp":
        from . import fsdp

        fsdp.shard(model, cfg, precision.format == "bf16", world)
    return model


def watch(cfg: Config, world: World, model: nn.Module, batch: Callable[[], Batch], steps: int) -> Watch | None:
    """`debug.*`: instruments around the loop; `batch` gives a prepared one to try the model on."""
    if cfg.debug == DebugConfig():
        return None
    from .debug import Watch

    return Watch(cfg, world, model, batch, steps)


def average(cfg: Config, model: nn.Module) -> Ema | None:
    """`train.ema`: the moving average of the weights."""
    if cfg.train.ema is None:
        return None
    from .ema import Ema

    return Ema(model, cfg.train.ema)


def range_test(cfg: Config, peak: float, steps: int) -> RangeTest | None:
    """`optim.schedule=range`: the sweep that finds a learning rate, instead of a training.

    Raises:
        UserError: the run is too short for one.
    """
    if cfg.optim.schedule != "range":
        return None
    from .lr_range import LEAST, RangeTest

    if steps < LEAST:
        cfg.optim.refuse(
            "schedule", f"a sweep needs {LEAST} steps at least, and the run has {steps}; raise train.steps"
        )
    return RangeTest(peak / cfg.optim.lr)


def work(cfg: Config, spec: Spec, batch: Callable[[], Batch], precision: Precision, world: World) -> Work | None:
    """`log.mfu`: the work that a sample is; `batch` gives a prepared one."""
    if cfg.log.mfu is False or (cfg.log.mfu == "auto" and world.device.type != "cuda"):
        return None
    from .mfu import Work

    with torch.device("meta"):
        empty = build(cfg.model, spec)
    return Work(empty, tuple(part.to("meta") for part in batch()), world, precision.format)


def recorded(
    forward_backward: ForwardBackward,
    update: Update,
    cfg: Config,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> tuple[ForwardBackward, Update]:
    """`speed.step_graph`: the two halves of a step, recorded at the first micro-batch and replayed from then on."""
    if not cfg.speed.step_graph:
        return forward_backward, update
    from .step_graph import StepGraph

    graph = StepGraph(forward_backward, model, optimizer, scaler, cfg.optim)
    return graph.forward_backward, graph.update
