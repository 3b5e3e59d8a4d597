"""Several ranks: buffers, and the options `dist.bf16_gradients` and `dist.sync_batchnorm`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.modules.batchnorm import _BatchNorm

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


def sync_buffers(model: nn.Module, world: World) -> None:
    """Make the buffers of all ranks equal, before they are used or saved.

    BatchNorm's running statistics become those of the batches of all ranks: the mean of the means, and by the law of
    total variance the mean of the variances plus the variance of the means. Other buffers become rank 0's. Buffers
    that are equal already do not change.
    """
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm) and norm.running_mean is not None]
    means, variances = ([getattr(norm, f"running_{name}") for norm in norms] for name in ("mean", "var"))
    own = [torch.cat(values) for values in (means, variances) if values]
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    if own:
        mean, variance = torch.cat(means), torch.cat(variances)
        mean += world.all_reduce(own[0] - mean) / world.world_size
        variance += world.all_reduce(own[1] - variance + (own[0] - mean) ** 2) / world.world_size
        sizes = [len(value) for value in means]
        torch._foreach_copy_([*means, *variances], [*mean.split(sizes), *variance.split(sizes)])


def scale_momentum(model: nn.Module, world: World) -> None:
    """Let an update of BatchNorm's running statistics count as many as one process makes for all ranks' micro-batches.

    After n updates with momentum m, a share (1 - m)^n of the value before is left.
    """
    for norm in model.modules():
        if isinstance(norm, _BatchNorm) and norm.momentum is not None:
            norm.momentum = 1 - (1 - norm.momentum) ** world.world_size


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
