"""Files of tables for data.py: CSV and Parquet, and what their cells are."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_bool_dtype, is_integer_dtype, is_numeric_dtype
from torch import Tensor

from .errors import UserError

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
SEPARATORS = {
    "comma": ",",
    "semicolon": ";",
    "tab": "\t",
    "pipe": "|",
}
BLANKS = "\u00a0\u2009\u202f"
"""They do not break a line, or are narrow."""
THOUSANDS = f"[.,'\u2019 {BLANKS}]"
NUMBER = r"[-+]?[0-9]+(" + THOUSANDS + r"[0-9]{3})*([.,][0-9]+)?"
"""A number that may have separators between thousands."""
GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}(\.[0-9]{3})+ *")
GROUPED_OR_SMALL = re.compile(GROUPED.pattern + r"|[-+]?[0-9]{1,3} *")
"""Numbers that may have points between thousands, or need none."""
CURRENCY = r"([$€£¥₹]|[A-Z]{3}\s)"
UNIT = r"([$€£¥₹%°µ]|[^\W\d_])[^\d:]{0,9}"
SHORT_UNIT = r"([$€£¥%]|[a-zA-Z]{1,3})"
WITH_SHORT_UNIT = rf"[$€£¥]\s?{NUMBER}|{NUMBER}\s?{SHORT_UNIT}"
"""Of a few different values, those with longer words are text, such as 3 rooms."""
WITH_UNIT = rf"[-+]?{CURRENCY}\s?{NUMBER}|{NUMBER}\s?{UNIT}"
VALUE = re.compile(r"[-+.,:/\s0-9]+")
"""A number, a date or a time, which is no name of a column, unless it is a whole number."""
UNNAMED = re.compile(r"Unnamed: \d+")
"""What pandas calls a column without a name, such as the index of a table that is saved again."""
SAMPLE = 10_000
"""Rows of CSV that show which columns are codes."""


class Format(Protocol):
    """The options of data.py on how CSV is written."""

    @property
    def separator(self) -> str: ...

    @property
    def decimal(self) -> str: ...

    @property
    def encoding(self) -> str: ...


def read_file(
    path: Path,
    cfg: Format,
    key: str,
    has_index: bool = False,
) -> pd.DataFrame:
    """Return the columns of a file that have a name.

    With `has_index`, a first column of CSV without a name, such as dates, is the column `index`.
    The index is the number of the row in the file, where the header of CSV is row 1.
    """
    kinds = ", ".join(SUFFIXES)
    if path == Path():  # also that of an empty string, as of a variable that is not set
        raise UserError(f"{key} is empty, or the current folder: give a file ({kinds})")
    if not path.exists():
        raise UserError(f"{key}={path} does not exist: give a file ({kinds})")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix not in SUFFIXES:
        raise UserError(f"{key}={path} is no table: give a file ({kinds})")
    is_parquet = suffix == ".parquet"
    try:
        return _read_parquet(path) if is_parquet else _read_csv(path, cfg, has_index)
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        fix = "let the first line be the names of all columns, quote cells, or set data.separator"
        if is_parquet:
            fix = "write it again, with a name for each column"
        raise UserError(f"cannot read the table {path} ({why}): {fix}") from error


def refuse_empty(table: pd.DataFrame, file: str) -> None:
    """Refuse a table without rows."""
    if table.index.empty:
        raise UserError(f"{file} has no rows below the names of the columns: add some")


def _read_parquet(file: Path) -> pd.DataFrame:
    table = pd.read_parquet(file)
    if not isinstance(table.index, pd.RangeIndex):  # such as dates
        is_counter = table.index.name is None and is_integer_dtype(table.index)
        table = table.reset_index(drop=is_counter)
    names = [str(name) for name in table.columns]
    _check_names(names, file)
    return table.set_axis(names, axis=1).set_axis(pd.RangeIndex(1, len(table) + 1))


def _read_csv(
    file: Path,
    cfg: Format,
    has_index: bool,
) -> pd.DataFrame:
    content, text = _read_text(file, cfg.encoding)
    header, separator = _find_header(file, text, cfg)
    given = [name for name in header if name]
    _check_names(given, file)
    if all(map(VALUE.fullmatch, given)) and not all(map(str.isdigit, given)):
        raise UserError(
            f"the first row of {file} has values ({listed(given)}): add a row with the names of "
            "the columns above it or, if these are the names, begin them with a letter"
        )
    # pandas needs a name for each column; other names do not begin with a blank
    names = [name or f" {number}" for number, name in enumerate(header)]
    table = _parse_csv(content, text, names, separator, cfg)
    if has_index and not header[0] and "index" not in names:
        table = table.rename(columns={names[0]: "index"})
    named = _drop_unnamed(table, file, separator)
    last = list(table).index(named.columns[-1]) if len(named.columns) else 0
    if table.iloc[:, last].isna().any():  # also where a row ends before
        _refuse_short_rows(file, text, separator, last + 1)
    return named


def _parse_csv(
    content: bytes,
    text: str,
    names: list[str],
    separator: str,
    cfg: Format,
) -> pd.DataFrame:
    """Return the rows below the header.

    Columns of codes, such as 01234, and of unclear numbers are text.
    """
    options: dict[str, Any] = {
        "sep": separator,
        "decimal": "," if cfg.decimal == "comma" else ".",
        "encoding": cfg.encoding,
        "header": 0,
        "names": names,
        "index_col": False,
        "na_values": "?",
        "skipinitialspace": True,
        "low_memory": False,
    }
    first: pd.DataFrame = pd.read_csv(io.BytesIO(content), nrows=SAMPLE, dtype=str, **options)
    codes = [name for name in names if _are_codes(first[name].dropna())]
    unclear: list[str] = []
    if cfg.decimal == "point":
        unclear = [name for name in names if _are_unclear(first[name].dropna())]
    dtypes = dict.fromkeys(codes + unclear, str)
    table: pd.DataFrame = pd.read_csv(io.BytesIO(content), dtype=dtypes, **options)
    clear = [name for name in unclear if not _are_unclear(table[name].dropna())]
    if clear:  # from later rows
        table[clear] = pd.read_csv(io.BytesIO(content), usecols=clear, **options)
    if len(table) > SAMPLE and _may_have_codes(text, separator):
        whole = [name for name in names if is_integer_dtype(table[name])]
        cells = pd.read_csv(io.BytesIO(content), usecols=whole, dtype=str, **options)
        for name in whole:
            table[name] = cells[name] if _are_codes(cells[name]) else table[name]
    return table.set_axis(pd.RangeIndex(2, len(table) + 2))


def _drop_unnamed(
    table: pd.DataFrame,
    file: Path,
    separator: str,
) -> pd.DataFrame:
    """Return the columns with a name; one without, other than the first, must have no values.

    A column that pandas has named, as an index is saved again, may only count the rows.
    """
    columns = {}
    for number, name in enumerate(map(str, table)):
        column = table[name]
        if UNNAMED.fullmatch(name) and is_integer_dtype(column):
            continue
        if not name.startswith(" ") and not (UNNAMED.fullmatch(name) and column.isna().all()):
            columns[name] = column
        elif number and column.notna().any():
            raise UserError(
                f"row {first_row(column.notna())} of {file} has more cells than the header has "
                "names: let the first line be the names of all columns, quote cells that contain "
                f"{separator!r}, or set data.separator"
            )
    return pd.DataFrame(columns, index=table.index, copy=False)


def _read_text(file: Path, encoding: str) -> tuple[bytes, str]:
    """Return the content of a file, and its text; minus signs and blanks are those of ASCII."""
    content = file.read_bytes()
    text = decode(content, file, encoding)
    plain = text.replace("\N{MINUS SIGN}", "-")
    for blank in BLANKS:
        plain = plain.replace(blank, " ")
    if plain == text:
        return content, text
    return plain.encode(encoding), plain


def _may_have_codes(text: str, separator: str) -> bool:
    """Whether a cell in any row has only digits, of which the first is a zero."""
    cell = rf"0[0-9]+[{re.escape(separator)}\r\n]"
    begins = (re.escape(separator), "\n")  # two patterns, as each begins with a literal: faster
    return any(re.search(begin + cell, text) for begin in begins)


def _are_codes(cells: "pd.Series[str]") -> bool:
    """Whether all cells are whole numbers, and some have a leading zero, such as 01234."""
    numbers = cells.str.strip()
    has_zero = numbers.str.fullmatch("0[0-9]+").any()
    return bool(has_zero and numbers.str.fullmatch("[0-9]+").all())


def _are_unclear(cells: "pd.Series[str]") -> bool:
    """Whether all are numbers such as 1.234, 567 or 8, with three different ones of the first two.

    So the point may separate thousands. 999 often stands for a missing value.
    """
    different = cells.unique().tolist()
    if not all(map(GROUPED_OR_SMALL.fullmatch, different)):
        return False
    grouped = [cell for cell in different if GROUPED.fullmatch(cell)]
    small = {cell.strip("+- ") for cell in different if cell not in grouped}
    hundreds = [cell for cell in small if len(cell) == 3 and cell != "999"]
    return len(grouped) >= 3 and len(hundreds) >= 3


def _refuse_short_rows(
    file: Path,
    text: str,
    separator: str,
    width: int,
) -> None:
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    # as pandas leaves out blank lines
    rows = (row for row in reader if len(row) > 1 or "".join(row).strip())
    for number, row in enumerate(rows, 1):
        if len(row) < width:
            raise UserError(
                f"row {number} of {file} has fewer cells than the header has names: add the "
                "missing cells, which may be empty, or remove the row"
            )


def decode(
    content: bytes,
    file: Path,
    encoding: str,
) -> str:
    """Return the text of a file without a byte-order mark."""
    try:
        text = content.decode(encoding)
    except UnicodeError as error:
        at = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(
            f"{file} is not {encoding}{at}: set data.encoding, or remove the file"
        ) from None
    except LookupError:
        raise UserError(
            f"data.encoding={encoding} is none of Python's: give utf-8, latin-1 or utf-16"
        ) from None
    if "\0" in text:
        raise UserError(f"{file} is binary: set data.encoding, or remove the file")
    return text.removeprefix("\ufeff")


def _find_header(
    file: Path,
    text: str,
    cfg: Format,
) -> tuple[list[str], str]:
    """Return the names of the columns, "" for those without, and what separates them."""
    end = 0
    for _ in range(20):
        end = text.find("\n", end) + 1 or len(text)
    first_lines = io.StringIO(text[:end], newline=None)
    lines = [line for line in islice(first_lines, 20) if line.strip()]
    if not lines:
        raise UserError(f"cannot read the table {file} (it is empty)")
    names = [cfg.separator] if cfg.separator != "auto" else list(SEPARATORS)
    if cfg.separator == "auto" and cfg.decimal == "comma":
        names = ["semicolon", "tab", "pipe"]
    rows = {}
    for name in names:
        reader = csv.reader(lines, delimiter=SEPARATORS[name], skipinitialspace=True)
        rows[name] = list(reader)
    name = _find_separator(rows, file)
    header = [cell.strip() for cell in rows[name][0]]
    longest = max(map(len, rows[name]))
    return header + [""] * (longest - len(header)), SEPARATORS[name]


def _find_separator(
    rows: dict[str, list[list[str]]],
    file: Path,
) -> str:
    """Return what the header has; if it has several, what gives rows of the same length."""
    possible = [name for name in rows if len(rows[name][0]) > 1]
    if len(possible) > 1:
        possible = [name for name in possible if _are_even(rows[name])]
        if len(possible) != 1:
            raise UserError(f"the columns of {file} have no clear separator: set data.separator")
    return possible[0] if possible else next(iter(rows))


def _are_even(rows: list[list[str]]) -> bool:
    return len({len(row) for row in rows}) == 1


def _check_names(
    names: list[str],
    file: Path,
) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{file} has several columns {name!r}: rename or remove them")


# Columns


def tidy(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column as float64, NaN if missing; or as text without blanks, "" if missing."""
    kind = infer_dtype(column)
    is_number = is_numeric_dtype(column) and not is_bool_dtype(column)
    if is_number or kind in ("decimal", "integer", "empty"):  # these may be Python objects
        return column.astype("float64")
    texts = column.dropna().astype(str).str.strip()
    return texts.reindex(column.index, fill_value="")


