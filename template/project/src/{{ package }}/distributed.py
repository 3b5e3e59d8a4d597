"""Processes and devices: this rank, collectives over all ranks, DDP, and the random numbers of a batch."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .config import DistConfig
from .errors import Stopped, UserError


@dataclass(frozen=True)
class World:
    """The processes of this run, and this one's rank."""

    rank: int
    world_size: int
    device: torch.device
    owns_process: bool = True
    """Whether the process is there for this run only, and may end with it; not so in a notebook."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and logs."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: str) -> str:
        """Return rank 0's value on every rank."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]


@contextmanager
def start(device: str = "auto", owns_process: bool = True) -> Iterator[World]:
    """Initialize the process group of a launcher's processes, with the device's backend, if any; destroy it at the end.

    One that exists already is used, and kept.

    Raises:
        UserError: the device is not available, there are more processes than GPUs, or they do not find each other.
    """
    rank, local_rank, world_size = 0, 0, 1
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    if any(os.environ.get(name, value) != value for name, value in alone.items()):
        from . import launched

        rank, local_rank, world_size = launched.ranks()
    place = _device(device, local_rank)
    if place.index is not None:
        torch.accelerator.set_device_index(place)
    if world_size == 1:
        yield World(rank, world_size, place, owns_process)
        return
    joined = dist.is_initialized()
    if not joined:
        launched.join(place, rank, world_size)
    try:
        yield World(rank, world_size, place, owns_process)
    except Stopped:
        dist.barrier()
        if not owns_process and not joined:
            dist.destroy_process_group()
        raise
    dist.barrier()  # no rank exits before rank 0 has saved
    if not joined:
        dist.destroy_process_group()  # not after an error: it would wait for ranks that wait for this one


def _device(wanted: str, local_rank: int) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = accelerator.type if accelerator else "cpu"
    if torch.version.cuda and wanted != "cpu":
        from . import cuda

        cuda.check(local_rank)
    kind = found if wanted == "auto" or (wanted == "accelerator" and accelerator) else wanted
    if kind not in ("cpu", found):
        fix = "install a build of torch for your GPU (pytorch.org/get-started/locally)"
        fix = cuda.missing() if torch.version.cuda and wanted in ("accelerator", "cuda") else fix
        found = f"run.device is {wanted}, but torch {torch.__version__} finds no such device"
        raise UserError(f"{found}: {fix}, or use cpu")
    if kind == "cpu" or kind == "mps":
        return torch.device(kind)
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise UserError(
            f"process {local_rank} has no GPU, as this machine has {count}: start one per GPU (PROCESSES={count})"
        )
    return torch.device(kind, local_rank)


def describe(world: World) -> str:
    """Return what the run is on, such as `cpu, 2 threads` or `NVIDIA H200, 8 ranks`."""
    name, threads = device_name(world.device), torch.get_num_threads()
    if name == "cpu":
        name = f"cpu, {threads} thread{'s' * (threads > 1)}"
    return f"{name}, {world.world_size} ranks" if world.world_size > 1 else name


def device_name(device: torch.device) -> str:
    """Return the name of a GPU; its kind if torch knows none, as of Apple's."""
    get_name = getattr(torch.get_device_module(device), "get_device_name", lambda device: device.type)
    return str(get_name(device))


def has_streams(device: torch.device) -> bool:
    """Whether the device copies and computes on streams, asynchronously: GPUs but Apple's."""
    return device.type not in ("cpu", "mps") and hasattr(torch.get_device_module(device), "Stream")


def wrap(model: nn.Module, cfg: DistConfig, world: World) -> nn.Module:
    """Wrap the model in DistributedDataParallel; on one rank and under FSDP return it as it is."""
    if world.world_size == 1 or cfg.strategy == "fsdp":
        return model
    ids = None if world.device.index is None else [world.device.index]
    return DistributedDataParallel(model, device_ids=ids, **ddp_options(cfg, model))


def ddp_options(cfg: DistConfig, model: nn.Module) -> dict[str, Any]:
    """Return the arguments of DistributedDataParallel. Buffers are made equal by `techniques.sync_buffers`."""
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # in newer torch
    buffers = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    unused = {"find_unused_parameters": True} if hasattr(model, "phases") else {}
    return {**buffers, **unused, "gradient_as_bucket_view": True, "static_graph": cfg.static_graph}


GradientSync = Callable[[bool], AbstractContextManager[None]]


def gradient_sync(net: nn.Module) -> GradientSync:
    """Return a function that makes the context of a forward and backward pass: all-reduce the gradients, or not.

    The gradients of all but the last of the accumulated micro-batches are only summed on this rank.
    """
    no_op = nullcontext()
    if isinstance(net, DistributedDataParallel):
        return lambda synchronize: no_op if synchronize else net.no_sync()
    return lambda synchronize: no_op


def end(world: World) -> None:
    """Exit a rank that is done, without Python's teardown, in which gloo's threads sometimes abort (torch 2.13)."""
    if world.world_size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def seeded_generator(device: torch.device, seed: int, step: int, index: int) -> torch.Generator:
    """Return the device's default generator, seeded for one micro-batch of the run.

    `index` counts the micro-batches of a step over all ranks. So augmentation and dropout do not depend on the number
    of ranks, and a resumed run needs no RNG state.
    """
    number = ((seed * 1_000_003 + step) * 65_537 + index) % 2**63
    if device.type == "cpu":
        return torch.default_generator.manual_seed(number)
    if device.index is not None:
        default: torch.Generator = torch.get_device_module(device).default_generators[device.index]
        return default.manual_seed(number)
    torch.manual_seed(number)  # the default generator of Apple's GPUs is not public
    return torch.Generator(device).manual_seed(number)
