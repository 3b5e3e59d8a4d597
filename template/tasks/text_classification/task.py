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
from .trained_model import TrainedModel

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

ABOUT = "Classify texts: those of --text, and those in a column of CSV, Parquet or JSON-lines files."
MAX_CLASSES = 30
"""Maximum number of classes to print the whole confusion matrix."""


class Details:
    """The confusion matrix, accumulated on the device."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.classes = spec.classes
        self.pairs = torch.zeros(len(spec.classes) ** 2, dtype=torch.int64, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        tokens, mask, labels = batch
        pairs = labels * len(self.classes) + net.predict(tokens, mask).argmax(1)
        self.pairs.scatter_add_(0, pairs, torch.ones_like(pairs))

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Over all ranks: the confusion matrix, with one row per true class, and the metrics derived from it.

        `f1` is the mean over the classes that occur, each with the same weight (macro average).
        """
        matrix = world.all_reduce(self.pairs).view(len(self.classes), -1).cpu()
        correct, true, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        by_class = {
            name: {
                "precision": _fraction(hits, predictions),
                "recall": _fraction(hits, count),
                "f1": _fraction(2 * hits, predictions + count),
                "count": count,
            }
            for name, hits, predictions, count in zip(
                self.classes, correct.tolist(), predicted.tolist(), true.tolist(), strict=True
            )
        }
        scores = [found["f1"] for found in by_class.values() if found["f1"] is not None]
        values: dict[str, Any] = {"accuracy": int(correct.sum()) / int(matrix.sum()), "f1": sum(scores) / len(scores)}
        values |= {"classes": by_class, "confusion": matrix.tolist()}
        table = f"{'f1':16}{values['f1']:.6g}\n"
        if len(self.classes) <= MAX_CLASSES:
            table += _scores(by_class) + _confusion(self.classes, matrix)
        return values, table


def _fraction(part: int, total: int) -> float | None:
    return part / total if total else None


def _scores(by_class: dict[str, dict[str, Any]]) -> str:
    width, keys = max(5, *map(len, by_class)), ("precision", "recall", "f1")
    lines = [f"\n{'class':{width}}  precision  recall      f1  count"]
    for name, found in by_class.items():
        cells = ("-" if found[key] is None else f"{found[key]:.4f}" for key in keys)
        lines.append("{:{}}  {:>9}  {:>6}  {:>6}  {:>5}".format(name, width, *cells, found["count"]))
    return "\n".join(lines) + "\n"


def _confusion(classes: tuple[str, ...], matrix: Tensor) -> str:
    """One row per true class; the columns have the numbers of the classes."""
    names = [f"{number} {name}" for number, name in enumerate(classes)]
    width, cell = max(9, *map(len, names)), max(3, len(str(int(matrix.max())))) + 1
    lines = [f"\n{'true|pred':{width}} " + "".join(f"{number:>{cell}}" for number in range(len(classes)))]
    for name, row in zip(names, matrix.tolist(), strict=True):
        lines.append(f"{name:{width}} " + "".join(f"{count or '.':>{cell}}" for count in row))
    return "\n".join(lines) + "\n"


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
