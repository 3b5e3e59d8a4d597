"""The Accelerator of a run: its device, precision, sample order and trackers."""

import logging
import os
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedType,
    GradientAccumulationPlugin,
)

from .config import Config
from .errors import UserError, all_ranks, launched_rank


def join(device: str) -> None:
    """Join the other processes of this run, on the device for `run.device`."""
    rank, size, _ = launched_rank()
    if device == "cpu":
        # A barrier of Accelerate looks for the GPU with the number of the process.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    has_accelerator = torch.accelerator.is_available()
    if device == "accelerator" and not has_accelerator:
        raise UserError("run.device is accelerator, but torch finds none: use cpu")
    # first: its default arguments would keep the group's threads
    import_module("torch.distributed.nn.functional")
    joins = size > 1 and not dist.is_initialized()
    with all_ranks(rank, size) if joins else nullcontext():
        PartialState(cpu=device == "cpu" or not has_accelerator)
    # It warns of shared weights in each save, although `load_model` restores them.
    logging.getLogger("accelerate").setLevel(logging.ERROR)


def create(
    cfg: Config,
    folder: Path | None = None,
    *trackers: Any,
) -> Accelerator:
    """Return the Accelerator, after `join`, with these trackers and that of the config.

    Its sample order follows from the seed and the epoch, and is the same on any number of
    processes.
    """
    wanted = [*trackers]
    if trackers and cfg.accelerate.tracker:
        wanted.append(cfg.accelerate.tracker)
    order = DataLoaderConfiguration(
        use_seedable_sampler=True,
        data_seed=cfg.run.seed,
        even_batches=False,  # it would repeat validation samples
        non_blocking=True,
    )
    # Accelerate would prefer a variable of the environment to a plain number.
    accumulation = GradientAccumulationPlugin(num_steps=cfg.train.gradient_accumulation_steps)
    try:
        accelerator = Accelerator(
            cpu=PartialState().device.type == "cpu",
            mixed_precision=mixed_precision(cfg),
            gradient_accumulation_plugin=accumulation,
            dataloader_config=order,
            log_with=wanted or None,
            project_dir=folder,
        )
    except ValueError as error:  # such as a precision or a tracker that Accelerate does not know
        raise UserError(str(error)) from None
    if len(accelerator.log_with) < len(wanted):
        cfg.accelerate.refuse("tracker", "its package is not installed")
    if accelerator.distributed_type == DistributedType.FSDP:
        # It would untie shared weights, and saves no memory, as each process builds the model.
        accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = False
    is_fp32 = accelerator.mixed_precision == "no" and cfg.speed.precision != "tf32"
    torch.set_float32_matmul_precision("highest" if is_fp32 else "high")
    torch.backends.cudnn.allow_tf32 = not is_fp32
    torch.backends.cudnn.benchmark = cfg.speed.cudnn_benchmark
    return accelerator


def mixed_precision(cfg: Config) -> str:
    """Return `mixed_precision` for `speed.precision`.

    For auto, it is that of `accelerate launch`, or without a launcher what the GPU has units for.
    """
    precision = cfg.speed.precision
    device = PartialState().device.type
    if precision in ("fp16", "tf32") and device == "cpu":
        cfg.speed.refuse("precision", "only GPUs have it: use bf16 or fp32")
    if precision != "auto":
        return "no" if precision in ("fp32", "tf32") else precision
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION")
    if launched or device != "cuda":
        return launched or "no"
    generation, _ = torch.cuda.get_device_capability()
    return {7: "fp16"}.get(generation, "bf16" if generation > 7 else "no")
