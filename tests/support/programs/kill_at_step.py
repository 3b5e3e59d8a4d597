"""Train a package, and end the process by SIGKILL at the start of a step.

kill_at_step.py STEP PACKAGE RUNS.

RUNS is a JSON list of lists of options. Each run is a fork of this process, which imports what all
of them need. torch.compile traces, and runs the graphs in eager mode: no code is generated.
"""

import importlib
import json
import os
import signal
import sys
from functools import partial
from typing import Any
from unittest import mock

import torch

step, package, runs = sys.argv[1:]
distributed = importlib.import_module(f"{package}.distributed")
train = importlib.import_module(f"{package}.train")
seed_batch = distributed.seed_batch
compiled = partial(torch.compile, backend="eager")
torch.compile = lambda call, **_: compiled(call, dynamic=False)  # type: ignore[assignment]


def kill_or_seed(
    world: Any,
    seed: int,
    number: int,
    micro: int,
) -> Any:
    """Seed the batch of any other step."""
    if number == int(step):
        os.kill(os.getpid(), signal.SIGKILL)
    return seed_batch(world, seed, number, micro)


for options in json.loads(runs):
    process = os.fork()
    if process == 0:
        sys.argv = ["train", *options]
        with mock.patch.object(distributed, "seed_batch", kill_or_seed):
            train.main()
        os._exit(0)
    status = os.waitpid(process, 0)[1]
    if not os.WIFSIGNALED(status):
        sys.exit(f"the run was not killed: {options}")
