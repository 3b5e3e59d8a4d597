"""Copies of a state in host memory, which a thread can write while the steps change the state itself."""

import copy
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..distributed import World, has_streams

CGROUP = Path("/sys/fs/cgroup")


class HostCopy:
    """Copies states into the same memory each time, which is pinned for a GPU, so that the host waits for no copy."""

    def __init__(self, world: World) -> None:
        self.device, self.pin = world.device, has_streams(world.device)
        self.memory: dict[object, Tensor] = {}
        self.used: dict[object, Tensor] = {}
        """Memory of the state before, and of the present one: by number, shape, strides and type of the tensor."""
        self.copies: dict[object, Tensor] = {}
        """Those of the present state, by the address of the original."""
        self.copied: Any = None
        self.too_large = False

    @torch.no_grad()
    def __call__(self, state: tuple[Any, ...], ranks: int = 1) -> tuple[Any, ...] | None:
        """Return a copy, which is complete after `finish`; None if those of so many ranks do not fit into memory."""
        if not self.memory and not self.too_large:
            self.too_large = not _fits(state, ranks)
        if self.too_large:
            return None
        self.used = {}
        self.copies = {}
        copied: tuple[Any, ...] = self._copy(state)
        self.memory = self.used
        if self.pin:
            self.copied = torch.Event(self.device)
            self.copied.record()
        return copied

    def finish(self) -> None:
        """Wait until the device has made the copies."""
        while self.copied is not None and not self.copied.query():  # `synchronize` keeps a core busy
            time.sleep(0.001)

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._copy_tensor(value.detach())
        if isinstance(value, dict):
            copied = copy.copy(value)  # with the attributes of a `state_dict`
            for key in copied:
                copied[key] = self._copy(value[key])
            return copied
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        return copy.deepcopy(value)

    def _copy_tensor(self, value: Tensor) -> Tensor:
        """Copy a tensor; only once if it is there under several names, as tied weights are."""
        if type(value) is not Tensor or value.layout != torch.strided:
            return value.to("cpu", copy=True)
        form = (value.shape, value.stride(), value.dtype)
        address = (value.device, value.data_ptr(), *form)
        if address not in self.copies:
            place = (len(self.copies), *form)
            host = self.memory.get(place)
            self.used[place] = torch.empty_like(value, device="cpu", pin_memory=self.pin) if host is None else host
            self.copies[address] = self.used[place].copy_(value, non_blocking=self.pin)
        return self.copies[address]


def _fits(state: object, ranks: int) -> bool:
    """Whether a copy of the state by each rank takes at most half of the free memory; warn if not."""
    size = sum(_sizes(state)) * ranks
    free = free_memory()
    if 2 * size > free:
        form = f"{size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of memory are free"
        warnings.warn(f"training waits for each checkpoint, as a copy of its state takes {form}", stacklevel=2)
    return 2 * size <= free


def _sizes(value: Any) -> Iterator[int]:
    if isinstance(value, Tensor):
        yield value.numel() * value.element_size()
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _sizes(item)


def free_memory() -> float:
    """Return the bytes of memory that are available, to the container if it has a limit; infinity if not known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return float("inf")
    try:
        limit, used, stat = ((CGROUP / f"memory.{name}").read_text("ascii") for name in ("max", "current", "stat"))
        cached = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("file "))
        return min(free, int(limit) - int(used) + cached)
    except (OSError, ValueError, StopIteration):  # no container, or without a limit
        return free
