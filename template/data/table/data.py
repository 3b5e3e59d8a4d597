"""Tables: scikit-learn's breast-cancer or diabetes set, or your own CSV or Parquet file.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .config_base import Section, within
from .errors import UserError

TASKS = {"breast_cancer": "classification", "diabetes": "regression"}

Batch = tuple[Tensor, Tensor, Tensor]
"""Numbers (n, numeric columns), float32 with NaN where one is missing, as loaded; standardised, with 0 there and an
indicator column each for those that have gaps, as prepared. Codes (n, categorical columns), int64. Targets (n,): class
indices, int64; or numbers, float32, standardised as prepared."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which table, which of its columns is to be predicted, and what the others are."""

    path: Path | None = None
    """A CSV or Parquet file with one row a sample; null: the embedded set that `builtin` names."""
    builtin: Literal["breast_cancer", "diabetes"] = "breast_cancer"
    """scikit-learn's set: breast_cancer, 569 rows of two classes; diabetes, 442 rows with a number to predict."""
    val_path: Path | None = None
    """A second file with the held-out rows; null: `val_fraction` of the rows of `path`."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Share of the rows that is held out: of each class the same, where there are classes."""
    target: str | None = None
    """The column to predict; needed with `path`."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """auto: classification of text and of few different whole numbers, else regression; --show says which it is."""
    categorical: tuple[str, ...] = ()
    """Columns that hold numbers but mean categories; those of text or true and false always do."""
    ignore: tuple[str, ...] = ()
    """Columns to leave out: ids, say, or what is known only after the target."""
    min_count: int = within("[1, inf)", 3)
    """Training rows that a category must have; rarer ones count as unknown, so that a new one meets a trained code."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Share of your rows that may lack a target; they are left out, and counted."""
    cache_dir: Path = Path(".cache")
    """Where what is made once of your own files is kept."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in the device's memory, and gather each batch there; for small data sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("val_path", "target", "categorical", "ignore"):
            if self.path is None and getattr(self, key):
                self.refuse(key, "it is for a file of your own; give data.path too")
        if self.path is None and self.task not in ("auto", TASKS[self.builtin]):
            self.refuse("task", f"data.builtin={self.builtin} is for {TASKS[self.builtin]}; use auto")
        for key in ("categorical", "ignore"):
            if self.target in getattr(self, key):
                self.refuse(key, f"{self.target} is data.target already; take it out here")


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` must know of the data."""

    numeric: tuple[str, ...]
    """Names of the columns of numbers."""
    mean: tuple[float, ...]
    """Of each of them over the train split, without missing values."""
    std: tuple[float, ...]
    indicated: tuple[str, ...]
    """Those with missing values in the train split: they get a column that says where."""
    categorical: tuple[str, ...]
    """Names of the columns of categories."""
    categories: tuple[tuple[str | None, ...], ...]
    """Of each those with a code of their own, from 1 on; null is a missing value. 0 is any other or a rare one."""
    target: str
    classes: tuple[str, ...]
    """Their names; none, where the target is a number."""
    target_mean: float
    """Of the target as a number, over the train split."""
    target_std: float
    center: float
    """Mean of the held-out targets, about which R2 measures."""


class Rows:
    """A table that lies in three tensors: a batch is a slice of each."""

    def __init__(self, numbers: Tensor, codes: Tensor, targets: Tensor) -> None:
        self.numbers, self.codes, self.targets = numbers, codes, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return (
            self.numbers.index_select(0, chosen),
            self.codes.index_select(0, chosen),
            self.targets.index_select(0, chosen),
        )


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Rows
    val: Rows
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""
    problems: tuple[str, ...] = ()
    """What was left out, and what else one should know, a line each."""


def load(cfg: DataConfig) -> Data:
    """Read the table; the split depends on nothing but the order of the rows.

    Raises:
        UserError: a file or a column is missing or unfit, or there are too few rows to split.
    """
    if cfg.path is None:
        return _builtin(cfg)
    from .readers.table import read_table  # polars too takes its time to import

    return read_table(cfg, cfg.path)