def is_missing(column: "pd.Series[Any]") -> "pd.Series[bool]":
    """Say which cells of a tidy column are missing."""
    return column.isna() if is_numeric_dtype(column) else column == ""


def as_numbers(column: "pd.Series[Any]") -> "pd.Series[float]":
    """Return a tidy column as float64; refuse text, and numbers that float32 has not."""
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    is_text = numbers.isna() & ~is_missing(column)
    is_large = numbers.abs() > np.finfo(np.float32).max
    for wrong, why in (
        (is_text, "is not a number"),
        (numbers.abs() == np.inf, "is not finite"),
        (is_large, "is too large"),
    ):
        if wrong.any():
            row = first_row(wrong)
            cell = column[row]
            shown = f"{cell!r:.40}" if isinstance(cell, str) else cell
            raise UserError(
                f"column {column.name}: {shown} in row {row} {why}: "
                "correct it, empty the cell, or leave the column out"
            )
    return numbers


def as_texts(column: "pd.Series[Any]") -> "pd.Series[str]":
    """Return a column as text; whole numbers have no point, and missing ones are empty."""
    if not is_numeric_dtype(column):
        return column
    texts = {}
    for value in column.dropna().unique():
        texts[value] = str(int(value)) if value.is_integer() else str(value)
    return column.map(texts).fillna("").astype(str)


