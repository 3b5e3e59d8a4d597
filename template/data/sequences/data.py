"""Sequences: text as bytes, or time series; built-in ones, or your own files.

This file is yours to edit; train.py uses `load`.
"""

import csv
import io
import sysconfig
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError

VALIDATION = """__future__ __hello__ __phello__ _markupbase _py_warnings antigravity cgitb cmd
contextvars dis ensurepip json modulefinder operator secrets shlex sqlite3 struct this token tty
warnings"""
"""Modules of the standard library for validation, 2% of its bytes; they share no code with the
others."""
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
SYSTEM_FILES = {"Thumbs.db", "desktop.ini"}  # Windows puts them into folders
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
SEPARATORS = {
    "comma": ",",
    "semicolon": ";",
    "tab": "\t",
    "pipe": "|",
}
NUMBER = r"[-+]?\d+([.,]\d{3})*([.,]\d+)?"
"""A number that may have separators between thousands."""
UNIT = r"([$€£¥%]|[a-zA-Z]{1,3})"
WITH_UNIT = rf"[$€£¥]?\s?{NUMBER}\s?{UNIT}?"
DATE_FORMATS = (
    "ISO8601",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y",
    "%d/%m/%Y %H:%M",
)

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text or time series to load, and the lengths of its windows."""

    kind: Literal["text", "series"] = "text"
    """text: predict the next byte; series: forecast the next rows."""
    path: Path | None = None
    """Text file, or folder of them; or .csv, .tsv, .txt or .parquet with a row per time step,
    oldest first, where a missing value repeats the last one. null: the source code of Python's
    standard library, or the membrane voltage of a nerve cell."""
    val_fraction: float | None = within("(0, 1)", None)
    """Fraction for validation, the end of your own text or of a series; null: 0.02 or 0.2.

    Built-in text ignores it.
    """
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction for the test split, the end after that for validation; built-in text ignores it."""
    context: int = within("[8, 1048576]", 128)
    """Text: context length, in bytes."""
    columns: tuple[str, ...] = ()
    """Series: input columns, which are also forecast; empty: all columns of numbers, but not the
    first one if it counts the rows."""
    separator: Literal["auto", "comma", "semicolon", "tab", "pipe"] = "auto"
    """Series: what separates the columns of CSV; auto: found from the first lines."""
    decimal: Literal["point", "comma"] = "point"
    """Series: how numbers in CSV are written, 1.5 or 1,5."""
    encoding: str = "utf-8"
    """Series: encoding of CSV, such as latin-1 or utf-16."""
    window: int = within("[2, 1048576]", 64)
    """Series: number of input rows."""
    horizon: int = within("[1, 65536]", 16)
    """Series: number of rows to forecast."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.val_fraction or 0.2) + self.test_fraction >= 1:
            self.refuse("test_fraction", "with data.val_fraction, it leaves nothing for training")


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    vocabulary: int  # number of token ids; 0 for a series
    context: int  # number of input tokens, or of input rows of a series
    horizon: int = 0
    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()  # of each column over the training split
    std: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()  # columns of your own file
    step: str = "1 row"  # time between two rows
    gaps: int = 0  # missing values, which repeat the last one


class Windows(TensorDataset):
    """Windows of consecutive values.

    A batch is one tensor: (n, length), uint8; or (n, length, columns), float32.
    """

    in_memory = True

    def __init__(
        self,
        values: Tensor,
        length: int,
        stride: int,
        span: str,
    ) -> None:
        windows = values.unfold(0, length, stride)  # a view
        super().__init__(windows.movedim(-1, 1))
        self.span = span  # what is in it

    def __getitems__(self, indices: list[int]) -> Batch:
        windows = self.tensors[0]
        chosen = torch.as_tensor(indices)
        return (windows.index_select(0, chosen),)


class Prepare(nn.Module):
    """Prepares a batch on the device: splits inputs from targets; nothing is augmented."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return inputs and targets.

        Tokens and the next ones, (n, context), int64; or rows (n, window, columns) and the ones to
        forecast (n, horizon, columns). Both are contiguous.
        """
        values = batch[0]
        context = self.spec.context
        if self.spec.vocabulary:
            inputs = values[:, :-1].long()
            targets = values[:, 1:].long()
            return inputs, targets
        inputs = values[:, :context]
        targets = values[:, context:]
        return inputs.contiguous(), targets.contiguous()


def load(cfg: DataConfig, spec: Spec | None = None) -> tuple[Windows, Windows, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `spec` of a run, a series has its columns, means and standard deviations.
    """
    splits, found = _read(cfg, spec)
    train = _make_windows("training", splits[0], cfg)
    val = _make_windows("validation", splits[1], cfg)
    return train, val, spec or found


