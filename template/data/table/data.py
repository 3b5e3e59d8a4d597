"""Tables: breast cancer or diabetes from scikit-learn, or your own CSV or Parquet file.

This file is yours to edit.
"""

from dataclasses import dataclass
from importlib.metadata import distribution
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


@dataclass(frozen=True)
class DataConfig(Section):
    """Which table to load, which column to predict, and how to treat the others."""

    path: Path | None = None
    """CSV or Parquet file with one sample per row; null: the data set of scikit-learn that `builtin` names."""
    builtin: Literal["breast_cancer", "diabetes"] = "breast_cancer"
    """breast_cancer: 569 rows, classes 0 (malignant) and 1 (benign); diabetes: 442 rows, regression."""
    val_path: Path | None = None
    """File with the rows for validation, in the columns of `path`; null: a fraction of the rows of `path`."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the rows for validation, stratified by class in classification."""
    decimal: Literal["point", "comma"] = "point"
    """How numbers in CSV are written, 1.5 or 1,5; with comma, a semicolon separates the columns."""
    target: str = "target"
    """Column to predict."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """auto: classification if the target is text or has few distinct integers, else regression."""
    categorical: tuple[str, ...] = ()
    """Numeric columns to treat as categories; text, dates and booleans always are."""
    ignore: tuple[str, ...] = ()
    """Columns to ignore, such as ids, or values known only after the target; those without a name always are."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data; statistics are of the training split."""

    # mean and standard deviation; `x is missing` is 1 in rows without x
    numeric: dict[str, tuple[float, float]]
    # codes from 1; "": missing; code 0: unknown, or in fewer than 3 rows
    categories: dict[str, tuple[str, ...]]
    # empty for regression, whose targets are (value - target_mean) / target_std
    classes: tuple[str, ...]
    target_mean: float
    target_std: float
    center: float  # mean of the validation targets, standardized, for R2


