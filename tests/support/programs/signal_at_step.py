"""Train a package, and send a signal to the last rank in a step.

signal_at_step.py SIGNAL STEP PACKAGE OPTIONS.

With the variable DELAY, so many seconds later.
"""

import importlib
import os
import sys
import threading
from typing import Any
from unittest import mock

number, step, package, *options = sys.argv[1:]
sys.argv = ["train", *options]
distributed = importlib.import_module(f"{package}.distributed")
seed_batch = distributed.seed_batch


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


with mock.patch.object(distributed, "seed_batch", signal_and_seed):
    importlib.import_module(f"{package}.train").main()