def load_test(cfg: DataConfig, spec: Spec | None = None) -> Windows | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    splits, _ = _read(cfg, spec)
    if not splits[2].span:
        return None
    return _make_windows("test", splits[2], cfg)


def describe(
    train_set: Windows,
    val_set: Windows,
    spec: Spec,
) -> list[str]:
    """Return what was read, and how it was understood."""
    splits = f"training: {train_set.span}; validation: {val_set.span}"
    if spec.vocabulary:
        return [f"{splits}; windows of {spec.context} bytes"]
    columns = f"{len(spec.columns)} columns: {_listed(spec.columns)}"
    if spec.left_out:
        columns += f"; left out: {_listed(spec.left_out)}"
    if spec.gaps:
        columns += f"; {spec.gaps:,} missing values repeat the last one"
    windows = f"step {spec.step}; windows: {spec.context} rows forecast the next {spec.horizon}"
    return [columns, splits, windows]


def _listed(names: Iterable[str]) -> str:
    """Return the first names, separated by commas."""
    first = list(names)
    shown = ", ".join(first[:10])
    return f"{shown}, ..." if len(first) > 10 else shown


@dataclass
class Split:
    """Values of a split, and what they are; an empty span if there are none."""

    values: Tensor
    span: str


def _read(cfg: DataConfig, spec: Spec | None) -> tuple[list[Split], Spec]:
    """Return the splits for training, for validation and for the test, and the `Spec`."""
    if cfg.kind == "series":
        return _split_series(cfg, spec)
    texts = _read_library() if cfg.path is None else _read_own_text(cfg, cfg.path)
    splits = []
    for text in texts:
        values = torch.tensor(np.frombuffer(text, np.uint8))
        splits.append(Split(values, f"{len(text):,} bytes" if text else ""))
    return splits, Spec(vocabulary=256, context=cfg.context)


def _make_windows(
    name: str,
    split: Split,
    cfg: DataConfig,
) -> Windows:
    length = cfg.context + 1
    stride = cfg.context
    what = "bytes"
    keys = "data.context + 1"
    if cfg.kind == "series":
        length = cfg.window + cfg.horizon
        stride = 1
        what = "rows"
        keys = "data.window + data.horizon"
    if len(split.values) < length:
        raise UserError(
            f"the {name} split has {len(split.values)} {what}, but a window has {length} ({keys}): "
            "add data, or change data.val_fraction"
        )
    return Windows(
        split.values,
        length,
        stride,
        split.span,
    )


# Text


def _read_library() -> list[bytearray]:
    """Return the source code of the standard library, without a test split."""
    train = bytearray()
    val = bytearray()
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        names = file.relative_to(root).parts
        if EXCLUDED.intersection(names):
            continue
        module = names[0].removesuffix(".py")
        split = val if module in VALIDATION.split() else train
        split.extend(file.read_bytes())
    return [train, val, bytearray()]


def _read_own_text(cfg: DataConfig, path: Path) -> list[bytearray]:
    """Return the bytes of your files, one after another; the end is for validation and the test."""
    if path == Path():  # also that of an empty string, as of a variable that is not set
        raise UserError("data.path is empty, or the current folder: give the folder's name")
    root = path.expanduser()
    if not root.exists():
        raise UserError(f"data.path={root} does not exist: give a text file, or a folder of them")
    files = [root] if root.is_file() else [*_find_files(root)]
    text = bytearray()
    for file in files:
        text.extend(file.read_bytes())
    if not text:
        raise UserError(f"data.path={root} has no text: give a text file, or a folder of them")
    train_end, val_end = _find_ends(
        len(text),
        cfg.val_fraction or 0.02,
        cfg,
    )
    return [
        text[:train_end],
        text[train_end:val_end],
        text[val_end:],
    ]


def _find_files(folder: Path) -> Iterable[Path]:
    """Yield the files of any name below a folder, without hidden ones and those of the system."""
    for file in sorted(folder.rglob("*")):
        names = file.relative_to(folder).parts
        is_hidden = any(name.startswith(".") for name in names)
        if file.is_file() and not is_hidden and file.name not in SYSTEM_FILES:
            yield file


