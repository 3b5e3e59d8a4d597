"""Processes and devices: who this rank is, what the ranks share, and the noise that belongs to a batch."""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .config import DistConfig
from .errors import UserError


@dataclass(frozen=True)
class World:
    """All processes of this run, and this one's place among them."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this rank is the one that writes files and talks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor up over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def share(self, value: str) -> str:
        """Give every rank the main rank's value."""
        box = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


@contextmanager
def start(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started (NCCL between GPUs, else gloo), or stand alone; leave them at the end.

    Raises:
        UserError: the device is not there, or more processes were started than it has GPUs.
    """
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, local_rank)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if world_size == 1:
        yield World(rank, world_size, place)
        return
    if place.type == "mps":
        raise UserError("several processes cannot share an Apple GPU: start one, or use run.device=cpu")
    cuda = place.type == "cuda"
    dist.init_process_group("nccl" if cuda else "gloo", device_id=place if cuda else None)
    yield World(rank, world_size, place)
    dist.barrier()  # a rank that is done leaves no sooner than the one that saves
    dist.destroy_process_group()  # not after an error: the other ranks would be waited for, who wait for this one


def _device(wanted: str, local_rank: int) -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = accelerator.type if accelerator else "cpu"
    kind = found if wanted == "auto" else wanted
    if kind not in ("cpu", found):
        raise UserError(f"run.device is {wanted}, but torch {torch.__version__} sees none here: use auto or cpu")
    if kind == "cpu" or kind == "mps":
        return torch.device(kind)
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise UserError(f"process {local_rank} has no GPU, as there are {count} here: start at most {count} processes")
    return torch.device(kind, local_rank)


def wrap(model: nn.Module, cfg: DistConfig, world: World) -> nn.Module:
    """Average gradients over the ranks during backward; on one rank and under FSDP, which does it, the model itself."""
    if world.world_size == 1 or cfg.strategy == "fsdp":
        return model
    ids = [world.device.index] if world.device.type == "cuda" else None
    net = DistributedDataParallel(model, device_ids=ids, **ddp_options(cfg))
    if cfg.bf16_gradients:
        from .techniques import ddp

        ddp.send_in_bf16(net)
    return net


def ddp_options(cfg: DistConfig) -> dict[str, Any]:
    """What DistributedDataParallel is made with. `share_buffers` does it where it counts, and not in every step."""
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # in newer torch
    buffers = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return {**buffers, "gradient_as_bucket_view": True, "static_graph": cfg.static_graph}


def share_buffers(model: nn.Module, world: World) -> None:
    """Give every rank the main rank's buffers, such as BatchNorm's statistics, before they are used or saved."""
    if world.world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def end(world: World) -> None:
    """End a rank whose work is done, without Python's teardown, in which gloo's threads at times abort one (2.13)."""
    if world.world_size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def leave(message: str) -> NoReturn:
    """End this process with a line on stderr and status 1; beside other ranks at once, without waiting for them."""
    if not dist.is_initialized():
        sys.exit(message)
    print(message, file=sys.stderr, flush=True)
    os._exit(1)


def reducing(net: nn.Module, reduce: bool) -> AbstractContextManager[None]:
    """Context of a forward and backward pass whose gradients are averaged over the ranks, or only added up here."""
    if (sync_gradients := getattr(net, "set_requires_gradient_sync", None)) is not None:  # FSDP
        sync_gradients(reduce)
    if reduce or not isinstance(net, DistributedDataParallel):
        return nullcontext()
    context: AbstractContextManager[None] = net.no_sync()
    return context


def noise(device: torch.device, seed: int, step: int, chunk: int) -> torch.Generator:
    """Return the device's default generator, seeded for one micro-batch of the run.

    `chunk` numbers the micro-batches of a step over all ranks. So augmentation and dropout are the same however many
    ranks share the work, and a resumed run needs no generator's state.
    """
    number = ((seed * 1_000_003 + step) * 65_537 + chunk) % 2**63
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index].manual_seed(number)
    if device.type == "cpu":
        return torch.default_generator.manual_seed(number)
    torch.manual_seed(number)  # no handle on the other devices' default generators is public
    return torch.Generator(device).manual_seed(number)
