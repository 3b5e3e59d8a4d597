"""Files of texts for data.py: rows of CSV, JSON lines and Parquet."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from .errors import UserError

SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}
"""What may separate cells: the one that the first row has most of, or else the first one; with
.tsv, the tab if the first row has one."""
SUFFIXES = (*SEPARATORS, ".jsonl", ".parquet")


def read_table(path: Path, encoding: str) -> pd.DataFrame:
    """Return the cells of a file; the index is the number of the row in it."""
    if path == Path():  # also that of an empty string, as of a variable that is not set
        raise UserError("data.path is empty, or the current folder: give a file's name")
    suffix = path.suffix.lower()
    if not path.exists():
        raise UserError(f"{path} does not exist: give a file of texts")
    if suffix not in SUFFIXES or not path.is_file():
        raise UserError(f"{path} is no file that ends with {', '.join(SUFFIXES)}")
    try:
        table = _parse(path, suffix, encoding)
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"cannot read {path} as {suffix}: {reason}") from None
    if table.empty:
        raise UserError(f"{path} has no rows of texts")
    return table


def _parse(
    path: Path,
    suffix: str,
    encoding: str,
) -> pd.DataFrame:
    if suffix == ".parquet":
        table = pd.read_parquet(path)
        if table.index.name is not None:
            table = table.reset_index()
        return table.set_axis(range(1, len(table) + 1))
    text = _read_text(path, encoding)
    return _parse_json(text) if suffix == ".jsonl" else _parse_csv(text, SEPARATORS[suffix])


def _read_text(file: Path, encoding: str) -> str:
    r"""Return the text of a file without a byte-order mark; lines end with \n."""
    try:
        text = file.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not {encoding} at byte {error.start}: set data.encoding"
        ) from None
    except LookupError:
        raise UserError(
            f"data.encoding={encoding} is none of Python's: give utf-8, latin-1 or utf-16"
        ) from None
    if "\0" in text:
        raise UserError(f"{file} is binary: give a text file, or set data.encoding")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _parse_csv(text: str, separators: str) -> pd.DataFrame:
    """Return the rows below the one with the names, which is the first; cells are text."""
    header = re.sub('"[^"]*"', "", text.lstrip("\n").partition("\n")[0])
    separator = separators[0]
    if separator != "\t" or "\t" not in header:
        separator = max(separators, key=header.count)
    try:
        rows = _split(text, separator, csv.QUOTE_MINIMAL)
    except ValueError:
        if separator != "\t":
            raise
        rows = _split(text, separator, csv.QUOTE_NONE)  # quotes are often text there
    names = [name.strip() for name in rows.pop(min(rows, default=1), [])]
    width = len(names) - (names[-1:] == [""])
    for number, row in rows.items():
        if any(row[width:]):
            raise ValueError(
                f"row {number} has more cells than the first row has names: "
                f"quote texts that contain {separator!r}"
            )
        rows[number] = (row + [""] * len(names))[: len(names)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names)


def _split(
    text: str,
    separator: str,
    quoting: Literal[0, 3],
) -> dict[int, list[str]]:
    """Return the cells of the rows that are not empty, by their numbers.

    Quotes that do not follow the rules are an error, and between tabs a cell with a tab and a line
    break: they may join rows.
    """
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator,
        quoting=quoting,
        skipinitialspace=True,
        strict=True,
    )
    rows = {}
    try:
        for number, row in enumerate(reader, 1):
            if separator == "\t" and any("\t" in cell and "\n" in cell for cell in row):
                raise csv.Error("quotes join rows")
            if any(row):
                rows[number] = row
    except csv.Error as error:
        raise ValueError(
            f"line {reader.line_num}: {error}; double the quotes in texts that have quotes around"
        ) from None
    return rows


def _parse_json(text: str) -> pd.DataFrame:
    """Return the JSON objects, one a line."""
    rows: dict[int, Any] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows[number] = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is no JSON ({error.msg})") from None
        if not isinstance(rows[number], dict):
            raise ValueError(f"line {number} is no JSON object with names and values")
    # objects, as pandas would make 1.0 of 1 if another row has no value
    return pd.DataFrame.from_dict(rows, orient="index", dtype=object)


def column(
    table: pd.DataFrame,
    name: str,
    path: Path,
) -> "pd.Series[str]":
    """Return a column as text, "" for missing values."""
    names = list(map(str, table.columns))
    if name not in names:
        raise UserError(
            f"{path} has no column {name}, only {listed(names)}: set data.text and data.label"
        )
    if names.count(name) > 1:
        raise UserError(f"{path} has {names.count(name)} columns {name}: rename one")
    values = table[name]
    lists = values.index[values.map(pd.api.types.is_list_like)]
    if len(lists):
        raise UserError(f"row {lists[0]} of {path} has several values in column {name}: give one")
    try:
        return values.astype("string").fillna("")
    except UnicodeEncodeError as error:  # JSON can have half of an emoji
        raise UserError(f"{path} has a broken character in column {name} ({error})") from None


def listed(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")