def _find_ends(
    count: int,
    val_fraction: float,
    cfg: DataConfig,
) -> tuple[int, int]:
    """Return where the training and the validation split end; the rest is the test split."""
    val_end = count - round(count * cfg.test_fraction)
    train_end = val_end - round(count * val_fraction)
    return train_end, val_end


# Series


def _split_series(cfg: DataConfig, spec: Spec | None) -> tuple[list[Split], Spec]:
    """Return the rows of a series, standardized in float64, and the `Spec`."""
    frame = _read_membrane()
    left_out: list[str] = []
    if cfg.path is not None:
        names = spec.columns if spec else cfg.columns
        frame, left_out = read_series(cfg.path, cfg, "data.path", names)
    train_end, val_end = _find_ends(
        len(frame),
        cfg.val_fraction or 0.2,
        cfg,
    )
    filled = frame.ffill()
    if spec is None:
        spec = Spec(
            vocabulary=0,
            context=cfg.window,
            horizon=cfg.horizon,
            columns=tuple(frame.columns),
            mean=tuple(filled[:train_end].mean()),
            std=_find_stds(filled[:train_end]),
            left_out=tuple(left_out),
            step=_find_step(frame.index),
            gaps=int(frame.isna().to_numpy().sum()),
        )
    mean = pd.Series(spec.mean, index=frame.columns)
    std = pd.Series(spec.std, index=frame.columns)
    standardized = (filled - mean) / std
    rows = torch.tensor(standardized.to_numpy(), dtype=torch.float32)
    # the first row that a split forecasts is its own; the inputs before it may not be
    val_begin = max(train_end - cfg.window, 0)
    test_begin = max(val_end - cfg.window, 0)
    splits = [
        Split(rows[:train_end], _find_span(frame.index[:train_end])),
        Split(rows[val_begin:val_end], _find_span(frame.index[train_end:val_end])),
        Split(rows[test_begin:], _find_span(frame.index[val_end:])),
    ]
    return splits, spec


def _find_stds(train: pd.DataFrame) -> tuple[float, ...]:
    """Return standard deviations, 1 for a constant column."""
    varies = train.nunique() > 1
    if len(train) > 1 and not varies.any():
        raise UserError(
            f"{_listed(map(str, train))}: the values are the same in each training row, so there "
            "is nothing to learn: choose other data.columns"
        )
    return tuple(train.std(ddof=0).where(varies, 1.0))


def _find_span(index: "pd.Index[Any]") -> str:
    """Return the first and the last date, or number of a row."""
    if index.empty:
        return ""
    rows = "" if isinstance(index, pd.DatetimeIndex) else "rows "
    return f"{rows}{index[0]} to {index[-1]}"


def _find_step(index: "pd.Index[Any]") -> str:
    """Return the time between two rows, or the shortest and the longest one."""
    if not isinstance(index, pd.DatetimeIndex) or len(index) < 2:
        return "1 row"
    steps = index.to_series().diff()
    shortest, longest = (
        str(step).removeprefix("0 days ").removesuffix(" 00:00:00")
        for step in (steps.min(), steps.max())
    )
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _read_membrane() -> pd.DataFrame:
    """Return the voltage of a nerve cell while it fires, every 2 ms."""
    file = files_of("matplotlib") / "mpl-data/sample_data/membrane.dat"
    measured = np.frombuffer(file.read_bytes(), np.float32)
    volts = measured[1000:11000:4].astype(np.float64)
    return pd.DataFrame({"millivolts": 100 * volts})


def read_series(
    path: Path,
    cfg: DataConfig,
    key: str,
    names: tuple[str, ...],
) -> tuple[pd.DataFrame, list[str]]:
    """Return these columns of a file, or all that have numbers; and the names of the others.

    The first row has a value in each column, and the index are dates, if the file has any.
    """
    table = _read_table(path, cfg, key)
    dates = _find_dates(table)
    if dates is not None:
        _check_dates(dates)
    columns = {}
    for name in names or _find_columns(table, dates):
        if name not in table:
            raise UserError(
                f"{key}={path} has no column {name!r}; it has {_listed(map(str, table))}"
            )
        columns[name] = _as_numbers(table[name])
    if not columns:
        raise UserError(
            f"{key}={path} has no column of numbers other than one that counts the rows: "
            f"set data.columns; it has {_listed(map(str, table))}"
        )
    frame = pd.DataFrame(columns, index=table.index)
    used = [*frame] if dates is None else [*frame, dates.name]
    if dates is not None:
        frame.index = pd.DatetimeIndex(dates)
    is_complete = frame.notna().cummax().all(axis=1)
    return frame[is_complete], [str(name) for name in table if name not in used]


