"""Train a package, and end this process by SIGKILL at the start of a step: kill_at_step.py STEP PACKAGE OPTIONS."""

import importlib
import os
import signal
import sys
from typing import Any
from unittest import mock

step, package, *options = sys.argv[1:]
sys.argv = ["train", *options]
distributed = importlib.import_module(f"{package}.distributed")
seed_batch = distributed.seed_batch


def kill_or_seed(world: Any, seed: int, number: int, micro: int) -> Any:
    """Seed the batch of any other step."""
    if number == int(step):
        os.kill(os.getpid(), signal.SIGKILL)
    return seed_batch(world, seed, number, micro)


with mock.patch.object(distributed, "seed_batch", kill_or_seed):
    importlib.import_module(f"{package}.train").main()
