"""Tables: breast cancer or diabetes from scikit-learn, or your own CSV or Parquet file.

This file is yours to edit; train.py uses `load`.
"""

import csv
import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
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

Batch = tuple[Tensor, ...]
SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")
SEPARATORS = {
    "comma": ",",
    "semicolon": ";",
    "tab": "\t",
    "pipe": "|",
}
MISSING = " is missing"
"""Ends the name of a column that is 1 where another has no value."""
FEW = 20
"""A target with more integers is for regression."""
NUMBER = r"[-+]?\d+([.,]\d{3})*([.,]\d+)?"
"""A number that may have separators between thousands."""
UNIT = r"([$€£¥%]|[a-zA-Z]{1,3})"
WITH_UNIT = rf"[$€£¥]\s?{NUMBER}|{NUMBER}\s?{UNIT}"


@dataclass(frozen=True)
class DataConfig(Section):
    """Which table to load, which column to predict, and how to treat the others."""

    path: Path | None = None
    """File with one sample per row: .csv, .tsv, .txt or .parquet; null: the data set of
    scikit-learn that `builtin` names."""
    builtin: Literal["breast_cancer", "diabetes"] = "breast_cancer"
    """breast_cancer: 569 rows, classes 0 (malignant) and 1 (benign); diabetes: 442 rows,
    regression."""
    val_path: Path | None = None
    """File with the rows for validation, in the columns of `path`; null: a fraction of the rows of
    `path`."""
    val_fraction: float = within("(0, 1)", 0.2, overridden_by="data.val_path")
    """Fraction of the rows for validation. A hash of its cells decides for each row."""
    test_path: Path | None = None
    """File with the rows of the test split; null: a fraction of the rows of `path`."""
    test_fraction: float = within("[0, 1)", 0.0, overridden_by="data.test_path")
    """Fraction of the rows for the test split."""
    separator: Literal["auto", "comma", "semicolon", "tab", "pipe"] = "auto"
    """What separates the columns of CSV; auto: found from the first lines."""
    decimal: Literal["point", "comma"] = "point"
    """How numbers in CSV are written, 1.5 or 1,5."""
    encoding: str = "utf-8"
    """Encoding of CSV, such as latin-1 or utf-16."""
    target: str = "target"
    """Column to predict."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """auto: classification if the target is text or has few distinct integers, else regression."""
    categorical: tuple[str, ...] = ()
    """Columns of numbers to treat as categories; text, dates and booleans always are."""
    ignore: tuple[str, ...] = ()
    """Columns to ignore, such as ids, or values known only after the target; those without a name
    always are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.val_path is None and self.val_fraction + self.test_fraction >= 1:
            self.refuse("test_fraction", "with data.val_fraction, it leaves no rows for training")


@dataclass(frozen=True)
class Spec:
    """How to read a table, from the training rows, and what the model needs to know."""

    numeric: tuple[str, ...]  # columns, and those that mark the missing values of others
    mean: tuple[float, ...]
    std: tuple[float, ...]
    categorical: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]  # with codes from 1; 0: in fewer than 3 rows
    classes: tuple[str, ...]  # none for regression
    target_mean: float = 0.0  # targets of regression are (value - target_mean) / target_std
    target_std: float = 1.0
    center: float = 0.0  # mean of the validation targets, standardized, for R2
    empty: tuple[str, ...] = ()  # columns without any value, which are left out


class Rows(TensorDataset):
    """Standardized numbers (n, numeric); codes (n, categorical); targets (n,)."""

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return tuple(column.index_select(0, chosen) for column in self.tensors)


class Prepare(nn.Module):
    """Prepares a batch on the device: rows are ready, and tables are not augmented."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return numbers, codes and targets."""
        return batch


