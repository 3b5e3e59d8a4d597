"""Measure a trained model on the held-out samples, and write what comes out beside its checkpoint.

Start it on a run's newest checkpoint, or on a certain one, also on several ranks:

    python -m <package>.tools.evaluate runs/first
    torchrun --nproc-per-node 2 -m <package>.tools.evaluate runs/first/checkpoints/step-00000120
"""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from .. import data, distributed, loaders
from ..config import LoaderConfig
from ..distributed import World
from ..errors import UserError, in_one_line
from ..metrics import evaluate
from .atomic_file import whole
from .task import Details, picture
from .trained_model import Trained, open_trained, parser


@dataclass(frozen=True)
class Measured:
    """What came out."""

    metrics: dict[str, float]
    details: dict[str, Any]
    """What the task adds, a confusion matrix, say."""
    table: str
    """The same to read."""
    batch: Any
    """The first batch of this rank, prepared; None where the model says nothing but its metrics."""


def measure(trained: Trained, world: World) -> Measured:
    """Go over the held-out samples, once for the metrics and once for the details."""
    cfg = trained.cfg
    samples = data.load(cfg.data)
    order = loaders.EvalOrder(len(samples.val), cfg.train.micro_batch, world.rank, world.world_size)
    workers = loaders.worker_count(LoaderConfig(), samples.in_memory)
    batches = loaders.Loader(samples.val, order, LoaderConfig(), workers, world, cfg.run.seed)
    metrics = evaluate(trained.net, batches, trained.prepare, trained.precision.autocast(), world, order.counted)
    if not hasattr(trained.net, "predict"):  # a model.py of one's own need not have it
        return Measured(metrics, {}, "no details and no picture, as model.py has no `predict`\n", None)
    details, first = Details(trained.spec, world.device), None
    generator = distributed.seeded_generator(world.device, 0, 0, 0)
    with torch.inference_mode():
        for batch in islice(batches, order.counted):
            prepared: Any = trained.prepare(batch, False, generator)
            with trained.precision.autocast():
                details.add(trained.net, prepared)
            first = first or prepared
        values, table = details.result(world)
    assert first is not None
    return Measured(metrics, values, table, first)


def main(argv: list[str] | None = None) -> None:
    """Read the command line, measure, print a table, write `evaluation.json` and draw `evaluation.png`."""
    args = parser("evaluate", "Measure a trained model.").parse_args(argv)
    try:
        with distributed.start(args.device) as world:
            trained = open_trained(args.path, world.device, args.precision)
            found = measure(trained, world)
            if world.is_main:
                for name, value in found.metrics.items():
                    print(f"{name:16}{value:.6g}")
                print(found.table, end="")
                write({**found.metrics, **found.details}, trained.checkpoint / "evaluation.json")
                if found.batch is not None:
                    draw(trained, found.batch, trained.checkpoint / "evaluation.png")
        distributed.end(world)
    except UserError as error:
        distributed.leave(in_one_line(error))


def draw(trained: Trained, batch: Any, target: Path) -> None:
    """Draw the model's answers on some held-out samples.

    Raises:
        UserError: the checkpoint's folder cannot be written.
    """
    with torch.inference_mode():
        figure = picture(trained, batch)
    with whole(target, "free some space") as file:
        figure.savefig(file, dpi=120)


def write(results: dict[str, Any], target: Path) -> None:
    """Write the metrics as JSON.

    Raises:
        UserError: the checkpoint's folder cannot be written.
    """
    with whole(target, "the metrics are those above") as file:
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
