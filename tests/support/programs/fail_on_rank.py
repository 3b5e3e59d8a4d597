"""Train a package in which a rank fails: fail_on_rank.py PLACE RANK PACKAGE OPTIONS."""

import importlib
import os
import sys
from typing import Any

place, rank, package, *options = sys.argv[1:]
sys.argv = ["train", *options]
train: Any = importlib.import_module(f"{package}.train")
errors = importlib.import_module(f"{package}.errors")
seed_batch = train.distributed.seed_batch


def fail(*_: Any, **__: Any) -> Any:
    """Fail with an error that the user can fix."""
    raise errors.UserError("this is wrong: correct it")


def fail_at(step: int) -> Any:
    """Return a `seed_batch` that fails at a step of the training."""

    def seed_or_fail(
        world: Any,
        seed: int,
        current: int,
        micro: int,
    ) -> Any:
        return fail() if current == step else seed_batch(world, seed, current, micro)

    return seed_or_fail


if os.environ["RANK"] == rank:
    if place == "start":
        sys.exit(0)
    elif place == "config":
        train.build_components = fail
    elif place == "data":
        train.data.load = fail
    elif place == "step":
        train.distributed.seed_batch = fail_at(int(os.environ["FAIL_AT_STEP"]))
    elif place == "validation":
        train.evaluate = fail
    elif place == "crash":
        train.evaluate = lambda *_, **__: os.kill(os.getpid(), 9)
train.main()
