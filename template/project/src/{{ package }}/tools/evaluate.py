"""Evaluate a trained model on the validation split, and write the results to its checkpoint folder.

Give the folder of a run, for its newest checkpoint, or one checkpoint; on one or several ranks:

    python -m <package>.tools.evaluate runs/first
    torchrun --nproc-per-node 2 -m <package>.tools.evaluate runs/first/checkpoints/step-00000120

The first bytes of each window of text have little context; `--stride 32` evaluates overlapping windows, and counts only
the last 32 tokens of each.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from .. import distributed, loaders, techniques
from ..config import LoaderConfig
from ..console import shown
from ..contracts import Batch, can_predict
from ..distributed import World
from ..errors import UserError
from ..failure import leave
from ..metrics import evaluate
from .atomic_file import atomic_write
from .optional import fitting, has, take
from .trained_model import TrainedModel, open_trained, parser, require_predict


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation."""

    metrics: dict[str, float]
    details: dict[str, Any]
    """Results specific to the task, such as a confusion matrix."""
    table: str
    """The details as text."""
    batch: Batch | None
    """The first prepared batch of this rank, to plot; None if there are no details."""


def measure(trained: TrainedModel, world: World, stride: int | None = None) -> Evaluation:
    """Run over the validation samples, once for the metrics and once for the details.

    With a `stride`, for text, run once over overlapping windows; the metrics are then among the details.
    """
    samples = techniques.load(trained.cfg.data)
    val: Any = samples.val
    details: Any = None
    metrics: dict[str, float] = {}
    if stride is not None:
        overlapping = take("task", "overlapping")  # for text: windows, and their metrics
        val, details = overlapping(val, require_predict(trained).spec, world.device, stride)
    order = loaders.EvalOrder(len(val), trained.cfg.train.micro_batch, world.rank, world.world_size)
    cfg = LoaderConfig()  # as the evaluation does not depend on how the run loaded its data
    workers = techniques.worker_count(cfg, samples, world)
    batches = loaders.Loader(val, order, cfg, workers, world)
    if stride is None:
        metrics = evaluate(trained.net, batches, trained.prepare, trained.precision.autocast(), world, order.counted)
    if not can_predict(trained.net):
        return Evaluation(metrics, {}, "no details and no plot, because the model has no `predict`\n", None)
    try:
        values, table, first = _details(trained, islice(batches, order.counted), world, details)
    except UserError as error:
        return Evaluation(metrics, {}, f"no details and no plot: {error}\n", None)
    return Evaluation(metrics, values, table, first)


@torch.inference_mode()
def _details(
    trained: TrainedModel, batches: Iterable[Batch], world: World, details: Any
) -> tuple[dict[str, Any], str, Batch | None]:
    """Return the details of these batches of all ranks as values and as text, and the first prepared batch.

    Raises:
        UserError: the task's `Details` do not fit the data or the model, on this rank or on another.
    """
    problem, first = "", None
    generator = distributed.seeded_generator(world.device, 0, 0, 0)
    try:
        make = take("task", "Details")
        with fitting("task", "Details"):
            details = details or make(trained.spec, world.device)
            for batch in batches:
                prepared: Any = trained.prepare(batch, False, generator)
                with trained.precision.autocast():
                    details.add(trained.net, prepared)
                first = prepared if first is None else first
    except UserError as error:
        problem = str(error)
    # All ranks must agree, because they wait for each other in `result`.
    if world.all_reduce(torch.full((), float(bool(problem)), device=world.device)).item():
        raise UserError(problem or "those of another rank failed")
    with fitting("task", "Details"):
        values, table = details.result(world)
    return values, table, first


def main(argv: list[str] | None = None) -> None:
    """Read the command line, evaluate, print a table, and write `evaluation.json` and `evaluation.png`."""
    options = parser("evaluate", "Evaluate a trained model on the validation split.")
    options.set_defaults(stride=None)
    if has("task", "overlapping"):
        about = "begin a window every N tokens and count only its last N tokens, so that each has more context"
        options.add_argument("--stride", type=int, metavar="N", help=about)
    args = options.parse_args(argv)
    try:
        with distributed.start(args.device) as world:
            trained = open_trained(args.path, world.device, args.precision)
            found = measure(trained, world, args.stride)
            if world.is_main:
                for name, value in found.metrics.items():
                    print(f"{name:16}{value:.6g}")
                print(found.table, end="")
                write({**found.metrics, **found.details}, trained.checkpoint / "evaluation.json")
                plotted = found.batch is not None and draw(trained, found.batch, trained.checkpoint / "evaluation.png")
                print(f"evaluation.json{' and evaluation.png' * plotted} in {shown(trained.checkpoint)}")
        distributed.end(world)
    except UserError as error:
        leave(error)


def draw(trained: TrainedModel, batch: Any, target: Path) -> bool:
    """Plot the model's predictions for some validation samples; return whether the task's `plot` could.

    Raises:
        UserError: the checkpoint folder is not writable.
    """
    try:
        plot = take("task", "plot")
        with fitting("task", "plot"), torch.inference_mode():
            figure = plot(trained, batch)
    except UserError as error:
        print(f"no plot: {error}")
        return False
    with atomic_write(target, "free some space") as file:
        figure.savefig(file, dpi=120)
    return True


def write(results: dict[str, Any], target: Path) -> None:
    """Write the results as JSON.

    Raises:
        UserError: the checkpoint folder is not writable.
    """
    with atomic_write(target, "the metrics are printed above") as file:
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