def split(groups: Tensor, val_fraction: float) -> tuple[Tensor, Tensor]:
    """Rows to train on and to hold out, the same share of each group; one too small to be split stays in train.

    Raises:
        UserError: a split is empty.
    """
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))
    order = order[groups[order].argsort(stable=True)]
    due = (torch.arange(len(order) + 1, dtype=torch.float64) * val_fraction + 0.5).floor()
    held_out = due[1:] > due[:-1]
    held_out &= torch.isin(groups[order], groups[order[~held_out]])
    if not 0 < int(held_out.sum()) < len(order):
        raise UserError(f"data.val_fraction={val_fraction} of {len(order)} rows leaves one split empty: add rows")
    return order[~held_out].sort().values, order[held_out].sort().values


def statistics(values: NDArray[Any]) -> tuple[float, float]:
    """Mean and standard deviation of the finite values, or 0 and 1; every machine gets the same to the bit."""
    known = values[np.isfinite(values)].astype(np.float64)
    mean = math.fsum(known) / max(len(known), 1)
    std = math.sqrt(math.fsum((known - mean) ** 2) / max(len(known), 1))
    return mean, std or 1.0


def _builtin(cfg: DataConfig) -> Data:
    from sklearn.datasets import load_breast_cancer, load_diabetes  # takes over a second to import

    diabetes = cfg.builtin == "diabetes"
    found = load_diabetes(scaled=False) if diabetes else load_breast_cancer()
    names = tuple(str(name) for name in found.feature_names)
    targets = torch.from_numpy(found.target.astype(np.float32 if diabetes else np.int64))
    categorical = [place for place, name in enumerate(names) if name == "sex"]  # 1 and 2
    numeric = [place for place in range(len(names)) if place not in categorical]
    codes = torch.from_numpy(found.data[:, categorical].astype(np.int64))
    numbers = torch.from_numpy(found.data[:, numeric].astype(np.float32))
    train, val = split(torch.zeros_like(targets) if diabetes else targets, cfg.val_fraction)
    moments = [statistics(column) for column in numbers[train].numpy().T]
    mean, std = statistics(targets[train].numpy()) if diabetes else (0.0, 1.0)
    spec = Spec(
        numeric=tuple(names[place] for place in numeric),
        mean=tuple(mean for mean, _ in moments),
        std=tuple(std for _, std in moments),
        indicated=(),
        categorical=tuple(names[place] for place in categorical),
        categories=tuple(("1", "2") for _ in categorical),
        target="progression" if diabetes else "diagnosis",
        classes=() if diabetes else tuple(str(name) for name in found.target_names),
        target_mean=mean,
        target_std=std,
        center=statistics(targets[val].numpy())[0] if diabetes else 0.0,
    )
    splits = [Rows(numbers[part], codes[part], targets[part]) for part in (train, val)]
    return Data(splits[0], splits[1], spec, in_memory=True)


class Prepare(nn.Module):
    """What happens to a batch on the device: numbers are standardised, gaps filled and marked."""

    mean: Tensor
    std: Tensor
    places: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.spec = spec
        places = [spec.numeric.index(name) for name in spec.indicated]
        self.register_buffer("mean", torch.tensor(spec.mean), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std), persistent=False)
        self.register_buffer("places", torch.tensor(places, dtype=torch.int64), persistent=False)

    def inputs(self, numbers: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """All but the targets."""
        known = numbers.isfinite()
        scaled = torch.where(known, (numbers - self.mean) / self.std, 0.0)
        if self.spec.indicated:
            scaled = torch.cat([scaled, (~known).index_select(1, self.places).to(scaled.dtype)], dim=1)
        return scaled, codes

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Take a batch as loaded, give it as the model wants it; tables get no noise."""
        numbers, codes, targets = batch
        if not self.spec.classes:
            targets = (targets - self.spec.target_mean) / self.spec.target_std
        return *self.inputs(numbers, codes), targets


if __name__ == "__main__":
    from .tools.show import main

    main()
