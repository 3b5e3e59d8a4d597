"""Converts the columns of a table to numbers, texts and category codes."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..errors import UserError
from .common import abbreviate
from .tabular import Spec


def encode(frame: pl.DataFrame, spec: Spec, file: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The numeric columns, with NaN for missing values, and the category codes, with 0 for unknown categories.

    Raises:
        UserError: a column is missing, or contains text instead of numbers.
    """
    missing = [name for name in (*spec.numeric, *spec.categorical) if name not in frame.columns]
    if missing:
        raise UserError(
            f"{file} has no column {abbreviate(missing)}: it needs all columns that the model is trained on"
        )
    numbers = np.empty((len(frame), len(spec.numeric)), np.float32)
    for index, name in enumerate(spec.numeric):
        numbers[:, index] = as_numbers(frame[name], file)
    codes = np.zeros((len(frame), len(spec.categorical)), np.int64)
    for index, (name, known) in enumerate(zip(spec.categorical, spec.categories, strict=True)):
        known_codes = list(range(1, len(known) + 1))
        texts = as_texts(frame[name])
        codes[:, index] = texts.replace_strict(list(known), known_codes, default=0, return_dtype=pl.Int64)
    return numbers, codes


def unknown_categories(frame: pl.DataFrame, codes: NDArray[np.int64], spec: Spec) -> list[str]:
    """A message about each column with values that are not among its categories."""
    messages = []
    for index, name in enumerate(spec.categorical):
        others = frame[name].filter(pl.Series(codes[:, index] == 0, dtype=pl.Boolean))
        if len(others):
            names = ["missing" if text is None else repr(text) for text in as_texts(others).unique(maintain_order=True)]
            examples = abbreviate(names, 3)
            messages.append(f"column {name}: {len(others)} of {len(frame)} values count as unknown ({examples})")
    return messages


def missing_values(frames: list[pl.DataFrame], spec: Spec) -> list[str]:
    """A message about each column with missing or infinite values."""
    messages = []
    for name in (*spec.numeric, *spec.categorical):
        columns = [frame[name] for frame in frames]
        missing = sum(column.null_count() for column in columns)
        infinite = 0
        for column in columns:
            if column.dtype.is_float():
                missing += int(column.is_nan().sum())
                infinite += int(column.is_infinite().sum())
        if missing or infinite:
            more = f", {infinite} infinite, which count as missing" if infinite else ""
            messages.append(f"column {name}: {missing} of {sum(map(len, columns))} values missing{more}")
    return messages


def encode_targets(column: pl.Series, classes: Collection[str]) -> NDArray[Any]:
    """Class indices, int64, or float32 numbers for regression."""
    if not classes:
        return column.to_numpy().astype(np.float32)
    indices = column.replace_strict(list(classes), list(range(len(classes))), return_dtype=pl.Int64)
    return indices.to_numpy().astype(np.int64)


def is_text(column: pl.Series) -> bool:
    """Whether a column contains text or booleans."""
    return column.dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum)


def example_text(column: pl.Series) -> str:
    """The first value of a text column, for messages."""
    return repr(as_texts(column).drop_nulls().unique(maintain_order=True).head(1).to_list()).strip("[]")


def as_numbers(column: pl.Series, file: Path) -> NDArray[np.float32]:
    """A column as numbers; dates are days since 1970; NaN for missing and infinite values."""
    if column.dtype in (pl.Date, pl.Datetime):
        column = column.cast(pl.Datetime("us")).dt.epoch("us") / 86_400e6
    elif column.dtype in (pl.Duration, pl.Time):
        column = column.cast(pl.Int64) / {"ms": 1e3, "us": 1e6}.get(getattr(column.dtype, "time_unit", "ns"), 1e9)
    values = column.cast(pl.Float64, strict=False)
    invalid = column.filter(values.is_null() & column.is_not_null())
    if len(invalid):
        row = int((values.is_null() & column.is_not_null()).arg_true()[0]) + 1
        raise UserError(
            f"column {column.name} of {file} contains {invalid[0]!r} in row {row}, but the training data has numbers "
            "there: write a number, or leave the cell empty"
        )
    with np.errstate(over="ignore"):
        numbers = values.to_numpy().astype(np.float32)
    return np.where(np.isfinite(numbers), numbers, np.float32(np.nan))


def as_texts(column: pl.Series) -> pl.Series:
    """A column as text; integers have no decimal point; null for missing values."""
    if column.dtype.is_float() or column.dtype.is_decimal():
        values = column.cast(pl.Float64)
        values = values.set(~values.is_finite(), None)
        is_integer = values.round() == values
        integers = values.cast(pl.Int64, strict=False).cast(pl.String)
        return integers.zip_with(is_integer & integers.is_not_null(), values.cast(pl.String))
    return column.cast(pl.String)


def numbers_first(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, then other texts."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text
