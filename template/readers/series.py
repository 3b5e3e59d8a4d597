"""Your own series: the columns of a CSV or Parquet file, one row a moment."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..errors import UserError
from .common import some
from .frame import check_file, read_frame


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
    frame = read_frame(check_file(path))
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