def moments(column: "pd.Series[Any]") -> tuple[float, float]:
    """Return the mean and the standard deviation, in float64; 1 for a constant column."""
    values = column.astype("float64")
    mean = values.mean()
    if not values.min() < values.max():  # as also if all are missing
        return (0.0 if np.isnan(mean) else float(mean)), 1.0
    return float(mean), float(values.std(ddof=0))


def find_categories(column: "pd.Series[Any]") -> tuple[str, ...]:
    """Return the values in 3 rows or more; refuse a column in which most rows have others."""
    texts = as_texts(column)
    counts = texts.value_counts()
    frequent = counts.index[counts >= 3]
    is_rare = ~texts.isin(frequent)
    if is_rare.mean() > 0.5:
        row = first_row(is_rare)
        raise UserError(
            f"column {column.name}: {texts[row]!r:.40} in row {row}, like most values, is in "
            "fewer than 3 rows, so it is no category: add the column to data.ignore"
        )
    return tuple(sorted(frequent))


def refuse_unclear(column: "pd.Series[Any]", advice: str) -> None:
    """Refuse numbers that may have separators between thousands, such as 1.234 beside 999."""
    if is_numeric_dtype(column):
        return
    cells = column[column != ""].astype(str)
    if not _are_unclear(cells):
        return
    row = first_row(cells.str.fullmatch(GROUPED))
    whole = cells[row].replace(".", "")
    raise UserError(
        f"column {column.name}: {cells[row]!r} in row {row} can be {whole} or {cells[row]}: "
        f"remove separators between thousands, write all numbers with three decimals, or {advice}"
    )