def _find_columns(table: pd.DataFrame, dates: "pd.Series[Any] | None") -> list[str]:
    """Return the columns of numbers that are a series."""
    names = []
    for place, name in enumerate(table):
        column = table[name]
        if dates is not None and name == dates.name:
            continue
        if not is_numeric_dtype(column):
            _refuse_numbers(column)
        elif column.notna().any() and not (place == 0 and _counts_rows(column)):
            names.append(str(name))
    return names


def _counts_rows(column: "pd.Series[Any]") -> bool:
    """Whether these are 0, 1, 2, ..., or other whole numbers in equal steps, such as times."""
    steps = column.diff()[1:]
    return bool((column % 1 == 0).all()) and steps.nunique() == 1 and steps.iloc[0] != 0


def _refuse_numbers(column: "pd.Series[Any]") -> None:
    """Refuse a column of text if most values are numbers."""
    texts = column[column != ""]
    if texts.str.fullmatch(WITH_UNIT).mean() > 0.5:
        _as_numbers(column)


def _as_numbers(column: "pd.Series[Any]") -> "pd.Series[float]":
    """Return a column as float64; refuse text, and numbers that float32 has not."""
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    is_text = numbers.isna() & column.notna() & (column.astype(str) != "")
    is_large = numbers.abs() > np.finfo(np.float32).max
    if is_text.any():
        row = _first_row(is_text)
        raise UserError(
            f"column {column.name}: {column[row]!r:.40} in row {row} is not a number: "
            "correct it, empty the cell, set data.decimal, or choose data.columns"
        )
    if is_large.any():
        row = _first_row(is_large)
        raise UserError(
            f"column {column.name}: {numbers[row]} in row {row} is too large: "
            "correct it, empty the cell, or choose data.columns"
        )
    if numbers.isna().all():
        raise UserError(f"column {column.name} has no value: choose other data.columns")
    return numbers


def _find_dates(table: pd.DataFrame) -> "pd.Series[pd.Timestamp] | None":
    """Return the first column of dates, NaT for other text."""
    for name in table:
        if is_numeric_dtype(table[name]):
            continue
        for form in DATE_FORMATS:
            first = _parse_dates(table[name].head(100), form)
            if first.notna().mean() > 0.5:
                return _parse_dates(table[name], form)
    return None


def _parse_dates(texts: "pd.Series[str]", form: str) -> "pd.Series[pd.Timestamp]":
    dates = pd.to_datetime(
        texts,
        format=form,
        errors="coerce",
        utc=True,
    )
    return dates.dt.tz_localize(None)


def _check_dates(dates: "pd.Series[pd.Timestamp]") -> None:
    if dates.isna().any():
        row = _first_row(dates.isna())
        raise UserError(f"column {dates.name}: there is no date in row {row}: add it")
    steps = dates.diff()
    is_earlier = steps < pd.Timedelta(0)
    if is_earlier.any():
        row = _first_row(is_earlier)
        raise UserError(
            f"column {dates.name}: {dates[row]} in row {row} is before the date of the row above: "
            "sort the rows, the oldest first"
        )
    is_equal = steps == pd.Timedelta(0)
    if is_equal.any():
        row = _first_row(is_equal)
        raise UserError(
            f"column {dates.name}: {dates[row]} in row {row} repeats the date of the row above: "
            "keep one row per date, or remove the column"
        )


# Files


def _read_table(
    path: Path,
    cfg: DataConfig,
    key: str,
) -> pd.DataFrame:
    """Return the columns of a file as float64, NaN if missing; or as text, "" if missing.

    The index is the number of the row in the file, where the header of CSV is row 1.
    """
    file = _existing_file(path, key)
    if file.suffix.lower() == ".parquet":
        table = _read_parquet(file)
        first_row = 1
    else:
        table = _read_csv(file, cfg)
        first_row = 2
    table = table.set_axis(pd.RangeIndex(first_row, len(table) + first_row))
    columns = {name: _tidy(table[name]) for name in table}
    return pd.DataFrame(columns, index=table.index)


