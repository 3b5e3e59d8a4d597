"""Predictions or samples of a trained run: a CSV file, PNG files or text.

The validation set or samples; your own files; or text from a language model:

    python -m <package>.components.predict runs/first
    python -m <package>.components.predict runs/first new.csv more.csv
    python -m <package>.components.predict runs/first --prompt "import "

predict_data.py reads your files, and makes rows of the model's outputs: edit it with data.py.
"""

import argparse
import csv
from collections.abc import Iterator
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import data
from ..contracts import load_batch
from ..errors import UserError, one_line
from ..evaluate import load_run
from . import predict_data


@torch.no_grad()
def predict(options: argparse.Namespace) -> None:
    """Write the predictions of a run's best weights, in fp32."""
    needs_samples = not options.files
    cfg, model, val_set, spec = load_run(options.run, options.device, needs_samples)
    model.eval()
    options.output = options.output or options.run / "predictions"
    prepare = data.Prepare(spec, cfg.data)
    outputs = partial(predict_samples, model, prepare, options.batch)
    try:
        rows = predict_data.predict(options, cfg.data, spec, model, val_set, outputs)
    except AttributeError as error:
        raise UserError(f"components/predict_data.py does not fit data.py: {error}") from error
    if rows:
        write_table(rows, options.output / "predictions.csv")


def predict_samples(
    model: Any,
    prepare: Any,
    size: int,
    dataset: Any,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the output and the target of each sample, from batches of this size."""
    device = next(model.parameters()).device
    needed = signature(model.predict).parameters
    every = signature(model.forward).parameters
    indices = list(range(len(dataset)))
    for begin in range(0, len(dataset), size):
        batch = load_batch(dataset, indices[begin : begin + size])
        batch = prepare(batch, False, torch.default_generator)
        if not isinstance(batch, dict):
            batch = dict(zip(every, batch, strict=False))
        if not needed.keys() <= batch.keys():
            name = type(model).__name__
            raise UserError(f"`predict` of {name} must take inputs of `forward`, by the same names")
        inputs = {name: batch.pop(name).to(device) for name in needed}
        outputs = model.predict(**inputs).float().cpu()
        (targets,) = batch.values()
        yield from zip(outputs, targets.cpu(), strict=True)


def write_table(
    rows: list[dict[str, Any]],
    file: Path,
) -> None:
    """Write rows as CSV."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {file}")


def main(
    argv: list[str] | None = None,
) -> None:
    """Read the command line, and predict."""
    parser = argparse.ArgumentParser(description="Predict with a run's best weights.")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    add = parser.add_argument
    add("run", type=Path, help="folder of the run, such as runs/first")
    add("files", type=Path, nargs="*", help="images, folders or tables; default: validation set")
    add("--output", type=Path, help="output folder; default: predictions/ in the run's folder")
    add("--device", default=device, type=torch.device, help="cpu, cuda, mps or xpu")
    add("--batch", type=int, default=64, help="samples per forward pass")
    add = parser.add_argument_group("models that generate").add_argument
    add("--prompt", default="\n", type=lambda text: text or "\n", help="text to continue")
    add("--tokens", type=int, default=200, help="tokens to add to the prompt")
    add("--temperature", type=float, default=0.8, help="of the sampling; 0: most likely token")
    add("--count", type=int, default=64, help="images to sample")
    add("--seed", type=int, default=0, help="seed of the sampling")
    with one_line():
        predict(parser.parse_args(argv))


if __name__ == "__main__":
    main()
