"""The techniques that are off by default, one per module, imported only when their option is on.

Each function here looks at an option and calls its module; with the option off it does the default, or nothing.
"""

import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import checkpoint, data, distributed, loaders, optim, speed
from ..config import Config, DebugConfig, DistConfig, LoaderConfig, OptimConfig, RunConfig
from ..contracts import Batch, Data, in_memory, map_tensors, no_compile_reason, tensors
from ..data import DataConfig
from ..distributed import GradientSync, World
from ..errors import Unfrozen
from ..faults.saver import Shards
from ..hooks import Hook
from ..loaders import Batches, Loader
from ..metrics import Meter
from ..model import build
from ..speed import Precision


def start_processes(cfg: RunConfig, argv: list[str] | None) -> None:
    """`run.processes`: start the program with this command line in several processes, and exit when they have ended.

    Raises:
        UserError: there are fewer GPUs, or the config comes from a pipe.
    """
    if cfg.processes is not None:
        from . import processes

        processes.start(cfg, argv)


def processes_to_start(cfg: RunConfig) -> int:
    """`run.processes`: how many processes a program would start; 1 for those that a launcher has started.

    Raises:
        UserError: there are fewer GPUs.
    """
    if cfg.processes is None or "RANK" in os.environ:
        return 1
    from . import processes

    return processes.count(cfg)


def load(cfg: DataConfig) -> Data:
    """Load the data, with samples collated into batches where a dataset does not return whole ones.

    Raises:
        UserError: they cannot be loaded or collated, or a stream cannot be read exactly once.
    """
    loaded: Data = data.load(cfg)
    for split in (loaded.train, loaded.val):
        whole = hasattr(split, "__getitems__") and hasattr(split, "__len__")
        first = split.__getitems__([0]) if whole and len(split) else None
        if not whole or (len(split) and not (isinstance(first, tuple) and tensors(first))):
            from . import datasets

            return datasets.adapted(loaded)
    return loaded


def worker_count(cfg: LoaderConfig, data: Data, world: World) -> int:
    """Return the loader processes per rank; at most one reads a stream, which `load` has made of what is iterated over.

    Raises:
        UserError: there are too few cores, or a stream cannot be read so.
    """
    workers = loaders.worker_count(cfg, in_memory(data), world.device)
    splits = [split for split in (data.train, data.val) if getattr(split, "sequential", False)]
    if not splits:
        return workers
    from . import stream

    return stream.check_readers(splits, cfg, workers, world)


