"""Tabular data: scikit-learn's breast cancer or diabetes data set, or your own CSV or Parquet file.

This file is yours to edit. The rest of the project uses `DataConfig`, `load` and `Prepare`; see contracts.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from .config_base import Section, within
from .readers.sklearn_tables import load_breast_cancer, load_diabetes
from .readers.tabular import Data, Rows, Spec, split, statistics

__all__ = ["Data", "Rows", "Spec"]  # what `load` returns, with the type of `Data.spec`

TASKS = {"breast_cancer": "classification", "diabetes": "regression"}

Batch = tuple[Tensor, Tensor, Tensor]
"""Numbers (n, numeric columns), float32: as loaded, with NaN for missing values; as prepared, standardized, with 0
instead and an indicator column for each column that has missing values. Codes (n, categorical columns), int64.
Targets (n,): class indices, int64; or numbers, float32, standardized as prepared."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which table to load, which column to predict, and how to treat the others."""

    path: Path | None = None
    """CSV or Parquet file with one sample per row; null: the data set that `builtin` names."""
    builtin: Literal["breast_cancer", "diabetes"] = "breast_cancer"
    """Data set of scikit-learn: breast_cancer, 569 rows, two classes; diabetes, 442 rows, regression."""
    val_path: Path | None = None
    """File with the validation rows; null: use `val_fraction` of the rows of `path`."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the rows for validation, stratified by class in classification."""
    decimal: Literal["point", "comma"] = "point"
    """What numbers in CSV files have before their fraction."""
    target: str | None = None
    """Column to predict; required with `path`."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """auto: classification if the target is text or has few distinct integers, else regression."""
    categorical: tuple[str, ...] = ()
    """Numeric columns to treat as categories; text and boolean columns always are."""
    ignore: tuple[str, ...] = ()
    """Columns to ignore, such as ids, or values known only after the target."""
    min_count: int = within("[1, inf)", 3)
    """Minimum training rows per category; rarer ones share the code for unknown categories."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Maximum fraction of rows without a target, which are skipped and counted."""
    cache_dir: Path = Path(".cache")
    """Folder for data derived from your own files, such as decoded images."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in device memory and gather each batch there; for small data sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("val_path", "target", "categorical", "ignore"):
            if self.path is None and getattr(self, key):
                self.refuse(key, "it needs a file of your own; set data.path too")
        if self.path is None and self.task not in ("auto", TASKS[self.builtin]):
            self.refuse("task", f"data.builtin={self.builtin} is for {TASKS[self.builtin]}; use auto")
        for key in ("categorical", "ignore"):
            if self.target in getattr(self, key):
                self.refuse(key, f"{self.target} is data.target already; remove it here")


def load(cfg: DataConfig) -> Data:
    """Load the table; the split depends only on the order of the rows.

    Raises:
        UserError: a file or a column is missing or unsuitable, or there are too few rows to split.
    """
    if cfg.path is None:
        return _builtin(cfg)
    from .readers.table import read_table  # imported here because importing polars takes a while

    return read_table(cfg, cfg.path)


def _builtin(cfg: DataConfig) -> Data:
    diabetes = cfg.builtin == "diabetes"
    found = load_diabetes() if diabetes else load_breast_cancer()
    names = found.columns
    targets = torch.from_numpy(found.target.astype(np.float32 if diabetes else np.int64))
    categorical = [index for index, name in enumerate(names) if name == "sex"]  # 1 and 2
    numeric = [index for index in range(len(names)) if index not in categorical]
    codes = torch.from_numpy(found.values[:, categorical].astype(np.int64))
    numbers = torch.from_numpy(found.values[:, numeric].astype(np.float32))
    train, val = split(torch.zeros_like(targets) if diabetes else targets, cfg.val_fraction)
    moments = [statistics(column) for column in numbers[train].numpy().T]
    mean, std = statistics(targets[train].numpy()) if diabetes else (0.0, 1.0)
    spec = Spec(
        numeric=tuple(names[index] for index in numeric),
        mean=tuple(mean for mean, _ in moments),
        std=tuple(std for _, std in moments),
        indicated=(),
        categorical=tuple(names[index] for index in categorical),
        categories=tuple(("1", "2") for _ in categorical),
        target="progression" if diabetes else "diagnosis",
        classes=found.classes,
        target_mean=mean,
        target_std=std,
        center=statistics(targets[val].numpy())[0] if diabetes else 0.0,
    )
    splits = [Rows(numbers[part], codes[part], targets[part]) for part in (train, val)]
    return Data(splits[0], splits[1], spec, in_memory=True)


class Prepare(nn.Module):
    """Prepares a batch on the device: numbers are standardized, missing values filled and marked."""

    mean: Tensor
    std: Tensor
    indicated: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec
        indicated = [spec.numeric.index(name) for name in spec.indicated]
        self.register_buffer("mean", torch.tensor(spec.mean), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std), persistent=False)
        self.register_buffer("indicated", torch.tensor(indicated, dtype=torch.int64), persistent=False)

    def inputs(self, numbers: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Prepare the inputs, without targets."""
        known = numbers.isfinite()
        scaled = torch.where(known, (numbers - self.mean) / self.std, 0.0)
        if self.spec.indicated:
            scaled = torch.cat([scaled, (~known).index_select(1, self.indicated).to(scaled.dtype)], dim=1)
        return scaled, codes

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Turn a batch as loaded into model inputs and targets; tables are not augmented."""
        numbers, codes, targets = batch
        if not self.spec.classes:
            targets = (targets - self.spec.target_mean) / self.spec.target_std
        return *self.inputs(numbers, codes), targets
