"""Tables: breast cancer or diabetes from scikit-learn, or your own CSV or Parquet file.

This file is yours to edit; train.py uses `load`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError

Batch = tuple[Tensor, ...]
MISSING = " is missing"
"""Ends the name of a column that is 1 where another has no value."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which table to load, which column to predict, and how to treat the others."""

    path: Path | None = None
    """CSV or Parquet file with one sample per row; null: the data set of scikit-learn that
    `builtin` names."""
    builtin: Literal["breast_cancer", "diabetes"] = "breast_cancer"
    """breast_cancer: 569 rows, classes 0 (malignant) and 1 (benign); diabetes: 442 rows,
    regression."""
    val_path: Path | None = None
    """File with the rows for validation, in the columns of `path`; null: a fraction of the rows of
    `path`."""
    val_fraction: float = within("(0, 1)", 0.2, overridden_by="data.val_path")
    """Fraction of the rows for validation, stratified by class in classification."""
    test_path: Path | None = None
    """File with the rows of the test split; null: a fraction of the rows of `path`."""
    test_fraction: float = within("[0, 1)", 0.0, overridden_by="data.test_path")
    """Fraction of the rows for the test split, stratified as those for validation."""
    decimal: Literal["point", "comma"] = "point"
    """How numbers in CSV are written, 1.5 or 1,5; with comma, a semicolon separates the columns."""
    target: str = "target"
    """Column to predict."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """auto: classification if the target is text or has few distinct integers, else regression."""
    categorical: tuple[str, ...] = ()
    """Numeric columns to treat as categories; text, dates and booleans always are."""
    ignore: tuple[str, ...] = ()
    """Columns to ignore, such as ids, or values known only after the target; those without a name
    always are."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data, from the training split."""

    numeric: dict[str, tuple[float, float]]  # mean and standard deviation of each column
    categories: dict[str, tuple[str, ...]]  # with codes from 1; 0: in fewer than 3 rows
    classes: tuple[str, ...]  # none for regression
    target_mean: float = 0.0  # targets of regression are (value - target_mean) / target_std
    target_std: float = 1.0
    center: float = 0.0  # mean of the validation targets, standardized, for R2


class Rows(TensorDataset):
    """Numbers (n, numeric), NaN if missing; codes (n, categorical); targets (n,)."""

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return tuple(column.index_select(0, chosen) for column in self.tensors)


class Prepare(nn.Module):
    """Prepares a batch on the device: standardizes the numbers; a missing one becomes the mean."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        moments = torch.tensor(list(spec.numeric.values()))
        mean, std = moments.view(-1, 2).T.contiguous()
        self.mean = nn.Buffer(mean, persistent=False)
        self.std = nn.Buffer(std, persistent=False)

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return numbers, codes and targets; tables are not augmented."""
        numbers, codes, targets = batch
        numbers = (numbers - self.mean) / self.std
        return numbers.nan_to_num(0.0), codes, targets


