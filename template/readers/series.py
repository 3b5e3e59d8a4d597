"""Your own time series: the columns of a CSV or Parquet file, one row per time step."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..errors import UserError
from .common import abbreviate
from .frame import check_decimals, check_file, read_frame


@dataclass(frozen=True)
class Series:
    """Numeric columns without missing values."""

    values: NDArray[np.float64]
    """(rows, columns)."""
    columns: tuple[str, ...]
    problems: tuple[str, ...]


def read(path: Path, columns: tuple[str, ...] = (), time: str | None = None, decimal: str = "point") -> Series:
    """Read the given columns, or all numeric ones but `time`, which must increase; missing values are forward-filled.

    `decimal` is that of `read_frame`.

    Raises:
        UserError: the file or a column is missing or unsuitable.
    """
    frame = read_frame(check_file(path), decimal)
    unknown = [name for name in (*columns, *([time] if time else [])) if name not in frame.columns]
    if unknown:
        raise UserError(f"{path} has no column {abbreviate(unknown)}: it has {abbreviate(frame.columns, 20)}")
    check_decimals(frame, [name for name in frame.columns if not columns or name in (*columns, time)], path)
    if time is not None:
        _check_time(frame[time], path)
    others = [name for name in frame.columns if name != time]
    chosen = list(columns) or [name for name in others if frame[name].dtype.is_numeric()]
    not_numeric = [name for name in chosen if not frame[name].dtype.is_numeric()]
    if not_numeric or not chosen:
        which = f"column {abbreviate(not_numeric)} is" if not_numeric else "all columns are"
        raise UserError(f"{path}: {which} not numeric ({_example(frame, not_numeric or others)}): give numeric columns")
    ignored = [] if columns else [name for name in others if name not in chosen]
    problems = [f"column {name} is ignored: it is not numeric" for name in ignored]
    return _fill(frame.select(pl.col(chosen).cast(pl.Float64)), problems, path)


def _check_time(times: pl.Series, path: Path) -> None:
    if not (times.dtype.is_numeric() or times.dtype.is_temporal()):
        raise UserError(f"data.time={times.name} of {path} has neither dates nor numbers, but {times[0]!r}")
    increases = (times > times.shift()).fill_null(False)[1:]
    if times[0] is None or not increases.all():
        row = 0 if times[0] is None else int(increases.arg_min() or 0) + 1
        raise UserError(f"data.time={times.name} of {path} does not increase at row {row}, {times[row]}: sort the rows")


def _example(frame: pl.DataFrame, names: list[str]) -> str:
    values = [value for name in names for value in frame[name].drop_nulls()[:1]]
    return f"for example {values[0]!r}" if values else "no values"


def _fill(frame: pl.DataFrame, problems: list[str], path: Path) -> Series:
    """Repeat the last value where one is missing or not finite; drop the rows before every column has a value."""
    frame = frame.select(pl.when(pl.all().is_finite()).then(pl.all()))
    missing = {name: count for name, count in frame.null_count().row(0, named=True).items() if count}
    empty = [name for name, count in missing.items() if count == len(frame)]
    if empty:
        raise UserError(f"column {abbreviate(empty)} of {path} has no values: remove it from data.columns")
    for name, count in missing.items():
        problems.append(f"column {name}: {count} of {len(frame)} values were missing and are forward-filled")
    filled = frame.fill_null(strategy="forward")
    first = max(filled.null_count().row(0))
    if first:
        problems.append(f"the first {first} rows are skipped: a column has no value yet")
    return Series(filled[first:].to_numpy(writable=True), tuple(frame.columns), tuple(problems))
