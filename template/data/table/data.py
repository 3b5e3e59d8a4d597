"""Tables: breast cancer or diabetes from scikit-learn, or your own CSV or Parquet file.

This file is yours to edit. Training needs `DataConfig`, `Spec`, `load` and `Prepare`; `describe`
and `load_test` are optional: see contracts.py.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pandas.api.types import infer_dtype, is_numeric_dtype
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError
from .tables import (
    NUMBER,
    as_numbers,
    as_texts,
    find_categories,
    first_row,
    is_missing,
    listed,
    moments,
    read_file,
    refuse_empty,
    refuse_numbers,
    refuse_unclear,
    sort_names,
    tidy,
    unusual_values,
)

Batch = tuple[Tensor, ...]
MISSING = " is missing"
"""Ends the name of a column that is 1 where another has no value."""
FEW = 20
"""A target with more integers is for regression; more values with a unit are no categories."""
FEWEST = 10
SAMPLE = 1_000
"""Rows, at least and at most, that show whether the target follows from a column."""


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

    ignored: tuple[str, ...] = ()  # columns

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
    table, splits = _read(cfg)
    if spec is None:
        spec = _find_spec(table, splits, cfg)
    train = _make_rows(splits["train"], spec, cfg, "data.path")
    val = _make_rows(splits["val"], spec, cfg, "data.val_path")
    train.ignored = cfg.ignore
    return train, val, spec


def load_test(cfg: DataConfig, spec: Spec | None = None) -> Rows | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    table, splits = _read(cfg)
    if spec is None:
        spec = _find_spec(table, splits, cfg)
    test = splits["test"]
    if cfg.test_path is not None:
        test = read_table(cfg.test_path, cfg, "data.test_path")
        refuse_empty(test, f"data.test_path={cfg.test_path}")
    return None if test.empty else _make_rows(test, spec, cfg, "data.test_path")


def describe(
    train_set: Rows,
    val_set: Rows,
    spec: Spec,
) -> list[str]:
    """Return what was read, and how it was understood."""
    numbers = len(_numbers_of(spec))
    categories = len(spec.categorical)
    count = numbers + categories + len(spec.empty)
    columns = f"{count} columns: {numbers} numbers, {categories} categories"
    if categories:
        columns += f" ({listed(spec.categorical)})"
    if spec.empty:
        columns += f", {len(spec.empty)} left out (empty: {listed(spec.empty)})"
    if train_set.ignored:
        columns += f", {len(train_set.ignored)} ignored ({listed(train_set.ignored)})"
    rows = f"{len(train_set):,} rows for training, {len(val_set):,} for validation; {columns}"
    lines = unusual_values(train_set.tensors[0], spec.numeric, spec.mean, spec.std)
    lines += _copies_of_target(train_set, spec)
    lines += _unlike_training(train_set, val_set, spec)
    if not spec.classes:
        target = f"mean {spec.target_mean:.6g}, standard deviation {spec.target_std:.6g}"
        return [rows, f"regression: the target has the {target}", *lines]
    counts = []
    for part, split in ((train_set, "training"), (val_set, "validation")):
        rows_of = part.tensors[2].bincount(minlength=len(spec.classes)).tolist()
        none = [name for name, count in zip(spec.classes, rows_of, strict=True) if not count]
        if none:
            lines.append(f"no row for {split} has these classes: {listed(none)}")
        counts.append(rows_of)
    classes = []
    for name, in_train, in_val in zip(spec.classes, *counts, strict=True):
        classes.append(f"{name} ({in_train:,} + {in_val:,})")
    found = f"{len(classes)} classes: {listed(classes)} for training + validation"
    return [rows, found, *lines]


def _copies_of_target(rows: Rows, spec: Spec) -> list[str]:
    """Return a line on columns of which the target is a linear function, or nothing."""
    if len(rows) < FEWEST:
        return []
    every = max(1, len(rows) // SAMPLE)  # a file may be sorted
    numbers, codes, targets = (part[::every].double() for part in rows.tensors)
    columns = torch.cat([numbers, codes], dim=1)
    columns -= columns.mean(0)
    targets -= targets.mean()
    covariance = (columns * targets.unsqueeze(1)).sum(0)
    largest = (columns.square().sum(0) * targets.square().sum()).sqrt()
    is_copy = covariance.abs() > largest * (1 - 1e-9)
    names = [*spec.numeric, *spec.categorical]
    found = [name for name, copies in zip(names, is_copy.tolist(), strict=True) if copies]
    if not found:
        return []
    return [f"the target follows from {listed(found)} alone: if that is a copy, see data.ignore"]


def _unlike_training(train: Rows, val: Rows, spec: Spec) -> list[str]:
    """Return lines on columns that count the rows, and on rows that are not fit for validation."""
    numbers = train.tensors[0]
    others, codes, _ = val.tensors
    counts = (numbers[1:] > numbers[:-1]).all(0) & (len(train) >= FEWEST)
    low, high = numbers.aminmax(dim=0)
    is_outside = (others.amin(0) > high) | (others.amax(0) < low)
    is_new = (codes == 0).double().mean(0) > 0.5
    lines = []
    for names, chosen, what in (
        (spec.numeric, counts, "rise from each row to the next: if they count rows, ignore them"),
        (spec.numeric, is_outside, "have no value for validation in the range of the training"),
        (
            spec.categorical,
            is_new,
            "have mostly categories for validation that fewer than 3 rows for training have",
        ),
    ):
        found = [name for name, is_chosen in zip(names, chosen.tolist(), strict=True) if is_chosen]
        if found:
            lines.append(f"these columns {what}: {listed(found)}")
    copies = int(torch.isin(_keys(val), _keys(train)).sum())
    if copies:
        lines.append(
            f"{copies:,} of {len(val):,} rows for validation are equal to one for training"
        )
    return lines


def _keys(rows: Rows) -> Tensor:
    """Return a hash of each row."""
    keys = torch.zeros(len(rows), dtype=torch.int64)
    for part in rows.tensors:
        bits = part.view(torch.int32) if part.is_floating_point() else part
        for column in bits.unsqueeze(1).flatten(1).unbind(1):
            keys.mul_(6364136223846793005).add_(column)  # modulo 2^64
    return keys


def _numbers_of(spec: Spec) -> list[str]:
    """Return the columns of numbers, without those that mark missing values."""
    marks = {name + MISSING for name in spec.numeric}
    return [name for name in spec.numeric if name not in marks]


def read_table(
    path: Path,
    cfg: DataConfig,
    key: str,
) -> pd.DataFrame:
    """Return the columns of a file as float64, NaN if missing; or as text, "" if missing.

    The index is the number of the row in the file, where the header of CSV is row 1.
    """
    table = read_file(path, cfg, key)
    columns = {}
    for name in table:
        column = table[name]
        if name not in cfg.ignore and infer_dtype(column) in ("mixed", "bytes"):  # such as lists
            row = first_row(column.notna())
            raise UserError(
                f"column {name}: {column[row]!s:.40} in row {row} is neither a number nor text: "
                "add the column to data.ignore"
            )
        columns[name] = tidy(column)
    return pd.DataFrame(columns, index=table.index, copy=False)


# Splits


def _read(cfg: DataConfig) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """Return the table, and its rows for `train`, `val` and `test`."""
    if cfg.path is None:
        table = _read_builtin(cfg.builtin)
        _check_config(table, cfg, f"the built-in table {cfg.builtin}")
        splits = _draw_splits(table, cfg)
    else:
        table = read_table(cfg.path, cfg, "data.path")
        refuse_empty(table, f"data.path={cfg.path}")
        _check_config(table, cfg, f"data.path={cfg.path}")
        splits = _split_by_content(table, cfg)
    if cfg.val_path is not None:
        splits["val"] = read_table(cfg.val_path, cfg, "data.val_path")
        refuse_empty(splits["val"], f"data.val_path={cfg.val_path}")
        _refuse_empty_columns(splits["train"], splits["val"], cfg)
        only_target = replace(cfg, categorical=(), ignore=())
        _check_config(splits["val"], only_target, f"data.val_path={cfg.val_path}")
    for split, name in (("train", "training"), ("val", "validation")):
        if splits[split].empty:
            raise UserError(
                f"none of the {len(table)} rows is for {name}, and equal rows are on one side: "
                "add rows, change data.val_fraction, or give data.val_path"
            )
    return table, splits


def _refuse_empty_columns(
    train: pd.DataFrame,
    val: pd.DataFrame,
    cfg: DataConfig,
) -> None:
    """Refuse a file for validation without a value in a column that most training rows have."""
    for name in train.columns.intersection(val.columns).difference([*cfg.ignore]):
        if is_missing(val[name]).all() and is_missing(train[name]).mean() < 0.5:
            raise UserError(
                f"column {name!r} is empty in data.val_path, but not in the training data: fill "
                "it, or add it to data.ignore"
            )


def _split_by_content(
    table: pd.DataFrame,
    cfg: DataConfig,
) -> dict[str, pd.DataFrame]:
    """Split the rows of your own table by a hash of their cells.

    So a row stays where it is when others are added or removed, and equal rows are on the same
    side. Columns that are ignored count: options do not move rows.
    """
    hashes = pd.util.hash_pandas_object(table, index=False)
    places = hashes / 2**64  # from 0 to 1, the same on every machine
    val_end = cfg.val_fraction if cfg.val_path is None else 0.0
    test_end = val_end + cfg.test_fraction
    return {
        "train": table[places >= test_end],
        "val": table[places < val_end],
        "test": table[(places >= val_end) & (places < test_end)],
    }


def _read_builtin(name: str) -> pd.DataFrame:
    from sklearn import datasets  # here, because this takes a second

    if name == "breast_cancer":
        cancer: pd.DataFrame = datasets.load_breast_cancer(as_frame=True).frame
        return cancer.astype("float64")
    diabetes = datasets.load_diabetes(as_frame=True, scaled=False)
    frame: pd.DataFrame = diabetes.frame
    return frame.astype({"sex": int}).astype({"sex": str})


def _draw_splits(
    table: pd.DataFrame,
    cfg: DataConfig,
) -> dict[str, pd.DataFrame]:
    """Draw the splits of a built-in table, with the same fraction of each class."""
    has_classes = _has_classes(table[cfg.target], cfg)

    def draw(
        rows: pd.DataFrame,
        fraction: float,
    ) -> pd.DataFrame:
        if has_classes:
            return rows.groupby(cfg.target).sample(frac=fraction, random_state=0)
        return rows.sample(frac=fraction, random_state=0)

    val = draw(table, cfg.val_fraction)
    train = table.drop(val.index)
    test = draw(train, cfg.test_fraction / (1 - cfg.val_fraction))
    return {"train": train.drop(test.index), "val": val, "test": test}


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
    columns = listed(map(str, table))
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
    for name in sorted(known.difference(table)):
        raise UserError(f"{key} has no column {name!r}, which the training has: add it")
    for name in table.columns.difference([*known, *cfg.ignore]):
        if not is_missing(table[name]).all():
            raise UserError(
                f"{key} has a column {name!r}, which the training has not: "
                "remove it, or add it to data.ignore"
            )


def _find_spec(
    table: pd.DataFrame,
    splits: dict[str, pd.DataFrame],
    cfg: DataConfig,
) -> Spec:
    """Return the `Spec`: statistics of the training rows, and the names of the classes."""
    target = table[cfg.target]
    train = splits["train"][cfg.target]
    val = splits["val"][cfg.target]
    _refuse_gaps(target)
    _check_varies(train, "training")
    spec = _find_columns(table, splits["train"], cfg)
    if _has_classes(target, cfg):
        return replace(spec, classes=_find_classes(target, cfg))
    refuse_unclear(target, "choose another target")
    mean, std = moments(as_numbers(train))
    val_mean, _ = moments(as_numbers(val))
    _check_varies(val, "validation")
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
        column = table[name]
        if is_missing(column).all():
            empty.append(name)
        elif is_numeric_dtype(column) and name not in cfg.categorical:
            numeric[name] = moments(as_numbers(train[name]))
        else:
            if name not in cfg.categorical:
                advice = "add the column to data.categorical or data.ignore"
                refuse_numbers(column, cfg.decimal, advice, FEW)
            categories[name] = find_categories(train[name])
    if not numeric and not categories:
        raise UserError(f"there is no column from which to predict {cfg.target}: see data.ignore")
    for name in list(numeric):
        gaps = train[name].isna()
        if gaps.any():
            numeric[name + MISSING] = moments(gaps)
    return Spec(
        numeric=tuple(numeric),
        mean=tuple(mean for mean, _ in numeric.values()),
        std=tuple(std for _, std in numeric.values()),
        categorical=tuple(categories),
        categories=tuple(categories.values()),
        classes=(),
        empty=tuple(empty),
    )


def _has_classes(
    target: "pd.Series[Any]",
    cfg: DataConfig,
) -> bool:
    """Whether the task is classification."""
    if cfg.task != "auto":
        return cfg.task == "classification"
    if not is_numeric_dtype(target):
        return True
    most = min(FEW, len(target) / 5)
    return bool((target % 1 == 0).all()) and target.nunique() <= most


def _find_classes(
    target: "pd.Series[Any]",
    cfg: DataConfig,
) -> tuple[str, ...]:
    """Return the names of the classes, sorted by value if all are numbers."""
    texts = as_texts(target)
    names = texts.unique()
    if cfg.task == "auto" and (len(names) > FEW or texts.str.fullmatch(NUMBER).all()):
        refuse_numbers(texts, cfg.decimal, "set data.task", FEW)
    is_single = ~texts.duplicated(keep=False)
    if is_single.mean() > 0.5:
        row = first_row(is_single)
        raise UserError(
            f"the target {target.name} has classes of one row each, such as {texts[row]!r:.40} in "
            f"row {row}: set data.target or data.task"
        )
    return tuple(sort_names(names))


def _refuse_gaps(target: "pd.Series[Any]") -> None:
    missing = is_missing(target)
    if missing.any():
        row = first_row(missing)
        raise UserError(
            f"the target {target.name} has no value in row {row}: add it, remove the row, or set "
            "data.target (?, NA, None, null and nan mean no value)"
        )


def _check_varies(
    target: "pd.Series[Any]",
    split: str,
) -> None:
    if target.nunique() < 2:
        raise UserError(
            f"the target {target.name} is {as_texts(target).iloc[0]} in each row for {split} "
            f"({len(target)} rows): add rows, change data.val_fraction, or set data.target"
        )


# Tensors


def _make_rows(
    table: pd.DataFrame,
    spec: Spec,
    cfg: DataConfig,
    key: str,
) -> Rows:
    _check_columns(table, spec, cfg, key)
    numbers, codes = encode(table, spec)
    targets = _encode_targets(table[cfg.target], spec)
    return Rows(numbers, codes, targets)


def encode(
    table: pd.DataFrame,
    spec: Spec,
) -> tuple[Tensor, Tensor]:
    """Return the standardized numbers, 0 if missing, and the codes of the categories."""
    numbers = np.zeros((len(table), len(spec.numeric)), np.float32)
    columns = zip(spec.numeric, spec.mean, spec.std, strict=True)
    for place, (name, mean, std) in enumerate(columns):
        # in float64, as large numbers, such as times, are equal in float32
        standardized = (_number_column(table, name) - mean) / std
        numbers[:, place] = standardized.fillna(0.0)
    codes = np.zeros((len(table), len(spec.categorical)), np.int64)
    for place, (name, known) in enumerate(zip(spec.categorical, spec.categories, strict=True)):
        texts = as_texts(table[name])
        codes[:, place] = pd.Index(known).get_indexer(pd.Index(texts)) + 1
    return torch.from_numpy(numbers), torch.from_numpy(codes)


def _number_column(
    table: pd.DataFrame,
    name: str,
) -> "pd.Series[float]":
    """Return a numeric column, or one that marks the missing values of another."""
    if name in table or not name.endswith(MISSING):
        return as_numbers(table[name])
    numbers = as_numbers(table[name.removesuffix(MISSING)])
    return numbers.isna().astype("float64")


def _encode_targets(
    column: "pd.Series[Any]",
    spec: Spec,
) -> Tensor:
    """Return the number of each class; or, in regression, standardized values, float32."""
    _refuse_gaps(column)
    if not spec.classes:
        values = (as_numbers(column) - spec.target_mean) / spec.target_std
        return torch.tensor(values.to_numpy(np.float32))
    texts = as_texts(column)
    is_new = ~texts.isin(spec.classes)
    if is_new.any():
        row = first_row(is_new)
        raise UserError(
            f"column {column.name}: the class {texts[row]!r} in row {row} is none of the training: "
            "correct it, or remove the row"
        )
    numbers = pd.Index(spec.classes).get_indexer(pd.Index(texts))
    return torch.from_numpy(numbers)
