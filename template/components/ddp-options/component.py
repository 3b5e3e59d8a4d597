"""Options of DistributedDataParallel: synchronized BatchNorm, static graph, bf16 gradients."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..distributed import Parallel, World, data_parallel
from ..precision import use_channels_last


@dataclass(frozen=True)
class DdpOptionsConfig(Section):
    """Options of DistributedDataParallel; without effect in one process."""

    enabled: bool = False
    """Use these options."""
    sync_batchnorm: bool = False
    """Normalize by the statistics of all ranks' micro-batches, on GPUs."""
    static_graph: bool = False
    """Tell DDP that every step uses the same parameters in the same order."""
    bf16_gradients: bool = False
    """All-reduce gradients in bf16: half the bytes, less precise."""


class DdpOptions(Component):
    """Wraps the model into DistributedDataParallel as train.py does, with these options."""

    name = "ddp_options"
    conflicts = ("fsdp",)

    def __init__(self, cfg: DdpOptionsConfig, world: World) -> None:
        self.cfg = cfg
        self.world = world

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        if self.world.size == 1:
            return
        device = self.world.device
        if self.cfg.sync_batchnorm and device.type not in ("cuda", "xpu"):
            where = f"torch synchronizes BatchNorm on GPUs only, not on the {device}"
            self.cfg.refuse("sync_batchnorm", where)
        micro_batches = cfg.train.accumulation_steps(self.world.size)
        if self.cfg.static_graph and micro_batches > 1:
            why = f"DDP does not support it with steps of {micro_batches} micro-batches"
            self.cfg.refuse("static_graph", f"{why}: set train.gradient_accumulation_steps=1")

    def parallelize(self, model: nn.Module, cfg: BaseConfig, world: World) -> Parallel:
        if world.size == 1:
            return super().parallelize(model, cfg, world)
        if self.cfg.sync_batchnorm:
            # in place; `evaluate` has the BatchNorm of the same names
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        parallel = data_parallel(
            model,
            world,
            use_channels_last(cfg.speed, world.device),
            static_graph=self.cfg.static_graph,
        )
        if self.cfg.bf16_gradients:
            net: Any = parallel.net
            net.register_comm_hook(None, _all_reduce_in_bf16)
        return parallel


def _all_reduce_in_bf16(
    group: dist.ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's annotations leave it out
) -> torch.futures.Future[Tensor]:
    """Call torch's hook, which DDP refuses by its name where it knows of no support, as of gloo."""
    return bf16_compress_hook(group, bucket)  # type: ignore[arg-type]
