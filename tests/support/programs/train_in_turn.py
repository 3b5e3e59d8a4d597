"""Train a rendered project several times in one process or per rank, and note the samples: RUNS.

RUNS is a JSON list of command lines. A validation has 16 micro-batches at most, over all ranks.
"""

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("distributed", "config", "train", "loaders")]
distributed, config, train, loaders = modules
eval_order, train_order = loaders.EvalOrder, loaders.TrainOrder.__iter__
seen: list[list[int]] = []
"""The indices of all micro-batches that were trained on."""


def short(samples: int, micro_batch: int, *place: int) -> Any:
    """Return the order of a short validation."""
    return eval_order(min(samples, 16 * micro_batch), micro_batch, *place)


def noting(self: Any) -> Iterator[list[int]]:
    """Iterate over the training order, and note what it yields."""
    for indices in train_order(self):
        seen.append(indices)
        yield indices


loaders.EvalOrder = short
loaders.TrainOrder.__iter__ = noting
parser = config.make_parser("test", "")
with distributed.start("cpu") as world:
    for options in json.loads(sys.argv[1]):
        cfg = config.read(parser, options)
        train.train(cfg, world)
        (cfg.run.dir / str(cfg.run.name) / f"seen-{world.rank}").write_text(json.dumps(seen))
        seen.clear()
distributed.end(world)
