"""Options of DistributedDataParallel: `dist.bf16_gradients` and `dist.sync_batchnorm`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ..config import DistConfig
from ..distributed import World


def compress_gradients(ddp: Any) -> None:
    """All-reduce the gradients of a DistributedDataParallel in bf16, which halves the communication."""
    ddp.register_comm_hook(None, _bf16_hook)


def _bf16_hook(
    group: dist.ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's annotations leave it out
) -> torch.futures.Future[Tensor]:
    """Call torch's hook under another name, as torch refuses it by name on gloo, where it works."""
    return default_hooks.bf16_compress_hook(group, bucket)  # type: ignore[arg-type]


def sync_batchnorm(model: nn.Module, cfg: DistConfig, world: World) -> nn.Module:
    """Convert BatchNorm to SyncBatchNorm.

    Raises:
        UserError: the ranks are not on GPUs.
    """
    if world.device.type not in ("cuda", "xpu"):
        cfg.refuse(
            "sync_batchnorm", f"torch supports it only on GPUs, and this run is on {world.device}; set it to false"
        )
    synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return synced
