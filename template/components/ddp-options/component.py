"""Options of DistributedDataParallel: synchronized BatchNorm, a static graph, gradients all-reduced in bf16."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..distributed import World
from ..errors import UserError
from ..log import Run


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

    def __init__(self, cfg: DdpOptionsConfig, world: World) -> None:
        self.cfg, self.world = cfg, world

    def parallelize(self, model: nn.Module, cfg: BaseConfig) -> nn.Module | None:
        if self.world.size == 1:
            return None
        if getattr(getattr(cfg, "fsdp", None), "enabled", False):
            raise UserError(
                "ddp_options.enabled and fsdp.enabled exclude each other: set one of them to false"
            )
        device = self.world.device
        if self.cfg.sync_batchnorm:
            if device.type not in ("cuda", "xpu"):
                self.cfg.refuse(
                    "sync_batchnorm",
                    f"torch synchronizes BatchNorm on GPUs only, not on the {device}",
                )
            # in place; `evaluate` has the BatchNorm of the same names
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if cfg.speed.channels_last is True or (
            cfg.speed.channels_last == "auto" and device.type == "cuda"
        ):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model = model.to(device)
        ids = None if device.index is None else [device.index]
        static = self.cfg.static_graph
        net = DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=True, static_graph=static
        )
        if self.cfg.bf16_gradients:
            net.register_comm_hook(None, _all_reduce_in_bf16)
        return net

    def on_train_start(self, run: Run) -> None:
        if self.cfg.static_graph and self.world.size > 1 and run.plan.accumulate > 1:
            steps = f"steps of {run.plan.accumulate} micro-batches"
            self.cfg.refuse(
                "static_graph", f"DDP does not support it with {steps}: set train.accumulate=1"
            )


def _all_reduce_in_bf16(
    group: dist.ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's annotations leave it out
) -> torch.futures.Future[Tensor]:
    """Call torch's hook, which DDP refuses by its name where it does not know of support, such as with gloo."""
    return bf16_compress_hook(group, bucket)  # type: ignore[arg-type]