def check(cfg: Config, accumulate: int, precision: Precision, world: World) -> None:
    """Refuse options that conflict with each other.

    Raises:
        UserError: names one and the way out.
    """
    if cfg.dist.static_graph and accumulate > 1:
        cfg.dist.refuse("static_graph", f"DDP does not support it with accumulation ({accumulate}); set it to false")
    fused = cfg.optim.fused and cfg.optim.name in ("adamw", "sgd")
    synchronizing = {
        "fp16 without a fused optimizer": precision.format == "fp16" and not fused,
        "fp16 with train.ema": precision.format == "fp16" and cfg.train.ema is not None,
        "dist.sync_batchnorm": cfg.dist.sync_batchnorm and world.world_size > 1,
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

    return [DebugTools(cfg, world, model, batch, steps)]


def build_model(cfg: Config, spec: Any, world: World) -> tuple[nn.Module, nn.Module]:
    """Return the model with its initial values, and the model to train: on the device, one and the same.

    For `dist.strategy=fsdp`, the first is on rank 0's CPU, and the second on the meta device until `change_model`
    shards it.

    Raises:
        UserError: it does not fit into memory.
    """
    try:
        if cfg.dist.strategy == "ddp":
            model = speed.place(_built(cfg, spec), cfg.speed, world.device)
            return model, model
        with torch.device("meta"):
            model = _built(cfg, spec)
        return _built(cfg, spec) if world.is_main else model, model
    except (MemoryError, RuntimeError, TypeError) as error:
        from ..model_size import check_memory

        check_memory(cfg.model, error)
        raise


def _built(cfg: Config, spec: Any) -> nn.Module:
    """`lora.rank`: build the model."""
    model = build(cfg.model, spec)
    if cfg.lora.rank is not None:
        from . import lora

        if cfg.train.freeze:
            cfg.train.refuse("freeze", "lora.rank freezes all but lora.modules_to_save; use that, or lora.rank=null")
        lora.apply(model, cfg.lora)
    return model


def change_model(model: nn.Module, initial: nn.Module, cfg: Config, precision: Precision, world: World) -> nn.Module:
    """Change how the model computes, before the optimizer is created; parameter names stay the same.

    Raises:
        UserError: the model does not support an option, or options conflict.
    """
    reason = no_compile_reason(model)
    if cfg.speed.compile != "off" and reason:
        cfg.speed.refuse("compile", f"{reason}; use off")
    if world.world_size > 1:
        from . import ddp

        if cfg.dist.sync_batchnorm:
            model = ddp.sync_batchnorm(model, cfg.dist, world)
        else:
            ddp.scale_momentum(model, world)
    if cfg.train.freeze and cfg.train.unfreeze_step is None:
        from . import freeze

        freeze.freeze(model, cfg.train)
    if precision.format == "fp8":
        from . import fp8

        fp8.convert(model)
    if cfg.speed.activation_checkpointing != "none":
        from . import activation_checkpointing

        activation_checkpointing.apply(model, cfg.speed)
    if cfg.speed.compile == "blocks":
        from . import compile_blocks

        compile_blocks.apply(model, cfg.speed)
    if cfg.dist.strategy == "fsdp":
        from . import fsdp

        fsdp.shard(model, initial, cfg, precision.format == "bf16", world)
    return model


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
    if cfg.schedule == "onecycle":
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
        from .mfu import Mfu

        with torch.device("meta"):
            empty = build(cfg.model, spec)
        found.append(Mfu(empty, map_tensors(lambda part: part.to("meta"), batch()), world, precision.format))
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


def start_weights(
    cfg: Config, model: nn.Module, hooks: Sequence[Hook], progress: Any, resumed: object
) -> dict[str, str]:
    """`train.init_from` and `train.unfreeze_step`: load the weights of a new run, and freeze those that are frozen now.

    Returns what to say about it.

    Raises:
        UserError: the weights do not fit, or the options do not.
    """
    said: dict[str, str] = {}
    if cfg.train.unfreeze_step is not None:
        from . import freeze

        said = freeze.begin(model, cfg, progress.step, progress.total_steps)
    if cfg.train.init_from is not None and not resumed:
        from . import init_from

        said = init_from.load(model, hooks) | said
    return said


def unfreeze_step(cfg: Config, step: int) -> int | None:
    """Return `train.unfreeze_step` if it is still to come."""
    end = cfg.train.unfreeze_step
    return end if end is not None and step < end else None


def unfreezing(train: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
    """`train.unfreeze_step`: let `train` resume the run there, as what it is made of depends on what is trained."""

    @wraps(train)
    def train_and_resume(cfg: Config, world: World, hooks: Iterable[Hook] = ()) -> dict[str, float]:
        hooks = tuple(hooks)
        while True:
            try:
                return train(cfg, world, hooks)
            except Unfrozen as ended:
                cfg = replace(cfg, run=replace(cfg.run, resume=str(ended)))
            gc.collect()  # frees the memory of what was frozen

    return train_and_resume


def fine_tuning(cfg: Config) -> dict[str, Any]:
    """Return the options that are set of those that decide which weights a run starts from, and trains."""
    keys = ("init_from", "init_map", "freeze", "unfreeze_step")
    found = {f"train.{key}": value for key in keys if (value := getattr(cfg.train, key))}
    return found | ({"lora": asdict(cfg.lora)} if cfg.lora.rank is not None else {})


def plain_weights(weights: Mapping[str, Tensor], cfg: Config) -> dict[str, Tensor]:
    """`lora.rank`: return the weights of a checkpoint as those of the model without LoRA."""
    if cfg.lora.rank is None:
        return dict(weights)
    from . import lora

    return lora.merge(weights, cfg.lora)


def cache_on_device(loader: Loader, cfg: DataConfig) -> Batches:
    """`data.cache=device`: keep all samples of a loader on the device.

    Raises:
        UserError: they do not fit into its memory.
    """
    if getattr(cfg, "cache", "none") != "device":
        return loader
    from .device_cache import DeviceCache

    return DeviceCache(loader)


def compress_gradients(net: nn.Module, cfg: DistConfig, world: World) -> None:
    """`dist.bf16_gradients`: all-reduce the gradients of a DistributedDataParallel in bf16."""
    if cfg.bf16_gradients and world.world_size > 1:
        from . import ddp

        ddp.compress_gradients(net)


def sync_buffers(model: nn.Module, world: World) -> None:
    """Make the buffers of all ranks equal before they are used or saved, those of BatchNorm by combining them."""
    if world.world_size > 1:
        from . import ddp

        ddp.sync_buffers(model, world)


def gradient_sync(net: nn.Module, cfg: DistConfig) -> GradientSync:
    """`dist.strategy`: the context that decides whether a backward pass reduces gradients over the ranks."""
    if cfg.strategy == "ddp":
        return distributed.gradient_sync(net)
    from . import fsdp

    return fsdp.gradient_sync(net)


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


def find_checkpoint(path: Path, cfg: DistConfig, world: World) -> str:
    """Return on rank 0 the newest good checkpoint, empty for none; with `dist.strategy=fsdp` all ranks check it."""
    if cfg.strategy == "fsdp":
        from . import fsdp

        return fsdp.find_checkpoint(path, world)
    return str(checkpoint.find(path) or "") if world.is_main else ""


def read_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, cfg: DistConfig) -> dict[str, Any]:
    """Load a checkpoint's state; for `dist.strategy=fsdp`, this rank's part of it."""
    if cfg.strategy == "ddp":
        return checkpoint.read_state(path)
    from . import fsdp

    return fsdp.read_state(path, model, optimizer)


def shards(cfg: DistConfig, world: World, threaded: bool) -> Shards | None:
    """`dist.strategy=fsdp`: what writes each rank's shards into a checkpoint, in a thread or not."""
    if cfg.strategy == "ddp":
        return None
    from . import fsdp

    return fsdp.Shards(world, threaded)
