"""Sequences: text as bytes, or time series; built-in ones, or your own files.

This file is yours to edit. Training needs `DataConfig`, `Spec`, `load` and `Prepare`; `describe`
and `load_test` are optional: see contracts.py.
"""

from dataclasses import dataclass
from importlib.resources import files as files_of
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_numeric_dtype
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError
from .tables import (
    as_numbers,
    as_texts,
    decode,
    first_row,
    listed,
    moments,
    read_file,
    refuse_empty,
    refuse_numbers,
    refuse_unclear,
    tidy,
    unusual_values,
)
from .text_files import library, own_files

DAYS = (
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%b %d, %Y",
)
FIRST_DAYS = (
    "%d.%m.%y",
    "%m/%d/%y",
    "%d/%m/%y",
    "%d-%b-%y",
    "%d %B %Y",
    "%B %d, %Y",
    "%m/%Y",
    "%b %Y",
    "%b-%y",
    "%B %Y",
)
"""Forms that are dates in the first column only: in others, months may repeat."""
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
YEAR_OR_MONTH = r"(?i)(?:19|20)\d\d|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
FORMS = ("ISO8601", *map("".join, product(DAYS, TIMES)))
FIRST_FORMS = (*FORMS, *map("".join, product(FIRST_DAYS, TIMES)))

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class DataConfig(Section):
    """Which text or time series to load, and the lengths of its windows."""

    kind: Literal["text", "series"] = "text"
    """text: predict the next byte; series: forecast the next rows."""
    path: Path | None = None
    """Text file, or folder of them, perhaps with `train`, `val` and `test`; or .csv, .tsv, .txt or
    .parquet with a row per time step, oldest first, where a missing value repeats the last one.
    null: the source code of Python's standard library, or the membrane voltage of a nerve cell."""
    val_fraction: float | None = within("(0, 1)", None)
    """Fraction for validation, the end of your own text or of a series; null: 0.02 or 0.2.

    No effect on text that has `val`, and on the built-in text.
    """
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction for the test split, the end after that for validation. No effect on text that has
    `test`, and on the built-in text."""
    context: int = within("[8, 1048576]", 128)
    """Text: context length, in bytes."""
    columns: tuple[str, ...] = ()
    """Series: input columns, which are also forecast; empty: all columns of numbers, but not a
    first one of whole numbers that rise, or with equal steps, such as times."""
    separator: Literal["auto", "comma", "semicolon", "tab", "pipe"] = "auto"
    """Series: what separates the columns of CSV; auto: found from the first lines."""
    decimal: Literal["point", "comma"] = "point"
    """Series: how numbers in CSV are written, 1.5 or 1,5."""
    encoding: str = "utf-8"
    """Encoding of your own text or CSV, such as latin-1 or utf-16."""
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
    left_out: tuple[str, ...] = ()  # columns of your own file, and its first rows
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


def load(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> tuple[Windows, Windows, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `spec` of a run, a series has its columns, means and standard deviations.
    """
    splits, found = _read(cfg, spec)
    train = _make_windows("training", splits[0], cfg)
    val = _make_windows("validation", splits[1], cfg)
    return train, val, spec or found


