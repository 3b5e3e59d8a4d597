"""Train an Accelerate project on the CPU with the gradient scaler of fp16; the gradients of two steps overflow."""

import importlib
import sys
from typing import Any

modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("config", "distributed", "run", "train")]
config, distributed, run, train = modules
before_update = run.Run.before_update


def overflow(self: Any) -> None:
    """Make the gradients infinite in steps 1 and 4."""
    before_update(self)
    if self.progress.step in (0, 3):
        for parameter in self.parts.model.parameters():
            parameter.grad.fill_(float("inf"))


train.UNSUPPORTED_ON_CPU = {}
run.Run.before_update = overflow
with distributed.start("cpu") as world:
    train.train(config.parse("test", "", sys.argv[1:]), world)
