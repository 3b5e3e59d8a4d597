"""What few need of DistributedDataParallel: `dist.bf16_gradients` and `dist.sync_batchnorm`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ..config import DistConfig
from ..distributed import World


def send_in_bf16(ddp: Any) -> None:
    """Let a DistributedDataParallel average gradients in bf16: half the bytes between the ranks."""
    ddp.register_comm_hook(None, _in_bf16)


def _in_bf16(
    group: dist.ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch's annotations leave it out
) -> torch.futures.Future[Tensor]:
    """Hook of torch, under a name of ours: under its own, torch refuses it on gloo, which does it well."""
    return default_hooks.bf16_compress_hook(group, bucket)  # type: ignore[arg-type]


def sync_batchnorm(model: nn.Module, cfg: DistConfig, world: World) -> nn.Module:
    """Let BatchNorm normalise by the batch of all ranks.

    Raises:
        UserError: the ranks are not on GPUs.
    """
    if world.device.type != "cuda":
        cfg.refuse("sync_batchnorm", f"torch has it on GPUs alone, and this run is on {world.device}; switch it off")
    synced: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return synced
