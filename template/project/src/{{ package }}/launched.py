"""What a launcher such as torchrun sets in the environment: this process's rank, and where the ranks meet."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .errors import UserError

stores: Any = dist
"""The same module: it does not export its stores for type checkers."""

RESOLVE = 10
"""Seconds in which the name of rank 0's machine must become known."""
CONNECT = 30
"""Seconds in which rank 0 must reach itself at MASTER_ADDR."""
JOIN = 600
"""Seconds to wait for the other ranks."""
NOTICE = 15
"""Seconds after which a rank says that it waits."""


def ranks() -> tuple[int, int, int]:
    """Return RANK, LOCAL_RANK and WORLD_SIZE, which are 0, 0 and 1 where they are not set.

    Raises:
        UserError: one is not a number, is missing, or does not fit the others.
    """
    world_size = _number("WORLD_SIZE", 1)
    if world_size > 1:
        _require("RANK")
    size = f"as WORLD_SIZE is {world_size if 'WORLD_SIZE' in os.environ else 'not set'}"
    rank, local_rank = (_number(name, 0, world_size - 1, size) for name in ("RANK", "LOCAL_RANK"))
    here = _number("LOCAL_WORLD_SIZE", 1, world_size, size)
    if "LOCAL_WORLD_SIZE" in os.environ:
        _number("LOCAL_RANK", 0, here - 1, f"as LOCAL_WORLD_SIZE is {here}")
    return rank, local_rank, world_size


def _number(name: str, least: int, most: int = sys.maxsize, reason: str = "") -> int:
    """Return a variable's value, `least` where it is not set."""
    text = os.environ.get(name, str(least)).strip()
    if text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    interval = f"an integer from {least}" + (f" to {most}" if most < sys.maxsize else "")
    expected = ", ".join(filter(None, [str(least) if least == most else interval, reason]))
    raise UserError(f"the environment has {name}={text}: it must be {expected}; {_way_out()}")


def _require(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        size = os.environ["WORLD_SIZE"]
        raise UserError(f"the environment has WORLD_SIZE={size} and no {name}: {_way_out()}")
    return value


def _way_out() -> str:
    """Say how the variables get right; srun sets others than torchrun."""
    start = "start it with torchrun, or unset RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE"
    srun = ", or for srun set RANK=$SLURM_PROCID and LOCAL_RANK=$SLURM_LOCALID"
    return start + srun * ("SLURM_PROCID" in os.environ)


def join(place: torch.device, rank: int, world_size: int) -> None:
    """Initialize the process group, with the device's backend.

    Raises:
        UserError: MASTER_ADDR or MASTER_PORT is wrong, the other ranks do not come, or the device cannot be shared.
    """
    if place.type == "mps":
        raise UserError("several processes cannot share an Apple GPU: start one, or use run.device=cpu")
    address, _ = _require("MASTER_ADDR"), _require("MASTER_PORT")
    port = _number("MASTER_PORT", 1, 65535)
    backend, bound = dist.get_default_backend_for_device(place), None if place.type == "cpu" else place
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's ranks have met already
        dist.init_process_group(backend, device_id=bound)
        return
    _resolve(address, port)
    try:
        store = _store(address, port, rank, world_size)
    except dist.DistError as error:
        why = " ".join(str(error).split())
        raise UserError(f"{_meet(address, port, rank, world_size)} failed ({why}): {_advice(why)}") from error
    dist.init_process_group(
        backend, store=stores.PrefixStore("default_pg", store), rank=rank, world_size=world_size, device_id=bound
    )
    dist.barrier()  # rank 0 may end with an error next, and its store with it, which others read until they have joined


def _resolve(address: str, port: int) -> None:
    """Refuse an address that stays unknown; torch would try it for half an hour."""
    end = time.monotonic() + RESOLVE
    while True:
        try:
            socket.getaddrinfo(address, port)
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() > end:
                why = getattr(error, "strerror", None) or error
                raise UserError(f"MASTER_ADDR={address} is not known ({why}): give rank 0's name or address") from error
        time.sleep(1)


def _store(address: str, port: int, rank: int, world_size: int) -> Any:
    """Connect to rank 0's store, and wait for all ranks."""
    held = None
    if rank == 0:  # which also shows whether MASTER_ADDR is this machine's
        limit = timedelta(seconds=CONNECT)
        held = stores.TCPStore(address, port, world_size, True, limit, wait_for_workers=False, multi_tenant=True)
    with _notice(_meet(address, port, rank, world_size)):
        limit = timedelta(seconds=JOIN)
        store = stores.TCPStore(address, port, world_size, rank == 0, limit, multi_tenant=True)
    del held
    store.set_timeout(dist.constants.default_pg_timeout)
    return store


@contextmanager
def _notice(meeting: str) -> Iterator[None]:
    """Say what this rank waits for, if it takes long."""
    timer = threading.Timer(NOTICE, lambda: print(f"{meeting}: still waiting", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _meet(address: str, port: int, rank: int, world_size: int) -> str:
    return f"rank {rank}: the meeting of {world_size} ranks at {address}:{port}"


def _advice(why: str) -> str:
    if "EADDRINUSE" in why or "in use" in why:
        return "the port is in use; give another MASTER_PORT"
    return "start all ranks, and give rank 0's address as MASTER_ADDR and one free port as MASTER_PORT"