def load(cfg: DataConfig) -> tuple[Rows, Rows, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    train, val, _ = _splits(cfg)
    spec = _describe(train, val, cfg)
    train_set = _encode(train, spec, cfg)
    val_set = _encode(val, spec, cfg)
    return train_set, val_set, spec


def load_test(cfg: DataConfig) -> Rows | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    train, val, test = _splits(cfg)
    spec = _describe(train, val, cfg)
    if cfg.test_path is not None:
        table = _read(cfg.test_path, cfg)
        categorical = tuple(spec.categories)
        test = _convert(table, replace(cfg, categorical=categorical))
    return None if test.empty else _encode(test, spec, cfg)


def _splits(cfg: DataConfig) -> list[pd.DataFrame]:
    """Return the rows for training, for validation and for the test."""
    table = _builtin(cfg.builtin) if cfg.path is None else _read(cfg.path, cfg)
    count = len(table)
    if cfg.val_path is not None:
        tables = [table, _read(cfg.val_path, cfg)]
        table = pd.concat(tables, join="inner", ignore_index=True)
    table = _convert(table, cfg)
    _check_target(table[cfg.target], cfg)
    train = table[:count]
    val = table[count:]
    test_fraction = cfg.test_fraction
    if cfg.val_path is None:
        val = _draw(train, cfg.val_fraction, cfg)
        train = train.drop(val.index)
        test_fraction /= 1 - cfg.val_fraction  # of what is left
    test = _draw(train, test_fraction, cfg)
    return [train.drop(test.index), val, test]


def _draw(
    table: pd.DataFrame,
    fraction: float,
    cfg: DataConfig,
) -> pd.DataFrame:
    """Draw this fraction of the rows, in classification of each class, with one seed."""
    if _has_classes(table[cfg.target], cfg):
        classes = table.groupby(cfg.target)
        return classes.sample(frac=fraction, random_state=0)
    return table.sample(frac=fraction, random_state=0)


def _builtin(name: str) -> pd.DataFrame:
    from sklearn import datasets  # here, because this takes a second

    if name == "breast_cancer":
        cancer: pd.DataFrame = datasets.load_breast_cancer(as_frame=True).frame
        return cancer
    diabetes = datasets.load_diabetes(as_frame=True, scaled=False)
    frame: pd.DataFrame = diabetes.frame
    return frame.astype({"sex": int}).astype({"sex": str})


def _read(file: Path, cfg: DataConfig) -> pd.DataFrame:
    """Read a file, and check that it has the columns that the config names."""
    comma = cfg.decimal == "comma"
    try:
        if file.suffix.lower() == ".parquet":
            table = pd.read_parquet(file)
        else:
            table = pd.read_csv(
                file,
                sep=";" if comma else ",",
                decimal="," if comma else ".",
                index_col=False,
                na_values="?",
            )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read the table {file} ({reason}): fix data.path") from error
    for name in (
        cfg.target,
        *cfg.categorical,
        *cfg.ignore,
    ):
        if name not in table:
            columns = ", ".join(map(str, table))
            raise UserError(f"{file} has no column {name!r} (data.target, ...); it has {columns}")
    return table


def _convert(
    table: pd.DataFrame,
    cfg: DataConfig,
) -> pd.DataFrame:
    """Return the columns that are not ignored, as numbers or as text."""
    columns = {}
    for name in table:
        if name not in cfg.ignore and not str(name).startswith("Unnamed: "):
            columns[str(name)] = convert(table[name], cfg)
    return pd.DataFrame(columns)


def convert(column: "pd.Series[Any]", cfg: DataConfig) -> "pd.Series[Any]":
    """Return a column as float64, NaN for missing or infinite values; or as text, "" for missing.

    Raises a UserError for numbers that can be read in two ways, such as 1,234.
    """
    is_text = is_bool_dtype(column) or column.name in cfg.categorical
    if is_numeric_dtype(column) and not is_text:
        numbers = column.astype("float64")
        return numbers.replace([np.inf, -np.inf], np.nan)
    # 1 and not 1.0 in integers with missing values
    texts = column.convert_dtypes().dropna().astype(str).str.strip()
    if not is_text:
        _check_numbers(texts)
    return texts.reindex(column.index, fill_value="")


def _check_numbers(texts: "pd.Series[str]") -> None:
    is_number = texts.str.fullmatch(r"[-+]?\d+([.,]\d{3})*([.,]\d+)?")
    unclear = texts[is_number & texts.str.contains("[.,]")]
    if unclear.empty or is_number.mean() <= 0.5:
        return
    cell = unclear.iloc[0]
    point = cell.replace(",", "")
    comma = cell.replace(".", "").replace(",", ".")
    raise UserError(
        f"column {texts.name} has {cell!r}, which can be {point} or {comma}: "
        "rewrite the numbers, set data.decimal, or use data.categorical or data.ignore"
    )


def _check_target(target: "pd.Series[Any]", cfg: DataConfig) -> None:
    needs_numbers = cfg.task == "regression"
    has_gaps = target.isna().any() or "" in target.to_numpy()
    if has_gaps or target.nunique() < 2 or (needs_numbers and not is_numeric_dtype(target)):
        raise UserError(
            f"column {cfg.target} of {cfg.path}: each row needs a value, which varies; "
            "regression, numbers"
        )


def _has_classes(target: "pd.Series[Any]", cfg: DataConfig) -> bool:
    """Whether the task is classification."""
    if cfg.task != "auto":
        return cfg.task == "classification"
    if not is_numeric_dtype(target):
        return True
    most = min(20, len(target) / 5)
    return bool((target % 1 == 0).all()) and target.nunique() <= most


def _describe(
    train: pd.DataFrame,
    val: pd.DataFrame,
    cfg: DataConfig,
) -> Spec:
    """Return the `Spec`: statistics of the training rows, and the names of the classes."""
    columns = train.drop(columns=cfg.target)
    names = [str(name) for name in columns.select_dtypes("number")]
    gaps = [name + MISSING for name in names if train[name].isna().any()]
    numbers = _numbers(train, names + gaps).astype(np.float64)
    means = numbers.mean().fillna(0.0)
    stds = numbers.std(ddof=0).replace(0.0, 1.0).fillna(1.0)
    categories = {}
    for name in map(str, columns.columns.drop(names)):
        counts = train[name].value_counts()
        frequent = counts.index[counts >= 3]
        categories[name] = tuple(sorted(frequent))
    moments = zip(means, stds, strict=True)
    numeric = dict(zip(map(str, numbers), moments, strict=True))
    targets = pd.concat([train[cfg.target], val[cfg.target]])
    if _has_classes(targets, cfg):
        classes = pd.Series(sorted(targets.unique())).convert_dtypes()
        return Spec(
            numeric,
            categories,
            tuple(map(str, classes)),
        )
    mean = train[cfg.target].mean()
    std = train[cfg.target].std(ddof=0)
    center = (val[cfg.target].mean() - mean) / std
    return Spec(
        numeric,
        categories,
        classes=(),
        target_mean=float(mean),
        target_std=float(std),
        center=float(center),
    )


def _numbers(
    table: pd.DataFrame,
    names: list[str],
) -> pd.DataFrame:
    """Return the numeric columns, and those that mark the missing values of others."""
    columns = {}
    for name in names:
        if name in table:
            columns[name] = table[name]
        else:
            columns[name] = table[name.removesuffix(MISSING)].isna()
    return pd.DataFrame(columns, index=table.index).astype(np.float32)


def _encode(
    table: pd.DataFrame,
    spec: Spec,
    cfg: DataConfig,
) -> Rows:
    """Turn rows into numbers, codes of categories, and targets."""
    numbers = _numbers(table, list(spec.numeric))
    codes = torch.zeros(
        len(table),
        len(spec.categories),
        dtype=torch.int64,
    )
    for index, (name, known) in enumerate(spec.categories.items()):
        places = pd.Index(known).get_indexer(pd.Index(table[name]))
        codes[:, index] = torch.from_numpy(places) + 1
    targets = _targets(table[cfg.target], spec)
    return Rows(
        torch.tensor(numbers.to_numpy()),
        codes,
        targets,
    )


def _targets(column: "pd.Series[Any]", spec: Spec) -> Tensor:
    """Return the number of each class; or, in regression, standardized values, float32."""
    if not spec.classes:
        values = (column - spec.target_mean) / spec.target_std
        return torch.tensor(values.to_numpy(np.float32))
    classes: pd.Index[Any] = pd.Index(spec.classes)
    if is_numeric_dtype(column):
        classes = classes.astype(float)
    numbers = classes.get_indexer(pd.Index(column))
    if -1 in numbers:
        raise UserError(f"column {column.name}: the test has a class that the training lacks")
    return torch.from_numpy(numbers)
