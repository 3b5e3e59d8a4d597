"""Prediction for tables with a trained model: class probabilities, or numbers, for each row."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contracts import Batch
from ..data import Prepare, Spec
from ..distributed import World
from ..errors import UserError
from .atomic_file import atomic_write
from .trained_model import TrainedModel

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

ABOUT = "Predict the target for each row of CSV or Parquet files with the columns of the training data."
BATCH = 8192
"""Rows per forward pass."""


class Details:
    """Classification: confusion matrix, precision and recall. Regression: R2, and errors in the unit of the target."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.spec = spec
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64  # not all of these have float64
        size = len(spec.classes)
        self.confusion = torch.zeros(size * size, dtype=torch.int64, device=device)
        self.sums = torch.zeros(4, dtype=dtype, device=device)
        """Classification: log loss, 0, 0, samples. Regression: squared, absolute error, squared deviation, samples."""

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        numbers, codes, targets = batch
        found = net.predict(numbers, codes).to(self.sums.dtype)
        if self.spec.classes:
            size = len(self.spec.classes)
            self.confusion += torch.bincount(targets * size + found.argmax(1), minlength=size * size)
            loss = F.cross_entropy(found, targets, reduction="sum")
            self.sums += torch.stack([loss, loss.new_tensor(0), loss.new_tensor(0), loss.new_tensor(len(targets))])
            return
        true = targets.to(found.dtype) * self.spec.target_std + self.spec.target_mean
        error, deviation = found - true, true - self.spec.center
        parts = [error.square().sum(), error.abs().sum(), deviation.square().sum(), error.new_tensor(len(targets))]
        self.sums += torch.stack(parts)

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the values, and a table of them."""
        first, absolute, total, count = world.all_reduce(self.sums).tolist()
        if not self.spec.classes:
            values = {"rmse": (first / count) ** 0.5, "mae": absolute / count, "samples": int(count)}
            values["r2"] = 1 - first / total if total else float("nan")
            return values, f"rmse            {values['rmse']:.6g} ({self.spec.target})\n"
        size = len(self.spec.classes)
        matrix = world.all_reduce(self.confusion).view(size, size)
        correct, predicted, true = matrix.diagonal().tolist(), matrix.sum(0).tolist(), matrix.sum(1).tolist()
        values = {
            "log_loss": first / count,
            "samples": int(count),
            "classes": list(self.spec.classes),
            "confusion": matrix.tolist(),  # one row per true class, one column per predicted class
            "precision": [a / b if b else 0.0 for a, b in zip(correct, predicted, strict=True)],
            "recall": [a / b if b else 0.0 for a, b in zip(correct, true, strict=True)],
        }
        return values, _confusion_table(values)


def plot(trained: TrainedModel, batch: Batch) -> "Figure":
    """The confusion matrix of one batch; or the true values over the predicted ones."""
    from matplotlib.figure import Figure

    spec, (numbers, codes, targets) = trained.spec, batch
    with trained.precision.autocast():
        found = trained.net.predict(numbers, codes).float().cpu()
    size = len(spec.classes)
    inches = max(5.0, 2 + 0.3 * size)
    figure = Figure(figsize=(inches, inches), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(f"{spec.target}, predicted")
    axes.set_ylabel(f"{spec.target}, true")
    if not size:
        true = targets.float().cpu() * spec.target_std + spec.target_mean
        values = torch.cat([true, found])
        limits = [values.min().item(), values.max().item()]
        axes.plot(limits, limits, color="lightgrey", zorder=0)
        axes.scatter(found.numpy(), true.numpy(), s=16, alpha=0.7)
        axes.set_aspect("equal")
        return figure
    matrix = torch.bincount(targets.cpu() * size + found.argmax(1), minlength=size * size).view(size, size)
    axes.imshow(matrix.numpy(), cmap="Blues")
    axes.set_xticks(range(size), spec.classes, rotation=45, ha="right")
    axes.set_yticks(range(size), spec.classes)
    for row, column in matrix.nonzero().tolist():
        count = int(matrix[row, column])
        color = "white" if count > matrix.max() / 2 else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=color)
    return figure


def _confusion_table(values: dict[str, Any], limit: int = 20) -> str:
    """One row per true class and one column per predicted class, with the recall and the precision of each."""
    names = [str(name)[:14] for name in values["classes"]]
    if len(names) > limit:
        return f"{len(names)} classes: see the confusion matrix in evaluation.json\n"
    cells = [
        ["true \\ predicted", *names, "recall"],
        *(
            [name, *row, f"{recall:.3f}"]
            for name, row, recall in zip(names, values["confusion"], values["recall"], strict=True)
        ),
        ["precision", *(f"{precision:.3f}" for precision in values["precision"]), ""],
    ]
    widths = [max(len(str(row[column])) for row in cells) for column in range(len(names) + 2)]
    lines = ("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs and the output."""
    parser.add_argument("files", type=Path, nargs="+", help="CSV or Parquet files, and folders of files")
    parser.add_argument("--output", type=Path, help="a .csv, .parquet or .json file (default: print a table)")


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Write the rows of all files with their predictions.

    Raises:
        UserError: a file cannot be read or lacks a column, or the result cannot be written.
    """
    import polars as pl

    from ..readers.common import list_files
    from ..readers.frame import SUFFIXES, check_file, read_frame

    if args.output is not None and args.output.suffix.lower() not in WRITERS:
        raise UserError(f"--output {args.output} has an unknown format: its name must end with {', '.join(WRITERS)}")
    files = [
        file for entry in args.files for file in (list_files(entry, suffixes=SUFFIXES) if entry.is_dir() else [entry])
    ]
    if not files:
        raise UserError(f"{args.files[0]} contains no table: give files that end in {', '.join(SUFFIXES)}")
    decimal = getattr(trained.cfg.data, "decimal", "point")  # a data.py of before 0.4 has no such option
    frames = [_predicted(trained, read_frame(check_file(file), decimal), file) for file in files]
    try:
        frame = pl.concat(frames, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise UserError(f"the files cannot be combined ({error}): predict them one at a time") from error
    if args.output is not None:
        with atomic_write(args.output) as target:
            getattr(frame, WRITERS[target.suffix.lower()])(target)
        print(f"{args.output}: {len(frame)} rows")
        return
    own = [name for name in frame.columns if name == "prediction" or name.startswith("probability ")]
    with pl.Config(tbl_rows=50, tbl_cols=8, tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True):
        print(frame.select(*own, pl.exclude(own)))


def _predicted(trained: TrainedModel, frame: "pl.DataFrame", file: Path) -> "pl.DataFrame":
    """The rows of one file with their predictions."""
    import polars as pl

    from ..readers.columns import encode, unknown_categories

    spec = trained.spec
    names = ["prediction", *(f"probability {name}" for name in spec.classes)]
    taken = [name for name in names if name in frame.columns]
    if taken:
        raise UserError(f"{file} already has a column {taken[0]}: rename it, because the output adds one")
    numbers, codes = encode(frame, spec, file)
    for message in unknown_categories(frame, codes, spec):
        print(f"{file}: {message}", file=sys.stderr)
    module = RowPredictor(trained.net, trained.prepare)
    outputs = []
    for begin in range(0, len(frame), BATCH):
        inputs = (torch.from_numpy(part[begin : begin + BATCH]).to(trained.device) for part in (numbers, codes))
        with trained.precision.autocast():
            outputs.append(module(*inputs).cpu())
    found = torch.cat(outputs)
    if not spec.classes:
        return frame.with_columns(pl.Series("prediction", found.numpy()))
    chosen = [spec.classes[index] for index in found.argmax(1).tolist()]
    probabilities = [
        pl.Series(name, column.numpy()) for name, column in zip(names[1:], found.T.contiguous(), strict=True)
    ]
    return frame.with_columns(pl.Series("prediction", chosen), *probabilities)


WRITERS = {".csv": "write_csv", ".parquet": "write_parquet", ".json": "write_json"}


class RowPredictor(nn.Module):
    """Rows as loaded to class probabilities (n, classes), or to the target (n,) in its original unit."""

    def __init__(self, net: Any, prepare: Prepare) -> None:
        super().__init__()
        self.net, self.prepare = net, prepare

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        found: Tensor = self.net.predict(*self.prepare.inputs(numbers, codes)).float()
        return found.softmax(1) if self.prepare.spec.classes else found


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs: numbers (n, numeric columns), NaN if missing, and category codes.

    The order of the columns and the meaning of the codes are in the checkpoint's manifest.
    """
    spec = trained.spec
    numbers = torch.tensor(spec.mean).repeat(2, 1)
    numbers[1] += torch.tensor(spec.std)
    codes = torch.zeros(2, len(spec.categorical), dtype=torch.int64)
    return RowPredictor(trained.net, trained.prepare), (numbers, codes)