def load_test(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> Windows | None:
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
    columns = f"{len(spec.columns)} columns: {listed(spec.columns)}"
    if spec.left_out:
        columns += f"; left out: {listed(spec.left_out)}"
    if spec.gaps:
        columns += f"; {spec.gaps:,} missing values repeat the last one"
    windows = f"step {spec.step}; windows: {spec.context} rows forecast the next {spec.horizon}"
    first_rows = train_set.tensors[0][:, 0]
    unusual = unusual_values(first_rows, spec.columns, spec.mean, spec.std)
    return [columns, splits, windows, *unusual]


@dataclass
class Split:
    """Values of a split, and what they are; an empty span if there are none."""

    values: Tensor
    span: str


def _read(
    cfg: DataConfig,
    spec: Spec | None,
) -> tuple[list[Split], Spec]:
    """Return the splits for training, for validation and for the test, and the `Spec`."""
    if cfg.kind == "series":
        return _split_series(cfg, spec)
    splits = []
    files = library() if cfg.path is None else own_files(cfg.path)
    for text, part in zip(_read_text(files, cfg), files.values(), strict=True):
        values = torch.tensor(np.frombuffer(text, np.uint8))
        of_files = f" of {len(part):,} files" if len(part) > 1 else ""
        splits.append(Split(values, f"{len(text):,} bytes{of_files}" if text else ""))
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


def _read_text(
    files: dict[str, list[Path]],
    cfg: DataConfig,
) -> list[bytes]:
    """Return the text for training, for validation and for the test, in UTF-8.

    Without files for validation or the test, the end of the text is for these.
    """
    encoding = "utf-8" if cfg.path is None else cfg.encoding
    texts = []
    for split in files.values():
        parts = [decode(file.read_bytes(), file, encoding).encode() for file in split]
        texts.append(b"".join(parts))
    train, val, test = texts
    if val:
        return texts
    train_end, val_end = _find_ends(
        len(train),
        cfg.val_fraction or 0.02,
        0.0 if test else cfg.test_fraction,
    )
    return [
        train[:train_end],
        train[train_end:val_end],
        test or train[val_end:],
    ]


def _find_ends(
    count: int,
    val_fraction: float,
    test_fraction: float,
) -> tuple[int, int]:
    """Return where the training and the validation split end; the rest is the test split."""
    val_end = count - round(count * test_fraction)
    train_end = val_end - round(count * val_fraction)
    return train_end, val_end


# Series


def _split_series(
    cfg: DataConfig,
    spec: Spec | None,
) -> tuple[list[Split], Spec]:
    """Return the rows of a series, standardized in float64, and the `Spec`."""
    frame = _read_membrane()
    left_out: list[str] = []
    if cfg.path is not None:
        names = spec.columns if spec else cfg.columns
        frame, left_out = read_series(cfg.path, cfg, "data.path", names)
    train_end, val_end = _find_ends(
        len(frame),
        cfg.val_fraction or 0.2,
        cfg.test_fraction,
    )
    filled = frame.ffill()
    if spec is None:
        statistics = [moments(filled[name][:train_end]) for name in filled]
        spec = Spec(
            vocabulary=0,
            context=cfg.window,
            horizon=cfg.horizon,
            columns=tuple(frame.columns),
            mean=tuple(mean for mean, _ in statistics),
            std=tuple(std for _, std in statistics),
            left_out=tuple(left_out),
            step=_find_step(frame.index),
            gaps=int(frame.isna().to_numpy().sum()),
        )
    standardized = (filled - list(spec.mean)) / list(spec.std)
    rows = torch.tensor(standardized.to_numpy(), dtype=torch.float32)
    if train_end > 1 and (rows[:train_end] == rows[0]).all():
        raise UserError(
            f"{listed(spec.columns)}: the values are the same in each training row, so there "
            "is nothing to learn: choose other data.columns"
        )
    # the first row that a split forecasts is its own; the inputs before it may not be
    val_begin = max(train_end - cfg.window, 0)
    test_begin = max(val_end - cfg.window, 0)
    splits = [
        Split(rows[:train_end], _find_span(frame.index[:train_end])),
        Split(rows[val_begin:val_end], _find_span(frame.index[train_end:val_end])),
        Split(rows[test_begin:], _find_span(frame.index[val_end:])),
    ]
    return splits, spec


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
    cells = read_file(path, cfg, key, has_index=True)
    table = pd.DataFrame({name: tidy(cells[name]) for name in cells}, index=cells.index)
    refuse_empty(table, f"{key}={path}")
    dates = _find_dates(table)
    columns = {}
    for name in names or _find_columns(table, dates, cfg):
        if name not in table:
            raise UserError(f"{key}={path} has no column {name!r}; it has {listed(table.columns)}")
        if name in cfg.columns:
            refuse_unclear(table[name], "choose other data.columns")
        columns[name] = as_numbers(table[name])
        if columns[name].isna().all():
            raise UserError(f"column {name} has no value: choose other data.columns")
    if not columns:
        raise UserError(
            f"{key}={path} has no column of numbers other than one that counts the rows: "
            f"set data.columns; it has {listed(table.columns)}"
        )
    frame = pd.DataFrame(columns, index=table.index)
    used = [*frame] if dates is None else [*frame, dates.name]
    if dates is not None:
        frame.index = pd.DatetimeIndex(dates)
    is_complete = frame.notna().cummax().all(axis=1)
    left_out = [str(name) for name in table if name not in used]
    if not is_complete.iloc[0]:
        rows = f"the first {(~is_complete).sum():,} rows, where a column has no value yet"
        left_out.insert(0, rows)  # of many names, only the first are shown
    return frame[is_complete], left_out


def _find_columns(
    table: pd.DataFrame,
    dates: "pd.Series[Any] | None",
    cfg: DataConfig,
) -> list[str]:
    """Return the columns of numbers that are a series."""
    names = []
    for name in table:
        column = table[name]
        if dates is not None and name == dates.name:
            continue
        if not is_numeric_dtype(column):
            refuse_numbers(column, cfg.decimal, "choose data.columns")
            _refuse_falling(column)
        elif column.notna().any():
            names.append(str(name))
    is_first = names[:1] == [table.columns[0]]
    if is_first and _counts_rows(table[names[0]], len(names) == 1, dates is not None):
        return names[1:]
    return names


def _refuse_falling(texts: "pd.Series[str]") -> None:
    """Refuse texts with digits, such as 2024-W03, that fall from each row to the next."""
    has_digits = texts.str.contains(r"\d").all()
    if has_digits and texts.is_unique and texts.is_monotonic_decreasing and len(texts) > 2:
        raise UserError(
            f"column {texts.name} falls from {texts.iloc[0]!r:.40} to {texts.iloc[-1]!r:.40}, as "
            "if the newest row were the first: sort the rows, the oldest first, or choose "
            "data.columns"
        )


def _counts_rows(
    column: "pd.Series[Any]",
    is_only: bool,
    has_dates: bool,
) -> bool:
    """Whether these are whole numbers that rise, or others with equal steps, such as times.

    Beside dates, a few may not rise.
    """
    steps = column.diff()[1:]
    if steps.empty:
        return False
    has_equal_steps = not is_only and np.allclose(steps, steps.iloc[0], atol=0)
    if not ((column % 1 == 0).all() or has_equal_steps):
        return False
    rises = steps > 0
    if has_dates:
        return bool(rises.mean() > 0.9)
    if 0.9 < rises.mean() < 1 or (steps < 0).mean() > 0.9:
        row = first_row(~rises)
        raise UserError(
            f"column {column.name}: {column[row]:.15g} in row {row} is not after the value of the "
            "row above, as if times are not in order: sort the rows, the oldest first, or choose "
            "data.columns"
        )
    return bool(rises.all())


def _find_dates(table: pd.DataFrame) -> "pd.Series[pd.Timestamp] | None":
    """Return the first column of dates; refuse one in which they do not rise."""
    for place, name in enumerate(table):
        column = table[name]
        if is_numeric_dtype(column):
            if not column.dropna().between(19000101, 21001231).all():
                continue
            column = as_texts(column)  # 20240131 may be a date
            if place > 0 and not _are_ordered(_parse_dates(column, "%Y%m%d")):
                continue
        parsed = []
        for form in FORMS if place > 0 else FIRST_FORMS:
            if _parse_dates(column.head(100), form).notna().mean() > 0.5:
                parsed.append(_parse_dates(column, form))
        if not parsed and column.is_unique and column.str.contains(YEAR_OR_MONTH).all():
            parsed = _parse_other_dates(column)
        if parsed:  # 1/2/2024 has two formats
            dates = min(parsed, key=_oddity)
            _check_dates(dates)
            return dates
    return None


def _parse_other_dates(texts: "pd.Series[str]") -> list["pd.Series[pd.Timestamp]"]:
    """Return dates of any form, if they rise or fall from each row to the next."""
    if _parse_dates(texts.head(100), "mixed").isna().any():
        return []
    dates = _parse_dates(texts, "mixed")
    steps = dates.diff()[1:]
    nothing = pd.Timedelta(0)
    is_ordered = (steps > nothing).all() or (steps < nothing).all()
    return [dates] if is_ordered else []


def _oddity(dates: "pd.Series[pd.Timestamp]") -> tuple[int, pd.Timedelta]:
    """Return how many dates are missing or do not rise, and how much the steps differ."""
    wrong = dates.isna() | ~_rises(dates)
    steps = dates.diff()
    return int(wrong.sum()), steps.max() - steps.min()


def _rises(dates: "pd.Series[pd.Timestamp]") -> "pd.Series[bool]":
    """Say which dates are after the one above; the first one is."""
    rises = dates.diff() > pd.Timedelta(0)
    rises.iloc[0] = True
    return rises


def _are_ordered(dates: "pd.Series[pd.Timestamp]") -> bool:
    """Whether most dates rise, or all fall."""
    falls = dates.diff()[1:] < pd.Timedelta(0)
    return bool(_rises(dates).mean() > 0.9 or falls.all())


def _parse_dates(
    texts: "pd.Series[str]",
    form: str,
) -> "pd.Series[pd.Timestamp]":
    """Return dates without a time zone; NaT for other texts, such as the digits of a code."""
    is_code = texts.str.isdigit() & (texts.str.len() != 8)
    dates = pd.to_datetime(
        texts.mask(is_code),
        format=form,
        errors="coerce",
        utc=True,
    ).dt.tz_localize(None)
    if "%y" in form:  # 60 is read as 2060
        is_late = dates > pd.Timestamp.now() + pd.DateOffset(years=5)
        dates = dates.mask(is_late, dates - pd.DateOffset(years=100))
    return dates


def _check_dates(dates: "pd.Series[pd.Timestamp]") -> None:
    if dates.isna().any():
        row = first_row(dates.isna())
        raise UserError(f"column {dates.name}: there is no date in row {row}: add it")
    is_late = ~_rises(dates)
    if is_late.any():
        row = first_row(is_late)
        raise UserError(
            f"column {dates.name}: {dates[row]} in row {row} is not after the date of the row "
            "above: sort the rows, the oldest first, with one row per date"
        )
