"""Measure a trained model on the held-out samples, and write what comes out beside its checkpoint.

Start it on a run's newest checkpoint, or on a certain one, also on several ranks:

    python -m <package>.tools.evaluate runs/first
    torchrun --nproc-per-node 2 -m <package>.tools.evaluate runs/first/checkpoints/step-00000120
"""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from .. import data, distributed, loaders
from ..config import LoaderConfig
from ..distributed import World
from ..errors import UserError, in_one_line
from ..metrics import evaluate
from .task import Details
from .trained import Trained, open_trained, parser


def measure(trained: Trained, world: World) -> tuple[dict[str, float], dict[str, Any], str]:
    """Return the held-out metrics, the task's details (a confusion matrix, say), and these as a table to read."""
    cfg = trained.cfg
    samples = data.load(cfg.data)
    order = loaders.EvalOrder(len(samples.val), cfg.train.micro_batch, world.rank, world.world_size)
    cached = "none" if cfg.data.cache == "device" else cfg.data.cache
    plainly = replace(cfg, loader=LoaderConfig(), data=replace(cfg.data, cache=cached))
    batches = loaders.open_loader(samples.val, order, plainly, samples.in_memory, world)
    metrics = evaluate(trained.net, batches, trained.prepare, trained.precision.autocast(), world, order.own)
    details = Details(trained.spec, world.device)
    generator = distributed.noise(world.device, 0, 0, 0)
    with torch.inference_mode():
        for batch in islice(batches, order.own):
            with trained.precision.autocast():
                details.add(trained.net, trained.prepare(batch, False, generator))
        values, table = details.result(world)
    return metrics, values, table


def main(argv: list[str] | None = None) -> None:
    """Read the command line, measure, print a table and write `evaluation.json`."""
    args = parser("evaluate", "Measure a trained model.").parse_args(argv)
    try:
        with distributed.start(args.device) as world:
            trained = open_trained(args.path, world.device, args.precision)
            metrics, details, table = measure(trained, world)
            if world.is_main:
                for name, value in metrics.items():
                    print(f"{name:16}{value:.6g}")
                print(table, end="")
                write({**metrics, **details}, trained.checkpoint / "evaluation.json")
    except UserError as error:
        distributed.leave(in_one_line(error))


def write(results: dict[str, Any], target: Path) -> None:
    """Write the metrics as JSON.

    Raises:
        UserError: the checkpoint's folder cannot be written.
    """
    try:
        target.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror}): the metrics are those above") from error


if __name__ == "__main__":
    main()
