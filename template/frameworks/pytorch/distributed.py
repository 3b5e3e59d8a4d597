"""Ranks, devices, random numbers of a batch, and requests to stop."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import UserError


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

    def broadcast(self, value: str) -> str:
        """Return rank 0's value on every rank."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def on_main(self, action: Callable[[], object]) -> None:
        """Run an action on rank 0 while the other ranks wait; if it fails, every rank raises the error."""
        problem = ""
        try:
            if self.rank == 0:
                action()
        except (UserError, OSError) as error:
            problem = str(error)
        if problem := self.broadcast(problem):
            raise UserError(problem)


def find_device(wanted: str, local_rank: int = 0) -> torch.device:
    """Return the device for `run.device`, or raise a UserError if this machine has no such device for this process."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = accelerator.type if accelerator else "cpu"
    kind = found if wanted == "auto" or (wanted == "accelerator" and accelerator) else wanted
    if kind not in ("cpu", found):
        raise UserError(
            f"run.device is {wanted}, but torch finds no such device: install a build for it, or use cpu"
        )
    if kind in ("cpu", "mps"):
        return torch.device(kind)
    if local_rank >= torch.accelerator.device_count():
        raise UserError(
            f"process {local_rank} of this machine has no GPU: start one process per GPU"
        )
    return torch.device(kind, local_rank)


@contextmanager
def init(wanted_device: str) -> Iterator[World]:
    """Choose the device, and join the process group if torchrun started several processes."""
    rank, local_rank, size = (
        int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    )
    device = find_device(wanted_device, local_rank)
    if device.index is not None:
        torch.accelerator.set_device_index(device)
    if size > 1:
        # first: its default arguments would keep the group's threads
        import_module("torch.distributed.nn.functional")
        dist.init_process_group(device_id=device if device.index is not None else None)
        dist.barrier()  # so that an error of one rank does not meet another one that still connects
    yield World(rank, max(size, 1), device)
    if size > 1:
        # not after an error: it would wait for ranks that wait for this one
        dist.destroy_process_group()


def seed_batch(world: World, seed: int, step: int, micro: int) -> torch.Generator:
    """Seed the device's default generator for one micro-batch, and return it.

    So augmentation and dropout do not depend on the number of ranks, and a resumed run needs no RNG
    state.
    """
    number = ((seed * 1_000_003 + step) * 65_537 + micro * world.size + world.rank) % 2**63
    if world.device.type == "cpu":
        return torch.default_generator.manual_seed(number)
    if world.device.index is None:  # mps, whose default generator is not public
        torch.manual_seed(number)
        return torch.Generator(world.device).manual_seed(number)
    default: torch.Generator = torch.get_device_module(world.device).default_generators[
        world.device.index
    ]
    return default.manual_seed(number)


class StopRequests:
    """Requests to stop, by Ctrl-C, SIGTERM, SIGUSR1 or a time limit.

    In the context, a signal only sets a flag.
    """

    def __init__(self, world: World, hours: float | None = None) -> None:
        self.world = world
        self.asked = False
        self.deadline = time.monotonic() + 3600 * hours if hours else math.inf
        self.handlers: dict[int, Any] = {}

    def agreed(self) -> bool:
        """Return whether to stop now: the same on all ranks, which call it after each step."""
        asked = self.asked or time.monotonic() > self.deadline
        if self.world.size == 1:
            return asked
        return bool(self.world.all_reduce(torch.tensor(float(asked))))

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # other threads cannot handle signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                self.handlers[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _ask(self, *_: object) -> None:
        self.asked = True
