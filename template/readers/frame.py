"""Reads a CSV or Parquet file with polars, with a clear message if it is invalid."""

from collections import Counter
from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import UserError
from .common import abbreviate

SUFFIXES = (".csv", ".tsv", ".parquet")
MISSING = ["NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "?"]
"""Spellings of a missing value in CSV, besides an empty cell."""
NUMBER = r"^[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][-+]?\d+)?$"
"""A number as it is written with a decimal comma, and points between thousands."""


def check_file(file: Path, key: str = "", suffixes: Collection[str] = SUFFIXES) -> Path:
    """Return the file if it can be a table; errors start with the config key, if given.

    Raises:
        UserError: it does not exist, is empty, or has another suffix.
    """
    name = f"{key}={file}" if key else file
    if file.is_dir() or not file.exists():
        raise UserError(f"{name} {'is a folder' if file.is_dir() else 'does not exist'}: give a file")
    if file.suffix.lower() not in suffixes:
        raise UserError(f"{name} is not a supported table: give a file that ends in {abbreviate(suffixes, 9)}")
    if file.stat().st_size == 0:
        raise UserError(f"{name} is empty: give a table with a header and rows")
    return file


def read_frame(file: Path, decimal: str = "point", as_text: bool = False) -> pl.DataFrame:
    """Read one file; dates are parsed. `decimal` is what numbers in CSV have before their fraction: point or comma.

    With `as_text`, all cells of CSV are text, and only empty ones are missing.

    Raises:
        UserError: it cannot be read, is not UTF-8, has no rows, or has two columns with the same name.
    """
    try:
        frame = (
            pl.read_parquet(file, glob=False)
            if file.suffix.lower() == ".parquet"
            else _read_csv(file, decimal, as_text)
        )
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read {file} ({reason}): fix the file") from error
    if not len(frame):
        raise UserError(f"{file} has no rows below its header: add some")
    return frame


def check_decimals(frame: pl.DataFrame, names: Collection[str], file: Path, way_out: str = "") -> None:
    """Refuse text that is mostly numbers with a decimal comma.

    Raises:
        UserError: names the columns.
    """
    found = []
    for name in names:
        if frame[name].dtype == pl.String:
            texts = frame[name].drop_nulls().str.strip_chars()
            numbers = texts.filter(texts.str.contains(NUMBER))
            commas = numbers.filter(numbers.str.contains(",", literal=True))
            found += [f"{name} ({commas[0]!r})"] if len(commas) and len(numbers) > len(texts) / 2 else []
    if found:
        fix = "write numbers instead of text" if file.suffix.lower() == ".parquet" else "set data.decimal=comma"
        raise UserError(f"{file} has numbers with a comma in column {abbreviate(found)}: {fix}{way_out}")


def _read_csv(file: Path, decimal: str, as_text: bool) -> pl.DataFrame:
    with file.open("rb") as stream:
        header = b""
        for number, line in enumerate(stream, 1):
            header = header or line.strip()
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file} is not UTF-8 (line {number}, {error.reason}): convert it, for example with iconv -t UTF-8"
                ) from error
    separators = ",;\t|" if decimal == "point" else ";\t|,"  # the first one where there is none in the header
    options: dict[str, Any] = {"separator": max(separators, key=header.decode().count), "glob": False}
    first_row = pl.read_csv(file, has_header=False, n_rows=1, infer_schema=False, **options).row(0)
    names = [str(name or "") for name in first_row]
    duplicates = [name or "(no name)" for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise UserError(f"{file} has more than one column named {abbreviate(duplicates)}: rename them")
    if as_text:
        return pl.read_csv(file, infer_schema=False, **options)
    source: Path | BytesIO = file
    if decimal == "comma":
        source = BytesIO()
        texts = pl.col(pl.String).str.strip_chars()
        plain = texts.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        frame = pl.read_csv(file, infer_schema=False, **options)
        frame.with_columns(pl.when(texts.str.contains(NUMBER)).then(plain).otherwise(pl.col(pl.String))).write_csv(
            source
        )
        source.seek(0)
        options["separator"] = ","
    return pl.read_csv(source, null_values=MISSING, infer_schema_length=None, try_parse_dates=True, **options)