def load(cfg: DataConfig, spec: Spec | None = None) -> tuple[Rows, Rows, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `spec` of a run, its columns, statistics, categories and classes are used.
    """
    table, (train, val, _) = _read_splits(cfg)
    if spec is None:
        spec = _find_spec(table, train, val, cfg)
    _check_columns(train, spec, cfg, "data.path")
    _check_columns(val, spec, cfg, "data.val_path")
    return _make_rows(train, spec, cfg), _make_rows(val, spec, cfg), spec


def load_test(cfg: DataConfig, spec: Spec | None = None) -> Rows | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    table, (train, val, test) = _read_splits(cfg)
    if spec is None:
        spec = _find_spec(table, train, val, cfg)
    if cfg.test_path is not None:
        test = read_table(cfg.test_path, cfg, "data.test_path")
    if test.empty:
        return None
    _check_columns(test, spec, cfg, "data.test_path")
    return _make_rows(test, spec, cfg)


def describe(
    train_set: Rows,
    val_set: Rows,
    spec: Spec,
) -> list[str]:
    """Return what was read, and how it was understood."""
    numbers = _numbers_of(spec)
    count = len(numbers) + len(spec.categorical) + len(spec.empty)
    columns = f"{count} columns: {len(numbers)} numbers, {len(spec.categorical)} categories"
    if spec.empty:
        columns += f", {len(spec.empty)} left out (empty: {_listed(spec.empty)})"
    rows = f"{len(train_set):,} rows for training, {len(val_set):,} for validation"
    if not spec.classes:
        target = f"mean {spec.target_mean:.6g}, standard deviation {spec.target_std:.6g}"
        return [f"{rows}; {columns}", f"regression: the target has the {target}"]
    train = train_set.tensors[2].bincount(minlength=len(spec.classes)).tolist()
    val = val_set.tensors[2].bincount(minlength=len(spec.classes)).tolist()
    classes = []
    for name, in_train, in_val in zip(spec.classes, train, val, strict=True):
        classes.append(f"{name} {in_train:,} + {in_val:,}")
    found = f"{len(classes)} classes: {_listed(classes)} (training + validation)"
    return [f"{rows}; {columns}", found]


def _numbers_of(spec: Spec) -> list[str]:
    """Return the columns of numbers, without those that mark missing values."""
    marks = {name + MISSING for name in spec.numeric}
    return [name for name in spec.numeric if name not in marks]


def _listed(names: Iterable[str]) -> str:
    """Return the first names, separated by commas."""
    first = list(names)
    shown = ", ".join(first[:10])
    return f"{shown}, ..." if len(first) > 10 else shown


# Files


def read_table(
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
    columns = {}
    for name in table:
        if name not in cfg.ignore:
            _check_cells(table[name])
        columns[name] = _tidy(table[name])
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


def _check_cells(column: "pd.Series[Any]") -> None:
    """Refuse cells that are no single value, and numbers that float32 has not."""
    if infer_dtype(column) in ("mixed", "bytes"):  # lists, structs
        row = _first_row(column.notna())
        raise UserError(
            f"column {column.name}: {column[row]!s:.40} in row {row} is neither a number "
            "nor text: add the column to data.ignore"
        )
    if not is_numeric_dtype(column):
        return
    is_large = column.abs() > np.finfo(np.float32).max
    if is_large.any():
        row = _first_row(is_large)
        raise UserError(
            f"column {column.name}: {column[row]} in row {row} is too large: "
            "correct it, empty the cell, or add the column to data.ignore"
        )


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


# Splits


def _read_splits(cfg: DataConfig) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """Return the table; and its rows for training, for validation and for the test."""
    if cfg.path is None:
        table = _read_builtin(cfg.builtin)
        _check_config(table, cfg, f"the built-in table {cfg.builtin}")
        splits = _draw_splits(table, cfg)
    else:
        table = read_table(cfg.path, cfg, "data.path")
        _check_config(table, cfg, f"data.path={cfg.path}")
        splits = _split_by_content(table, cfg)
    if cfg.val_path is not None:
        splits[1] = read_table(cfg.val_path, cfg, "data.val_path")
    for name, rows in zip(("training", "validation"), splits, strict=False):
        if rows.empty:
            raise UserError(
                f"none of the {len(table)} rows is for {name}, and equal rows are on one side: "
                "add rows, change data.val_fraction, or give data.val_path"
            )
    return table, splits


def _split_by_content(table: pd.DataFrame, cfg: DataConfig) -> list[pd.DataFrame]:
    """Split the rows of your own table by a hash of their cells.

    So a row stays where it is when others are added or removed, and equal rows are on the same
    side. Columns that are ignored count: options do not move rows.
    """
    hashes = pd.util.hash_pandas_object(table, index=False)
    places = hashes / 2**64  # from 0 to 1, the same on every machine
    val_end = cfg.val_fraction if cfg.val_path is None else 0.0
    test_end = val_end + cfg.test_fraction
    return [
        table[places >= test_end],
        table[places < val_end],
        table[(places >= val_end) & (places < test_end)],
    ]


def _read_builtin(name: str) -> pd.DataFrame:
    from sklearn import datasets  # here, because this takes a second

    if name == "breast_cancer":
        cancer: pd.DataFrame = datasets.load_breast_cancer(as_frame=True).frame
        return cancer.astype("float64")
    diabetes = datasets.load_diabetes(as_frame=True, scaled=False)
    frame: pd.DataFrame = diabetes.frame
    return frame.astype({"sex": int}).astype({"sex": str})


def _draw_splits(table: pd.DataFrame, cfg: DataConfig) -> list[pd.DataFrame]:
    """Draw the splits of a built-in table, with the same fraction of each class."""
    val = _draw(table, cfg.val_fraction, cfg)
    train = table.drop(val.index)
    test = _draw(train, cfg.test_fraction / (1 - cfg.val_fraction), cfg)
    return [train.drop(test.index), val, test]


def _draw(
    table: pd.DataFrame,
    fraction: float,
    cfg: DataConfig,
) -> pd.DataFrame:
    if _has_classes(table[cfg.target], cfg):
        classes = table.groupby(cfg.target)
        return classes.sample(frac=fraction, random_state=0)
    return table.sample(frac=fraction, random_state=0)


# Columns


def _check_config(
    table: pd.DataFrame,
    cfg: DataConfig,
    source: str,
) -> None:
    """Check that the columns that the config names exist, and are features or the target."""
    keys = {
        "target": (cfg.target,),
        "categorical": cfg.categorical,
        "ignore": cfg.ignore,
    }
    columns = _listed(map(str, table))
    for key, names in keys.items():
        for name in names:
            if name not in table:
                raise UserError(f"{source} has no column {name!r} (data.{key}); it has {columns}")
            if name == cfg.target and key != "target":
                raise UserError(f"data.{key} has the target {name!r}: remove it there")


def _check_columns(
    table: pd.DataFrame,
    spec: Spec,
    cfg: DataConfig,
    key: str,
) -> None:
    """Check that a table has the target and the columns of the training, and no others."""
    known = {cfg.target, *_numbers_of(spec), *spec.categorical}
    for name in table:
        is_other = name not in known and name not in cfg.ignore
        if is_other and not _is_missing(table[name]).all():
            raise UserError(
                f"{key} has a column {name!r}, which the training has not: "
                "remove it, or add it to data.ignore"
            )
    for name in sorted(known.difference(table)):
        raise UserError(f"{key} has no column {name!r}, which the training has: add it")


def _is_missing(column: "pd.Series[Any]") -> "pd.Series[bool]":
    return column.isna() if is_numeric_dtype(column) else column == ""


def _find_spec(
    table: pd.DataFrame,
    train: pd.DataFrame,
    val: pd.DataFrame,
    cfg: DataConfig,
) -> Spec:
    """Return the `Spec`: statistics of the training rows, and the names of the classes."""
    spec = _find_columns(table, train, cfg)
    target = table[cfg.target]
    _check_target(target)
    _check_varies(train[cfg.target], "training")
    if _has_classes(target, cfg):
        if not is_numeric_dtype(target) and target.nunique() > FEW:
            _refuse_numbers(target, cfg, "set data.task")
        return replace(spec, classes=_find_classes(target))
    mean, std = _moments(_as_numbers(train[cfg.target]))
    val_mean, _ = _moments(_as_numbers(val[cfg.target]))
    _check_varies(val[cfg.target], "validation")
    return replace(
        spec,
        target_mean=mean,
        target_std=std,
        center=(val_mean - mean) / std,
    )


def _find_columns(
    table: pd.DataFrame,
    train: pd.DataFrame,
    cfg: DataConfig,
) -> Spec:
    """Return a `Spec` of all columns but the target."""
    numeric = {}
    categories = {}
    empty = []
    for name in table.columns.drop([cfg.target, *cfg.ignore]):
        if _is_missing(table[name]).all():
            empty.append(name)
        elif name in cfg.categorical:
            categories[name] = _find_categories(train[name])
        elif is_numeric_dtype(table[name]):
            numeric[name] = _moments(train[name])
        else:
            _refuse_numbers(table[name], cfg, "add the column to data.categorical or data.ignore")
            categories[name] = _find_categories(train[name])
    if not numeric and not categories:
        raise UserError(f"there is no column from which to predict {cfg.target}: see data.ignore")
    for name in list(numeric):
        gaps = train[name].isna()
        if gaps.any():
            numeric[name + MISSING] = _moments(gaps)
    return Spec(
        numeric=tuple(numeric),
        mean=tuple(mean for mean, _ in numeric.values()),
        std=tuple(std for _, std in numeric.values()),
        categorical=tuple(categories),
        categories=tuple(categories.values()),
        classes=(),
        empty=tuple(empty),
    )


def _moments(column: "pd.Series[Any]") -> tuple[float, float]:
    """Return the mean and the standard deviation, in float64; 1 for a constant column."""
    values = column.astype("float64")
    mean = values.mean()
    if not values.min() < values.max():  # as also if all are missing
        return (0.0 if np.isnan(mean) else float(mean)), 1.0
    return float(mean), float(values.std(ddof=0))


def _find_categories(column: "pd.Series[Any]") -> tuple[str, ...]:
    """Return the values in 3 rows or more; refuse a column in which most rows have others."""
    texts = _as_texts(column)
    counts = texts.value_counts()
    frequent = counts.index[counts >= 3]
    is_rare = ~texts.isin(frequent)
    if is_rare.mean() > 0.5:
        row = _first_row(is_rare)
        raise UserError(
            f"column {column.name}: {texts[row]!r:.40} in row {row}, like most values, is in "
            "fewer than 3 rows, so it is no category: add the column to data.ignore"
        )
    return tuple(sorted(frequent))


def _refuse_numbers(
    column: "pd.Series[Any]",
    cfg: DataConfig,
    advice: str,
) -> None:
    """Refuse a column of text if most values are numbers: the others have to be corrected."""
    counts = column[column != ""].value_counts()
    cells = counts.index.to_series()
    plain = _parse(cells, cfg).notna()
    unclear = cells.str.fullmatch(NUMBER) & ~plain
    numbers = plain | unclear
    if len(cells) > FEW:
        numbers |= cells.str.fullmatch(WITH_UNIT)
    is_text = plain.all()  # as Parquet says
    if is_text or counts[numbers].sum() <= counts.sum() / 2:
        return
    others = cells[unclear] if unclear.any() else cells[~plain]
    row = _first_row(column.isin(others))
    cell = str(column[row])
    if unclear.any():
        point = cell.replace(",", "")
        comma = cell.replace(".", "").replace(",", ".")
        why = f"can be {point} or {comma}: rewrite the numbers, set data.decimal"
    else:
        why = "is not a number: correct it, empty the cell"
    raise UserError(f"column {column.name}: {cell!r:.40} in row {row} {why}, or {advice}")


def _parse(cells: "pd.Series[Any]", cfg: DataConfig) -> "pd.Series[Any]":
    """Return the numbers in cells of text, NaN for other text."""
    if cfg.decimal == "comma":
        has_point = cells.str.contains(".", regex=False)
        cells = cells.str.replace(",", ".").mask(has_point)
    return pd.to_numeric(cells, errors="coerce")


def _check_target(target: "pd.Series[Any]") -> None:
    if _is_missing(target).all():
        raise UserError(f"the target {target.name} is empty in each row: set data.target")
    _refuse_gaps(target)
    if target.nunique() < 2:
        raise UserError(
            f"the target {target.name} is {target.iloc[0]} in each row: "
            "set data.target, or add rows"
        )


def _refuse_gaps(target: "pd.Series[Any]") -> None:
    missing = _is_missing(target)
    if missing.any():
        row = _first_row(missing)
        raise UserError(
            f"the target {target.name} has no value in row {row}: add it, or remove the row "
            "(?, NA, None, null and nan mean no value)"
        )


def _has_classes(target: "pd.Series[Any]", cfg: DataConfig) -> bool:
    """Whether the task is classification."""
    if cfg.task != "auto":
        return cfg.task == "classification"
    if not is_numeric_dtype(target):
        return True
    most = min(FEW, len(target) / 5)
    return bool((target % 1 == 0).all()) and target.nunique() <= most


def _find_classes(target: "pd.Series[Any]") -> tuple[str, ...]:
    """Return the names of the classes, sorted by value if all are numbers."""
    texts = _as_texts(target)
    counts = texts.value_counts()
    if counts[counts == 1].sum() > len(target) / 2:
        row = target.index[0]
        raise UserError(
            f"the target {target.name} has classes of one row each, such as {texts[row]!r:.40} in "
            f"row {row}: set data.target or data.task"
        )
    names = sorted(counts.index)
    numbers = pd.to_numeric(pd.Series(names), errors="coerce")
    if np.isfinite(numbers).all():
        names.sort(key=float)
    return tuple(names)


def _check_varies(target: "pd.Series[Any]", split: str) -> None:
    if target.nunique() < 2:
        raise UserError(
            f"the target {target.name} is {target.iloc[0]} in each row for {split} "
            f"({len(target)} rows): add rows, or change data.val_fraction"
        )


# Tensors


def _make_rows(
    table: pd.DataFrame,
    spec: Spec,
    cfg: DataConfig,
) -> Rows:
    numbers, codes = encode(table, spec)
    targets = _encode_targets(table[cfg.target], spec)
    return Rows(numbers, codes, targets)


def encode(table: pd.DataFrame, spec: Spec) -> tuple[Tensor, Tensor]:
    """Return the standardized numbers, 0 if missing, and the codes of the categories."""
    numbers = np.zeros((len(table), len(spec.numeric)), np.float32)
    columns = zip(spec.numeric, spec.mean, spec.std, strict=True)
    for place, (name, mean, std) in enumerate(columns):
        # in float64, as large numbers, such as times, are equal in float32
        standardized = (_number_column(table, name) - mean) / std
        numbers[:, place] = standardized.fillna(0.0)
    codes = torch.zeros(
        len(table),
        len(spec.categorical),
        dtype=torch.int64,
    )
    for place, (name, known) in enumerate(zip(spec.categorical, spec.categories, strict=True)):
        found = pd.Index(known).get_indexer(pd.Index(_as_texts(table[name])))
        codes[:, place] = torch.from_numpy(found) + 1
    return torch.from_numpy(numbers), codes


def _number_column(table: pd.DataFrame, name: str) -> "pd.Series[float]":
    """Return a numeric column, or one that marks the missing values of another."""
    if name in table or not name.endswith(MISSING):
        return _as_numbers(table[name])
    numbers = _as_numbers(table[name.removesuffix(MISSING)])
    return numbers.isna().astype("float64")


def _encode_targets(column: "pd.Series[Any]", spec: Spec) -> Tensor:
    """Return the number of each class; or, in regression, standardized values, float32."""
    _refuse_gaps(column)
    if not spec.classes:
        values = (_as_numbers(column) - spec.target_mean) / spec.target_std
        return torch.tensor(values.to_numpy(np.float32))
    texts = _as_texts(column)
    numbers = pd.Index(spec.classes).get_indexer(pd.Index(texts))
    if -1 in numbers:
        place = int(numbers.argmin())
        raise UserError(
            f"column {column.name}: the class {texts.iloc[place]!r} in row {texts.index[place]} "
            "is none of the training: correct it, or remove the row"
        )
    return torch.from_numpy(numbers)


def _as_numbers(column: "pd.Series[Any]") -> "pd.Series[float]":
    """Return a column as float64; refuse text."""
    numbers = pd.to_numeric(column, errors="coerce")
    is_text = numbers.isna() & ~_is_missing(column)
    if is_text.any():
        row = _first_row(is_text)
        raise UserError(
            f"column {column.name}: {column[row]!r:.40} in row {row} is not a number: correct it"
        )
    return numbers.astype("float64")


def _as_texts(column: "pd.Series[Any]") -> "pd.Series[str]":
    """Return a column as text; whole numbers have no point, and missing ones are empty."""
    if not is_numeric_dtype(column):
        return column
    texts = {}
    for value in column.dropna().unique():
        texts[value] = str(int(value)) if value.is_integer() else str(value)
    return column.map(texts).fillna("").astype(str)
