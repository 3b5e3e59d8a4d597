"""Train a package, and send a signal to the last rank in a step.

signal_at_step.py SIGNAL STEP PACKAGE OPTIONS.

With the variable DELAY, so many seconds later. DistributedDataParallel ends before its group does.
"""

import importlib
import os
import sys
import threading
import weakref
from typing import Any
from unittest import mock

number, step, package, *options = sys.argv[1:]
sys.argv = ["train", *options]
distributed = importlib.import_module(f"{package}.distributed")
seed_batch = distributed.seed_batch
data_parallel = distributed.data_parallel
destroy_process_group = distributed.dist.destroy_process_group
nets: list[weakref.ref[Any]] = []


def signal_and_seed(
    world: Any,
    seed: int,
    current: int,
    micro: int,
) -> Any:
    """Seed the batch."""
    if (current, world.rank) == (int(step), world.size - 1):
        if "DELAY" in os.environ:
            threading.Timer(float(os.environ["DELAY"]), os.kill, (os.getpid(), int(number))).start()
        else:
            os.kill(os.getpid(), int(number))
    return seed_batch(world, seed, current, micro)


def remember(*args: Any, **options: Any) -> Any:
    """Return the parallel model."""
    parallel = data_parallel(*args, **options)
    vars(parallel.net)["compiled"] = parallel.net  # refers to itself, as after net.compile()
    nets.append(weakref.ref(parallel.net))
    return parallel


def destroy() -> None:
    """Destroy the process group, if it has no other owner."""
    assert [net() for net in nets] == [None]
    destroy_process_group()


with (
    mock.patch.object(distributed, "seed_batch", signal_and_seed),
    mock.patch.object(distributed, "data_parallel", remember),
    mock.patch.object(distributed.dist, "destroy_process_group", destroy),
):
    importlib.import_module(f"{package}.train").main()