def refuse_numbers(
    column: "pd.Series[Any]",
    decimal: str,
    advice: str,
    few: int = 0,
) -> None:
    """Refuse a column of text if most values are numbers, or more than 20 different ones.

    The others have to be corrected. Values with a unit count as numbers if there are more than a
    few different ones.
    """
    if decimal == "point":
        refuse_unclear(column, advice)
    counts = column[column != ""].value_counts()
    cells = counts.index.to_series().astype(str)
    plain = _parse(cells, decimal).notna()
    unclear = cells.str.fullmatch(NUMBER) & ~plain
    numbers = plain | unclear
    if len(cells) > few:
        numbers |= cells.str.fullmatch(WITH_UNIT if len(cells) > 20 else WITH_SHORT_UNIT)
    is_text = plain.all()  # as Parquet says
    are_few = counts[numbers].sum() <= counts.sum() / 2 and numbers.sum() <= 20
    if is_text or are_few:
        return
    others = cells[unclear] if unclear.any() else cells[~plain]
    row = first_row(column.isin(others))
    cell = str(column[row])
    why = "is not a number: correct it, empty the cell"
    if unclear.any():
        why = _what_is_unclear(cell, decimal)
    raise UserError(f"column {column.name}: {cell!r:.40} in row {row} {why}, or {advice}")


def _what_is_unclear(cell: str, decimal: str) -> str:
    """Say what a number with points or commas can be."""
    point = cell.replace(",", "")
    comma = cell.replace(".", "").replace(",", ".")
    has_thousands = "," in cell[: cell.rfind(".") + 1]  # as 1,100.10
    if decimal == "comma" or has_thousands or point == comma:
        return "has separators between thousands: remove them"
    return f"can be {point} or {comma}: rewrite the numbers, set data.decimal"


def _parse(
    cells: "pd.Series[str]",
    decimal: str,
) -> "pd.Series[float]":
    """Return the numbers in cells of text, NaN for other text."""
    if decimal == "comma":
        has_point = cells.str.contains(".", regex=False)
        cells = cells.str.replace(",", ".").mask(has_point)
    return pd.to_numeric(cells, errors="coerce")


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort names as numbers if all are, or else as text."""
    ordered = sorted(names)
    numbers = pd.to_numeric(pd.Series(ordered), errors="coerce")
    if np.isfinite(numbers).all():
        ordered.sort(key=float)
    return ordered


def unusual_values(
    numbers: Tensor,
    names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
) -> list[str]:
    """Return a line on values such as -999 or 9999, far from all others of their column.

    The numbers (n, columns) are standardized.
    """
    found = []
    for extremes in (numbers.amin(0), numbers.amax(0)):
        columns = zip(numbers.T, extremes, names, mean, std, strict=True)
        for column, extreme, name, center, width in columns:
            value = f"{float(extreme) * width + center:.6g}"
            if not re.fullmatch("-99+|999+", value):
                continue
            others = column[column != extreme]
            if len(others) and (others - extreme).abs().min() > others.max() - others.min():
                found.append(f"{value} in {name}")
    return [f"empty these cells if they stand for missing values: {listed(found)}"] * bool(found)


def first_row(chosen: "pd.Series[bool]") -> int:
    """Return the number of the first row that is chosen, in the file."""
    return int(chosen.index[chosen][0])


def listed(names: Iterable[str]) -> str:
    """Return the first names, separated by commas."""
    first = list(names)
    shown = ", ".join(first[:10])
    return f"{shown}, ..." if len(first) > 10 else shown
