"""What is done with a trained model of tables: rows in, classes with their probabilities or numbers out."""

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
from .atomic_file import whole
from .trained_model import Trained

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

ABOUT = "Predict the class, or the number, of each row of CSV or Parquet files with the columns of the training data."
AT_ONCE = 8192
"""Rows in one forward pass."""


class Details:
    """Classes: the confusion matrix, and each class's precision and recall. Numbers: R2, and errors in their unit."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.spec = spec
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        size = len(spec.classes)
        self.confusion = torch.zeros(size * size, dtype=torch.int64, device=device)
        self.sums = torch.zeros(4, dtype=dtype, device=device)
        """Log losses; or of errors the squares and the sizes, and the targets' squares about the mean; and samples."""

    def add(self, net: Any, batch: Batch) -> None:
        """Take in one prepared batch."""
        numbers, codes, targets = batch
        found = net.predict(numbers, codes).to(self.sums.dtype)
        if self.spec.classes:
            size = len(self.spec.classes)
            self.confusion += torch.bincount(targets * size + found.argmax(1), minlength=size * size)
            lost = F.cross_entropy(found, targets, reduction="sum")
            self.sums += torch.stack([lost, lost.new_tensor(0), lost.new_tensor(0), lost.new_tensor(len(targets))])
            return
        own = targets.to(found.dtype) * self.spec.target_std + self.spec.target_mean
        away, spread = found - own, own - self.spec.center
        parts = [away.square().sum(), away.abs().sum(), spread.square().sum(), away.new_tensor(len(targets))]
        self.sums += torch.stack(parts)

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: values for JSON, and a table to read."""
        first, absolute, spread, count = world.all_reduce(self.sums).tolist()
        if not self.spec.classes:
            values = {"rmse": (first / count) ** 0.5, "mae": absolute / count, "samples": int(count)}
            values["r2"] = 1 - first / spread if spread else float("nan")
            return values, f"rmse            {values['rmse']:.6g} ({self.spec.target})\n"
        size = len(self.spec.classes)
        matrix = world.all_reduce(self.confusion).view(size, size)
        right, shown, there = matrix.diagonal().tolist(), matrix.sum(0).tolist(), matrix.sum(1).tolist()
        values = {
            "log_loss": first / count,
            "samples": int(count),
            "classes": list(self.spec.classes),
            "confusion": matrix.tolist(),  # a row a true class, a column a predicted one
            "precision": [a / b if b else 0.0 for a, b in zip(right, shown, strict=True)],
            "recall": [a / b if b else 0.0 for a, b in zip(right, there, strict=True)],
        }
        return values, _confusion_table(values)


def picture(trained: Trained, batch: Batch) -> "Figure":
    """Of one batch, how often each class is taken for each; or the numbers that are predicted over the true ones."""
    from matplotlib.figure import Figure

    spec, (numbers, codes, targets) = trained.spec, batch
    with trained.precision.autocast():
        found = trained.net.predict(numbers, codes).float().cpu()
    size = len(spec.classes)
    side = max(5.0, 2 + 0.3 * size)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(f"{spec.target}, predicted")
    axes.set_ylabel(f"{spec.target}, true")
    if not size:
        own = targets.float().cpu() * spec.target_std + spec.target_mean
        both = torch.cat([own, found])
        ends = [both.min().item(), both.max().item()]
        axes.plot(ends, ends, color="lightgrey", zorder=0)
        axes.scatter(found.numpy(), own.numpy(), s=16, alpha=0.7)
        axes.set_aspect("equal")
        return figure
    matrix = torch.bincount(targets.cpu() * size + found.argmax(1), minlength=size * size).view(size, size)
    axes.imshow(matrix.numpy(), cmap="Blues")
    axes.set_xticks(range(size), spec.classes, rotation=45, ha="right")
    axes.set_yticks(range(size), spec.classes)
    for row, column in matrix.nonzero().tolist():
        count = int(matrix[row, column])
        ink = "white" if count > matrix.max() / 2 else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=ink)
    return figure


def _confusion_table(values: dict[str, Any], most: int = 20) -> str:
    """Rows of true classes, columns of predicted ones, then each class's recall; a last row of precisions."""
    names = [str(name)[:14] for name in values["classes"]]
    if len(names) > most:
        return f"{len(names)} classes: their confusion matrix is in evaluation.json\n"
    cells = [
        ["true \\ predicted", *names, "recall"],
        *(
            [name, *row, f"{recall:.3f}"]
            for name, row, recall in zip(names, values["confusion"], values["recall"], strict=True)
        ),
        ["precision", *(f"{precision:.3f}" for precision in values["precision"]), ""],
    ]
    widths = [max(len(str(row[place])) for row in cells) for place in range(len(names) + 2)]
    lines = ("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The tables, and where the result goes."""
    parser.add_argument("files", type=Path, nargs="+", help="CSV or Parquet files, or folders of them")
    parser.add_argument("--output", type=Path, help="a .csv, .parquet or .json file; without it, a table to read")


def predict(trained: Trained, args: argparse.Namespace) -> None:
    """Add to the rows of all files what the model says of them.

    Raises:
        UserError: a file cannot be read or lacks a column, or the result cannot be written.
    """
    import polars as pl

    from ..readers.common import list_files
    from ..readers.frame import SUFFIXES, check_file, read_frame

    if args.output is not None and args.output.suffix.lower() not in WRITERS:
        raise UserError(f"--output {args.output} has no known format: end it in {', '.join(WRITERS)}")
    files = [
        file for entry in args.files for file in (list_files(entry, suffixes=SUFFIXES) if entry.is_dir() else [entry])
    ]
    if not files:
        raise UserError(f"{args.files[0]} holds no table: give files that end in {', '.join(SUFFIXES)}")
    frames = [_predicted(trained, read_frame(check_file(file)), file) for file in files]
    try:
        frame = pl.concat(frames, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise UserError(f"the files do not go into one table ({error}): give them one at a time") from error
    if args.output is not None:
        with whole(args.output) as target:
            getattr(frame, WRITERS[target.suffix.lower()])(target)
        print(f"{args.output}: {len(frame)} rows")
        return
    own = [name for name in frame.columns if name == "prediction" or name.startswith("probability ")]
    with pl.Config(tbl_rows=50, tbl_cols=8, tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True):
        print(frame.select(*own, pl.exclude(own)))


def _predicted(trained: Trained, frame: "pl.DataFrame", file: Path) -> "pl.DataFrame":
    """The rows of one file with the model's word on each."""
    import polars as pl

    from ..readers.table import encode, unknown

    spec = trained.spec
    names = ["prediction", *(f"probability {name}" for name in spec.classes)]
    taken = [name for name in names if name in frame.columns]
    if taken:
        raise UserError(f"{file} has a column {taken[0]} already: rename it, as the result gets one")
    numbers, codes = encode(frame, spec, file)
    for line in unknown(frame, codes, spec):
        print(f"{file}: {line}", file=sys.stderr)
    module = Rowwise(trained.net, trained.prepare)
    outputs = []
    for begin in range(0, len(frame), AT_ONCE):
        inputs = (torch.from_numpy(part[begin : begin + AT_ONCE]).to(trained.device) for part in (numbers, codes))
        with trained.precision.autocast():
            outputs.append(module(*inputs).cpu())
    found = torch.cat(outputs)
    if not spec.classes:
        return frame.with_columns(pl.Series("prediction", found.numpy()))
    chosen = [spec.classes[index] for index in found.argmax(1).tolist()]
    shares = [pl.Series(name, column.numpy()) for name, column in zip(names[1:], found.T.contiguous(), strict=True)]
    return frame.with_columns(pl.Series("prediction", chosen), *shares)


WRITERS = {".csv": "write_csv", ".parquet": "write_parquet", ".json": "write_json"}


class Rowwise(nn.Module):
    """From rows as loaded to the classes' probabilities (n, classes), or to the number (n,) in its own unit."""

    def __init__(self, net: Any, prepare: Prepare) -> None:
        super().__init__()
        self.net, self.prepare = net, prepare

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        found: Tensor = self.net.predict(*self.prepare.inputs(numbers, codes)).float()
        return found.softmax(1) if self.prepare.spec.classes else found


def exported(trained: Trained) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module that takes numbers (n, numeric columns), NaN where one is missing, and codes (n, categorical columns).

    Their order and the codes' meaning are those of the run's spec, in its checkpoint's manifest.
    """
    spec = trained.spec
    numbers = torch.tensor(spec.mean).repeat(2, 1)
    numbers[1] += torch.tensor(spec.std)
    codes = torch.zeros(2, len(spec.categorical), dtype=torch.int64)
    return Rowwise(trained.net, trained.prepare), (numbers, codes)
