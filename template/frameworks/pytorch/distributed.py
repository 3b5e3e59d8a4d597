"""Ranks, their devices, DistributedDataParallel, and the random numbers of a batch."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from traceback import clear_frames
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .errors import Stopped, UserError, all_ranks, launched_rank

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of this run, and this one's rank."""

    rank: int
    size: int
    device: torch.device

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place.

        A CPU tensor goes through gloo and does not wait for the GPU.
        """
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def mean(self, value: Tensor | float) -> Tensor | float:
        """Return the mean over all ranks, on the device; with one rank, the value itself.

        A rank may have a number where another one has a tensor.
        """
        if self.size == 1:
            return value
        own = torch.zeros((), device=self.device, dtype=torch.float32)
        own += value
        return self.all_reduce(own) / self.size

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(
                values,
                src=0,
                device=torch.device("cpu"),
            )
        return values[0]

    def run_on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0 while the others wait, and return its result on every rank.

        Its UserError or OSError is a UserError on every rank.
        """
        result: Any = None
        problem = ""
        if self.rank == 0:
            try:
                result = action()
            except (UserError, OSError) as error:
                problem = str(error) or repr(error)
        result, problem = self.broadcast((result, problem))
        if problem:
            raise UserError(problem)
        value: T = result
        return value


def find_device(wanted: str, local_rank: int = 0) -> torch.device:
    """Return the device for `run.device`; raise a UserError if there is no such device."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    available = accelerator.type if accelerator else "cpu"
    kind = wanted
    if wanted == "auto" or (wanted == "accelerator" and accelerator):
        kind = available
    if kind not in ("cpu", available):
        missing = f"run.device is {wanted}, but torch finds no such device"
        raise UserError(f"{missing}: install a build for it, or use cpu")
    if kind in ("cpu", "mps"):
        return torch.device(kind)
    if local_rank >= torch.accelerator.device_count():
        missing = f"process {local_rank} of this machine has no GPU"
        raise UserError(f"{missing}: start one process per GPU")
    return torch.device(kind, local_rank)


@contextmanager
def init(wanted_device: str) -> Iterator[World]:
    """Choose the device, and join the process group if torchrun started several processes."""
    rank, size, local_rank = launched_rank()
    device = find_device(wanted_device, local_rank)
    if device.index is not None:
        torch.accelerator.set_device_index(device)
    world = World(rank, size, device)
    if size == 1:
        yield world
        return
    _join(world)
    stopped: Stopped | None = None
    try:
        yield world
    except Stopped as error:
        stopped = error
        clear_frames(error.__traceback__)
    dist.barrier()  # the ranks' store ends with rank 0
    # DistributedDataParallel has to end before the group: as the last owner of the group, it would
    # wait for the group's threads, which may wait for Python's lock. A compiled one is in a cycle.
    gc.unfreeze()
    gc.collect()
    # after another error, this line is not reached: it would wait for ranks that wait for this one
    dist.destroy_process_group()
    if stopped:
        raise stopped


def _join(world: World) -> None:
    """Join the process group."""
    # first: its default arguments would keep the group's threads
    import_module("torch.distributed.nn.functional")
    # not the default backends, whose barrier uses a GPU if there is one
    backend = "gloo"
    gpu = None
    if world.device.index is not None:
        # with `device_id` alone, there would be no backend for tensors on the CPU
        gpu = world.device
        backend = f"cpu:gloo,{gpu.type}:{dist.get_default_backend_for_device(gpu)}"
    with all_ranks(world.rank, world.size) as store:
        dist.init_process_group(
            backend,
            store=store,
            rank=world.rank,
            world_size=world.size,
            device_id=gpu,
        )
    dist.barrier()  # so that an error of one rank does not meet another one that still connects


class Parallel(NamedTuple):
    """The model as each rank calls it."""

    net: nn.Module
    no_sync: Callable[[], AbstractContextManager[Any]]
    """The context of a backward pass that does not all-reduce the gradients."""


def data_parallel(model: nn.Module, world: World, channels_last: bool, **options: Any) -> Parallel:
    """Move the model to the device, and wrap it into DistributedDataParallel on several ranks."""
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.to(world.device)
    if world.size == 1:
        return Parallel(model, nullcontext)
    device_ids = None if world.device.index is None else [world.device.index]
    net = DistributedDataParallel(
        model,
        device_ids=device_ids,
        gradient_as_bucket_view=True,
        **options,
    )
    return Parallel(net, net.no_sync)


def seed_batch(
    world: World,
    seed: int,
    step: int,
    micro: int,
) -> torch.Generator:
    """Seed the device's default generator for one micro-batch, and return it.

    So augmentation and dropout do not depend on the number of ranks, and a resumed run needs no RNG
    state.
    """
    number = ((seed * 1_000_003 + step) * 65_537 + micro * world.size + world.rank) % 2**63
    device = world.device
    on_cpu = torch.default_generator.manual_seed(number)
    if device.type == "cpu":
        return on_cpu
    if device.index is None:  # mps, whose default generator is not public
        torch.manual_seed(number)
        return torch.Generator(device).manual_seed(number)
    generators = torch.get_device_module(device).default_generators
    default: torch.Generator = generators[device.index]
    return default.manual_seed(number)
