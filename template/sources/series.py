"""Your own series: the columns of a CSV or Parquet file, one row a moment, read by polars."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..errors import UserError
from .common import some

SUFFIXES = (".csv", ".tsv", ".parquet")
MISSING = ["NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "?"]
"""What stands for a missing value in CSV, beside nothing at all."""


@dataclass(frozen=True)
class Series:
    """Columns of numbers without gaps."""

    values: NDArray[np.float64]
    """(rows, columns)."""
    columns: tuple[str, ...]
    problems: tuple[str, ...]


def read(path: Path, columns: tuple[str, ...] = (), time: str | None = None) -> Series:
    """Read some columns, or all that are numeric but for `time`, which has to increase; gaps are filled forward.

    Raises:
        UserError: the file or a column is missing or unfit.
    """
    frame = _frame(path)
    unknown = [name for name in (*columns, *([time] if time else [])) if name not in frame.columns]
    if unknown:
        raise UserError(f"{path} has no column {some(unknown)}: it has {some(frame.columns, 20)}")
    if time is not None:
        _check_time(frame[time], path)
    others = [name for name in frame.columns if name != time]
    chosen = list(columns) or [name for name in others if frame[name].dtype.is_numeric()]
    unfit = [name for name in chosen if not frame[name].dtype.is_numeric()]
    if unfit or not chosen:
        which = f"column {some(unfit)}" if unfit else "all columns"
        raise UserError(f"{path}: {which} hold something else than numbers: {_example(frame, unfit or others)}")
    left_out = [] if columns else [name for name in others if name not in chosen]
    problems = [f"column {name} is left out: it does not hold numbers" for name in left_out]
    return _filled(frame.select(pl.col(chosen).cast(pl.Float64)), problems, path)


def _frame(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise UserError(f"{path} {'is no file' if path.exists() else 'does not exist'}: give a CSV or Parquet file")
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} is no series that can be read: give a file that ends in {some(SUFFIXES)}")
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty: give a file with a header and rows")
    try:
        frame = pl.read_parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = str(error).strip().splitlines()[0]
        raise UserError(f"cannot read {path} ({why}): mend it, or write it anew") from error
    if not len(frame):
        raise UserError(f"{path} has no rows below its header: give a file with some")
    return frame


def _csv(path: Path) -> pl.DataFrame:
    with path.open("rb") as stream:
        try:
            header, *_ = (line.decode() for line in stream)
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 ({error.reason}): save it as such") from error
    separator = max(",;\t|", key=header.count)
    return pl.read_csv(path, separator=separator, infer_schema_length=None, null_values=MISSING, try_parse_dates=True)


def _check_time(times: pl.Series, path: Path) -> None:
    if not (times.dtype.is_numeric() or times.dtype.is_temporal()):
        raise UserError(f"data.time={times.name} of {path} holds neither dates nor numbers: {times[0]!r}, say")
    later = (times > times.shift()).fill_null(False)[1:]
    if times[0] is None or not later.all():
        row = 0 if times[0] is None else int(later.arg_min() or 0) + 1
        raise UserError(f"data.time={times.name} of {path} does not increase at row {row}, {times[row]}: sort the rows")


def _example(frame: pl.DataFrame, names: list[str]) -> str:
    values = [value for name in names for value in frame[name].drop_nulls()[:1]]
    return f"{values[0]!r}, say" if values else "nothing at all"


def _filled(frame: pl.DataFrame, problems: list[str], path: Path) -> Series:
    """Repeat the last value where one is missing or not finite; drop the rows before every column has one."""
    frame = frame.select(pl.when(pl.all().is_finite()).then(pl.all()))
    gaps = {name: count for name, count in frame.null_count().row(0, named=True).items() if count}
    nothing = [name for name, count in gaps.items() if count == len(frame)]
    if nothing:
        raise UserError(f"column {some(nothing)} of {path} has no values: leave it out of data.columns")
    for name, count in gaps.items():
        problems.append(f"column {name}: {count} of {len(frame)} values were missing; the last was repeated")
    filled = frame.fill_null(strategy="forward")
    first = max(filled.null_count().row(0))
    if first:
        problems.append(f"the first {first} rows are left out: a column has no value yet")
    return Series(filled[first:].to_numpy(writable=True), tuple(frame.columns), tuple(problems))
