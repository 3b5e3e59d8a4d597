"""Gives each rank CPU cores of its own: `run.cpu_affinity`.

The operating system else moves ranks between cores and sockets, away from their memory and caches. Neighbors of a rank
get neighboring cores: hardware threads of a core stay together, and so do cores of a socket.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..config import RunConfig
from ..distributed import World

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/"


@contextmanager
def bound(cfg: RunConfig, world: World) -> Iterator[dict[str, str]]:
    """Run this process, and what it starts, on this rank's share of the cores; afterwards on those of before.

    Ranks that have other cores than their neighbors keep them: a scheduler, or whoever started them, has divided them.

    Raises:
        UserError: there are fewer cores than ranks.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield {"CPU cores": "not divided, as this system cannot"}
        return
    before = sorted(os.sched_getaffinity(0))
    found: list[Any] = [None] * world.world_size
    dist.all_gather_object(found, (socket.gethostname(), before))
    here = [rank for rank, (host, _) in enumerate(found) if host == socket.gethostname()]
    if any(found[rank][1] != before for rank in here):
        yield {"CPU cores": "as divided by what has started the ranks"}
        return
    if len(before) < len(here):
        cfg.refuse("cpu_affinity", f"the {len(here)} ranks here have {len(before)} cores; set it to false")
    own = share(before, here.index(world.rank), len(here))
    _bind(own)
    try:
        yield {"CPU cores": f"{len(own)} of {len(before)} for this rank"}
    finally:
        _bind(before)


def share(cores: Sequence[int], index: int, ranks: int) -> list[int]:
    """Return the part of these cores of one of several ranks."""
    ordered = sorted(cores, key=lambda core: (_read(core, "physical_package_id"), _read(core, "core_id"), core))
    return ordered[len(cores) * index // ranks : len(cores) * (index + 1) // ranks]


def _read(core: int, name: str) -> int:
    """Return a number of a core's topology; 0 where the system does not tell it."""
    try:
        return int((Path(TOPOLOGY.format(core)) / name).read_text())
    except (OSError, ValueError):
        return 0


def _bind(cores: Sequence[int]) -> None:
    """Set the cores of all threads of this process; those that start later inherit them."""
    threads = Path("/proc/self/task")
    for thread in [int(entry.name) for entry in threads.iterdir()] if threads.is_dir() else [0]:
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, cores)
