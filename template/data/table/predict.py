"""What `predict` writes for tables: classes with probabilities, or numbers."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import data
from ..errors import UserError

Row = dict[str, Any]


def predict(
    options: Namespace,
    cfg: data.DataConfig,
    spec: data.Spec,
    model: Any,
    val_set: Any,
    outputs: Callable[[Any], Iterator[tuple[Tensor, Tensor]]],
) -> list[Row]:
    """Return a row for each row of the tables, or of the validation set."""
    samples = read_rows(options.files, cfg, spec) if options.files else val_set
    make_row = class_row if spec.classes else number_row
    rows = []
    for number, (output, target) in enumerate(outputs(samples)):
        row: Row = {"sample": f"{number:05}"}
        rows.append(row | make_row(output, None if options.files else target, spec))
    return rows


def read_rows(files: list[Path], cfg: data.DataConfig, spec: data.Spec) -> list[Any]:
    """Return the rows of tables, with 0 for the target."""
    samples: list[Any] = []
    for file in files:
        table = data.read_table(file, cfg, "the table")
        try:
            numbers, codes = data.encode(table, spec)
        except KeyError as missing:
            raise UserError(f"{file} has no column {missing}, which the model needs") from None
        say_unknown(file, table, codes, spec)
        samples += zip(numbers, codes, torch.zeros(len(numbers)), strict=True)
    if not samples:
        raise UserError(f"{files[0]} has no rows")
    return samples


def say_unknown(
    file: Path,
    table: Any,
    codes: Tensor,
    spec: data.Spec,
) -> None:
    """Name on stderr the columns with categories that the run does not know, or without numbers."""
    unknown = (codes == 0).sum(0).tolist()
    lines = []
    for name, count in zip(spec.categorical, unknown, strict=True):
        if count:
            rows = f"{count:,} of {len(table):,} rows"
            lines.append(f"{name}: {rows} have no category that the run knows")
    for name in spec.numeric:
        if name in table and len(table) and table[name].isna().all():
            lines.append(f"{name}: no row has a number")
    for line in lines:
        print(f"{file}: {line}", file=sys.stderr)


def class_row(output: Tensor, target: Tensor | None, spec: data.Spec) -> Row:
    """Return the most likely class, the true one if it is known, and the probabilities of all."""
    row = {"predicted": spec.classes[int(output.argmax())]}
    if target is not None:
        row["label"] = spec.classes[int(target)]
    for label, probability in zip(spec.classes, output.softmax(0).tolist(), strict=True):
        row[f"p({label})"] = f"{probability:.6g}"
    return row


def number_row(output: Tensor, target: Tensor | None, spec: data.Spec) -> Row:
    """Return the number, and the true one if it is known, in the unit of the table."""
    row = {"predicted": output.item()}
    if target is not None:
        row["target"] = target.item() * spec.target_std + spec.target_mean
    return row
