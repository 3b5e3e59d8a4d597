"""Text classification with a trained model: a confusion matrix, and the classes of new texts.

python -m <package>.tools.predict runs/first new.csv --text "another text" --top 3 --output classes.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..contracts import Batch
from ..data import Prepare, Spec
from ..distributed import World
from ..errors import UserError
from ..readers.subwords import decoder, encoder
from .atomic_file import atomic_write
from .confusion import Confusion
from .trained_model import TrainedModel

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

ABOUT = "Classify texts: those of --text, and those in a column of CSV, Parquet or JSON-lines files."


class Details:
    """The confusion matrix."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.confusion = Confusion(spec.classes, device)

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        tokens, mask, labels = batch
        self.confusion.add(labels, net.predict(tokens, mask).argmax(1))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix, and the metrics derived from it."""
        return self.confusion.result(world)


def plot(trained: TrainedModel, batch: Batch, limit: int = 24) -> Figure:
    """The first texts of a batch with their predicted classes and probabilities; wrong ones in red."""
    from matplotlib.figure import Figure  # imported here because it takes a second

    spec, decode = trained.spec, decoder(trained.spec.tokenizer)
    tokens, mask, labels = (part[:limit] for part in batch)
    with trained.precision.autocast():
        best = trained.net.predict(tokens, mask).float().softmax(1).max(1)
    figure = Figure(figsize=(12, 0.5 + 0.3 * len(labels)), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(labels), -1))
    rows = zip(best.indices.tolist(), best.values.tolist(), labels.tolist(), strict=True)
    for row, (predicted, probability, true) in enumerate(rows):
        color = "black" if predicted == true else "crimson"
        wrong = "" if predicted == true else f", not {spec.classes[true]}"
        text = " ".join(decode(tokens[row][mask[row]].tolist()).split())
        axes.text(0, row, f"{spec.classes[predicted]} {probability:.2f}{wrong}", color=color, size=10)
        axes.text(0.25, row, text[:110].replace("$", r"\$"), family="DejaVu Sans Mono", size=9)
    return figure


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs and the output."""
    parser.add_argument("files", type=Path, nargs="*", help="CSV, TSV, Parquet or JSON-lines files")
    parser.add_argument("--text", action="append", default=[], metavar="TEXT", help="a text to classify")
    parser.add_argument("--column", metavar="NAME", help="column of the texts (default: as in training)")
    parser.add_argument("--top", type=int, default=1, metavar="K", help="number of most likely classes (default: 1)")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="batch size (default: 64)")
    parser.add_argument("--output", type=Path, help="a .csv, .parquet or .jsonl file (default: print a table)")


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Classify the texts, and write each with its classes.

    Raises:
        UserError: a file cannot be read, or a row has no text, or the result cannot be written.
    """
    import polars as pl

    if args.top < 1 or args.batch < 1:
        raise UserError(f"--top {args.top} --batch {args.batch}: both must be 1 or above")
    if args.output is not None and args.output.suffix.lower() not in WRITERS:
        raise UserError(f"--output {args.output} has an unknown format: its name must end with {', '.join(WRITERS)}")
    column = args.column or trained.cfg.data.text
    frames = [_classified(trained, pl.DataFrame({column: args.text}), args.text, args)] if args.text else []
    frames += [_of_file(trained, file, column, args) for file in args.files]
    if not frames:
        raise UserError("no text: give --text TEXT, or files")
    try:
        frame = pl.concat(frames, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise UserError(f"the files cannot be combined ({error}): classify them one at a time") from error
    if args.output is not None:
        with atomic_write(args.output) as target:
            getattr(frame, WRITERS[target.suffix.lower()])(target)
        print(f"{args.output}: {len(frame)} texts")
        return
    own = _names(min(args.top, len(trained.spec.classes)))
    with pl.Config(tbl_rows=50, tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True, fmt_str_lengths=80):
        print(frame.select(*own, column))


WRITERS = {".csv": "write_csv", ".parquet": "write_parquet", ".jsonl": "write_ndjson"}


def _names(top: int) -> list[str]:
    ranks = ["", *(f"_{rank}" for rank in range(2, top + 1))]
    return [f"{key}{rank}" for rank in ranks for key in ("class", "probability")]


def _of_file(trained: TrainedModel, file: Path, column: str, args: argparse.Namespace) -> pl.DataFrame:
    """The rows of one file with their classes."""
    from ..readers.labeled import read_texts

    frame, texts = read_texts(file, column, "--column")
    missing = [number for number, text in enumerate(texts, 1) if text is None]
    if missing:
        raise UserError(f"{file} has no text in row {missing[0]} of column {column}: fill or remove it")
    taken = [name for name in _names(min(args.top, len(trained.spec.classes))) if name in frame.columns]
    if taken:
        raise UserError(f"{file} already has a column {taken[0]}: rename it, because the output adds one")
    return _classified(trained, frame, [str(text) for text in texts], args)


def _classified(trained: TrainedModel, frame: pl.DataFrame, texts: list[str], args: argparse.Namespace) -> pl.DataFrame:
    """The rows with the most likely classes of these texts, and their probabilities."""
    import polars as pl

    classes, module = trained.spec.classes, Classifier(trained.net, trained.prepare)
    encode, values, indices = encoder(trained.spec.tokenizer, trained.spec.length), [], []
    for begin in range(0, len(texts), args.batch):
        inputs = as_batch(encode(texts[begin : begin + args.batch]), trained.spec.length)
        with trained.precision.autocast():
            best = module(*(part.to(trained.device) for part in inputs)).topk(min(args.top, len(classes)))
        values.append(best.values.cpu())
        indices.append(best.indices.cpu())
    columns = []
    for rank, (value, index) in enumerate(zip(torch.cat(values).T, torch.cat(indices).T, strict=True)):
        name, probability = _names(rank + 1)[-2:]
        columns += [pl.Series(name, [classes[number] for number in index.tolist()])]
        columns += [pl.Series(probability, value.tolist())]
    return frame.with_columns(*columns)


def as_batch(encoded: list[Any], length: int) -> tuple[Tensor, Tensor]:
    """Texts as token ids to a batch as loaded: tokens (n, length), int32, and lengths (n,)."""
    tokens = np.zeros((len(encoded), length), np.int32)
    for row, found in enumerate(encoded):
        tokens[row, : len(found)] = found
    return torch.from_numpy(tokens), torch.tensor([len(found) for found in encoded])


class Classifier(nn.Module):
    """Tokens (n, length), int32, and the number of tokens of each text, (n,), to class probabilities, (n, classes)."""

    def __init__(self, net: Any, prepare: Prepare) -> None:
        super().__init__()
        self.net, self.prepare = net, prepare

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = self.net.predict(*self.prepare.inputs(tokens, lengths))
        return logits.float().softmax(1)


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs; `export` writes the tokenizer next to it."""
    spec, generator = trained.spec, torch.Generator().manual_seed(0)
    tokens = torch.randint(0, spec.vocabulary, (2, spec.length), dtype=torch.int32, generator=generator)
    return Classifier(trained.net, trained.prepare), (tokens, torch.tensor([spec.length, 3]))


def export_files(trained: TrainedModel) -> dict[str, str]:
    """Files that the exported model needs, by name: the tokenizer, to encode texts as `[CLS] text [SEP]`."""
    return {"tokenizer.json": trained.spec.tokenizer}
