"""A CSV or Parquet file, read whole by polars, with a line on what is wrong with it."""

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import UserError
from .common import some

SUFFIXES = (".csv", ".tsv", ".parquet")
MISSING = ["NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "?"]
"""What stands for a missing value in CSV, beside nothing at all."""


def check_file(file: Path, key: str = "") -> Path:
    """Return the file, if it can be a table; an error names the config's key beside it, where one is given.

    Raises:
        UserError: it is not there, empty, or of another kind.
    """
    what = f"{key}={file}" if key else file
    if file.is_dir() or not file.exists():
        raise UserError(f"{what} {'is a folder' if file.is_dir() else 'does not exist'}: give a file")
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{what} is no table that can be read: give a file that ends in {some(SUFFIXES)}")
    if file.stat().st_size == 0:
        raise UserError(f"{what} is empty: give a table with a header and rows")
    return file


def read_frame(file: Path) -> pl.DataFrame:
    """Read one file, with dates as such.

    Raises:
        UserError: it cannot be read, is not UTF-8, has no rows, or has two columns of one name.
    """
    try:
        frame = pl.read_parquet(file, glob=False) if file.suffix.lower() == ".parquet" else _read_csv(file)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read {file} ({why}): mend it, or write it anew") from error
    if not len(frame):
        raise UserError(f"{file} has no rows below its header: give a table with some")
    return frame


def _read_csv(file: Path) -> pl.DataFrame:
    with file.open("rb") as stream:
        first = b""
        for number, line in enumerate(stream, 1):
            first = first or line.strip()
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file} is not UTF-8 (line {number}, {error.reason}): save it as such, with `iconv -t UTF-8`, say"
                ) from error
    options: dict[str, Any] = {"separator": max(",;\t|", key=first.decode().count), "glob": False}
    header = pl.read_csv(file, has_header=False, n_rows=1, infer_schema=False, **options).row(0)
    names = [str(name or "") for name in header]
    twice = [name or "(no name)" for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{file} has more than one column named {some(twice)}: give each a name of its own")
    return pl.read_csv(file, null_values=MISSING, infer_schema_length=None, try_parse_dates=True, **options)
