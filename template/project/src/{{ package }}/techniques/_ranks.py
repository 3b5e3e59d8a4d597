"""Options of several processes: how they start, what they exchange, and who saves what."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint, distributed
from ..config import DistConfig, RunConfig
from ..distributed import GradientSync, World
from ..faults.saver import Shards


def start_processes(cfg: RunConfig, argv: list[str] | None) -> None:
    """`run.processes`: start the program with this command line in several processes, and exit when they have ended.

    Raises:
        UserError: there are fewer GPUs, or the config comes from a pipe.
    """
    if cfg.processes is not None:
        from . import processes

        processes.start(cfg, argv)


def own_cores(cfg: RunConfig, world: World) -> AbstractContextManager[dict[str, str]]:
    """`run.cpu_affinity`: context in which this rank has CPU cores of its own; with what to say about it.

    Raises:
        UserError: there are fewer cores than ranks.
    """
    if not cfg.cpu_affinity or world.world_size == 1:
        return nullcontext({})
    from . import cpu_affinity

    return cpu_affinity.bound(cfg, world)


def processes_to_start(cfg: RunConfig) -> int:
    """`run.processes`: how many processes a program would start; 1 for those that a launcher has started.

    Raises:
        UserError: there are fewer GPUs.
    """
    if cfg.processes is None or "RANK" in os.environ:
        return 1
    from . import processes

    return processes.count(cfg)


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