def _existing_file(path: Path, key: str) -> Path:
    """Return a file that exists, with the home folder instead of `~`."""
    kinds = ", ".join(SUFFIXES)
    if path == Path():  # also that of an empty string, as of a variable that is not set
        raise UserError(f"{key} is empty, or the current folder: give a file ({kinds})")
    file = path.expanduser()
    if not file.exists():
        raise UserError(f"{key}={file} does not exist: give a file ({kinds})")
    if file.is_dir() or file.suffix.lower() not in SUFFIXES:
        raise UserError(f"{key}={file} is no table: give a file ({kinds})")
    return file


def _read_parquet(file: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the table {file} ({_first_line(error)})") from error
    if not isinstance(table.index, pd.RangeIndex):  # dates
        table = table.reset_index()
    names = [str(name) for name in table.columns]
    _check_names(names, file)
    return table.set_axis(names, axis=1)


def _read_csv(file: Path, cfg: DataConfig) -> pd.DataFrame:
    """Return the columns that have a name."""
    content = file.read_bytes()
    text = _decode(content, file, cfg)
    header, separator = _find_header(file, text, cfg)
    _check_names([name for name in header if name], file)
    # pandas needs a name for each column
    names = [name or f"Unnamed: {number}" for number, name in enumerate(header)]
    try:
        with warnings.catch_warnings():
            # of rows that have more cells than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                io.BytesIO(content),
                sep=separator,
                decimal="," if cfg.decimal == "comma" else ".",
                encoding=cfg.encoding,
                header=0,
                names=names,
                index_col=False,
                na_values="?",
                skipinitialspace=True,
                low_memory=False,
            )
    except pd.errors.ParserWarning:
        raise UserError(
            f"{file} has rows with more cells than the header: quote cells that contain "
            f"the separator {separator!r}, or set data.separator"
        ) from None
    except ValueError as error:
        raise UserError(
            f"cannot read the table {file} ({_first_line(error)}): fix it, or set data.separator"
        ) from error
    named = [name for name in names if not name.startswith("Unnamed: ")]
    return table[named]


def _decode(
    content: bytes,
    file: Path,
    cfg: DataConfig,
) -> str:
    try:
        text = content.decode(cfg.encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not {cfg.encoding} at byte {error.start}: set data.encoding"
        ) from None
    except LookupError:
        raise UserError(
            f"data.encoding={cfg.encoding} is none of Python's: give utf-8, latin-1 or utf-16"
        ) from None
    return text.removeprefix("\ufeff")


def _find_header(
    file: Path,
    text: str,
    cfg: DataConfig,
) -> tuple[list[str], str]:
    """Return the names of the columns, and what separates them."""
    lines = [line for line in text.split("\n", 20)[:20] if line.strip()]
    if not lines:
        raise UserError(f"cannot read the table {file} (it is empty)")
    name: str = cfg.separator
    if name == "auto":
        name = _find_separator(file, lines, cfg)
    separator = SEPARATORS[name]
    header = _split_lines(lines, separator)[0]
    return [cell.strip() for cell in header], separator


def _find_separator(
    file: Path,
    lines: list[str],
    cfg: DataConfig,
) -> str:
    """Return what the header has; if it has several, what gives rows of the same length."""
    usual = "comma"
    names = set(SEPARATORS)
    if cfg.decimal == "comma":
        usual = "semicolon"
        names.remove("comma")
    found = []
    even = []
    for name in names:
        lengths = [len(row) for row in _split_lines(lines, SEPARATORS[name])]
        if lengths[0] > 1:
            found.append(name)
            even += [name] if len(set(lengths)) == 1 else []
    if len(found) > 1:
        found = even
        if len(even) != 1:
            raise UserError(f"the columns of {file} have no clear separator: set data.separator")
    return found[0] if found else usual


def _split_lines(lines: list[str], separator: str) -> list[list[str]]:
    return list(
        csv.reader(
            lines,
            delimiter=separator,
            skipinitialspace=True,
        )
    )


def _check_names(names: list[str], file: Path) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{file} has several columns {name!r}: rename or remove them")


def _tidy(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column as float64, NaN if missing; or as text without blanks, "" if missing."""
    kind = infer_dtype(column)
    is_number = is_numeric_dtype(column) and not is_bool_dtype(column)
    if is_number or kind in ("decimal", "integer", "empty"):  # these may be Python objects
        return column.astype("float64")
    texts = column.dropna().astype(str).str.strip()
    return texts.reindex(column.index, fill_value="")


def _first_row(chosen: "pd.Series[bool]") -> int:
    """Return the number of the first row that is chosen, in the file."""
    return int(chosen.index[chosen][0])


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0]
    return line.removeprefix("Error tokenizing data. C error: ")