class Rows(TensorDataset):
    """Numbers (n, numeric), NaN if missing; codes (n, categorical); targets (n,)."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        chosen = torch.as_tensor(indices)
        return tuple(column.index_select(0, chosen) for column in self.tensors)


class Prepare(nn.Module):
    """Prepares a batch on the device: standardizes the numbers; a missing one becomes 0, the mean."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        mean, std = torch.tensor(list(spec.numeric.values())).view(-1, 2).T.contiguous()
        self.mean, self.std = nn.Buffer(mean, persistent=False), nn.Buffer(std, persistent=False)

    def forward(
        self, batch: tuple[Tensor, ...], training: bool, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Turn a batch as loaded into model inputs and targets; tables are not augmented."""
        numbers, codes, targets = batch
        return ((numbers - self.mean) / self.std).nan_to_num(0.0), codes, targets


def load(cfg: DataConfig) -> tuple[Rows, Rows, Spec]:
    """Return the training set, the validation set and their `Spec`; the split depends only on the order of rows."""
    frames = [_read(file, cfg) for file in (cfg.path, cfg.val_path) if file] or [
        _builtin(cfg.builtin)
    ]
    frame = pd.concat(frames, join="inner", ignore_index=True)
    kept = [
        str(name)
        for name in frame
        if name not in cfg.ignore and not str(name).startswith("Unnamed: ")
    ]
    columns = {name: convert(frame[name], cfg) for name in kept}
    goal = columns.pop(cfg.target)
    numeric, distinct = is_numeric_dtype(goal), sorted(goal.dropna().unique())
    if (
        len(distinct) < 2
        or goal.isna().any()
        or "" in distinct
        or (cfg.task == "regression" and not numeric)
    ):
        raise UserError(
            f"column {cfg.target} of {cfg.path}: each row needs a value, which varies; regression, numbers"
        )
    integers = numeric and bool((goal % 1 == 0).all()) and len(distinct) <= min(20, len(goal) / 5)
    classifies = cfg.task == "classification" or (cfg.task == "auto" and (integers or not numeric))
    targets = pd.Index(distinct).get_indexer(goal) if classifies else goal.to_numpy()
    in_val = np.arange(len(goal)) >= len(frames[0])
    if len(frames) == 1:
        order = torch.randperm(len(goal), generator=torch.Generator().manual_seed(0)).numpy()
        # each class in turn
        order = order[targets[order].argsort(kind="stable")] if classifies else order
        in_val[order] = np.diff(np.floor(np.arange(len(goal) + 1) * cfg.val_fraction + 0.5)) > 0
    train, val = np.flatnonzero(~in_val), np.flatnonzero(in_val)
    mean, std = (0.0, 1.0) if classifies else (targets[train].mean(), targets[train].std())
    targets = targets if classifies else ((targets - mean) / std).astype(np.float32)
    numbers = {name: column for name, column in columns.items() if is_numeric_dtype(column)}
    gaps = {
        f"{name} is missing": column.isna()
        for name, column in numbers.items()
        if column.iloc[train].isna().any()
    }
    table = pd.DataFrame(numbers | gaps, index=goal.index).astype(np.float32)
    fit = table.iloc[train].astype(np.float64)
    moments = zip(
        fit.mean().fillna(0.0), fit.std(ddof=0).replace(0.0, 1.0).fillna(1.0), strict=True
    )
    counts = {
        name: column.iloc[train].value_counts()
        for name, column in columns.items()
        if name not in numbers
    }
    categories = {name: tuple(sorted(count.index[count >= 3])) for name, count in counts.items()}
    codes = [pd.Index(known).get_indexer(columns[name]) + 1 for name, known in categories.items()]
    classes = tuple(map(str, pd.Series(distinct).convert_dtypes())) if classifies else ()
    target = float(mean), float(std), float(targets[val].mean())
    spec = Spec(dict(zip(table.columns, moments, strict=True)), categories, classes, *target)
    arrays = table.to_numpy(), np.array(codes, np.int64).reshape(-1, len(goal)).T, targets
    train_set, val_set = (
        Rows(*(torch.from_numpy(array[part]) for array in arrays)) for part in (train, val)
    )
    return train_set, val_set, spec


def convert(column: "pd.Series[Any]", cfg: DataConfig) -> "pd.Series[Any]":
    """Return a column as float64, NaN for missing or infinite values; or as text, "" for missing values."""
    as_text = is_bool_dtype(column) or column.name in cfg.categorical
    if is_numeric_dtype(column) and not as_text:
        return column.astype("float64").replace([np.inf, -np.inf], np.nan)
    # 1 and not 1.0 in integers with missing values
    texts = column.convert_dtypes().dropna().astype(str).str.strip()
    numbers = texts.str.fullmatch(r"[-+]?\d+([.,]\d{3})*([.,]\d+)?")
    unclear = texts[numbers & texts.str.contains("[.,]")]
    if len(unclear) and numbers.mean() > 0.5 and not as_text:
        cell, hint = (
            unclear.iloc[0],
            "rewrite the numbers, set data.decimal, or use data.categorical or data.ignore",
        )
        readings = f"{cell.replace(',', '')} or {cell.replace('.', '').replace(',', '.')}"
        raise UserError(f"column {column.name} has {cell!r}, which can be {readings}: {hint}")
    return texts.reindex(column.index, fill_value="")


def _builtin(name: str) -> pd.DataFrame:
    """Read one of scikit-learn's files, because importing scikit-learn takes about a second."""
    folder = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data")))
    if name == "breast_cancer":
        return pd.read_csv(
            folder / "breast_cancer.csv", skiprows=1, names=[*map(str, range(30)), "target"]
        )
    columns = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]
    frame = pd.read_csv(
        folder / "diabetes_data_raw.csv.gz", sep=" ", names=columns, dtype={"sex": str}
    )
    return frame.assign(target=np.loadtxt(folder / "diabetes_target.csv.gz"))


def _read(file: Path, cfg: DataConfig) -> pd.DataFrame:
    separator, mark = (";", ",") if cfg.decimal == "comma" else (",", ".")
    csv: dict[str, Any] = {"sep": separator, "decimal": mark, "index_col": False, "na_values": "?"}
    try:
        frame = (
            pd.read_parquet(file) if file.suffix.lower() == ".parquet" else pd.read_csv(file, **csv)
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the table {file} ({str(error).splitlines()[0]}): fix data.path"
        ) from error
    for name in (cfg.target, *cfg.categorical, *cfg.ignore):
        if name not in frame:
            raise UserError(
                f"{file} has no column {name!r} (data.target, ...); it has {', '.join(map(str, frame))}"
            )
    return frame
