"""What `load` returns for a table: rows in memory, splits, and a `Spec` of the columns."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` need to know about the data."""

    numeric: tuple[str, ...]
    """Names of the numeric columns."""
    mean: tuple[float, ...]
    """Mean of each numeric column over the training split, without missing values."""
    std: tuple[float, ...]
    indicated: tuple[str, ...]
    """Numeric columns with missing values in the training split: each gets a missing-value indicator column."""
    categorical: tuple[str, ...]
    """Names of the categorical columns."""
    categories: tuple[tuple[str | None, ...], ...]
    """Categories of each categorical column, with codes from 1; null is a missing value. Code 0: unknown or rare."""
    target: str
    classes: tuple[str, ...]
    """Names of the classes; empty for regression."""
    target_mean: float
    """Mean of a numeric target over the training split."""
    target_std: float
    center: float
    """Mean of the validation targets, for R2."""


class Rows:
    """A table in three tensors: a batch is an `index_select` of each."""

    def __init__(self, numbers: Tensor, codes: Tensor, targets: Tensor) -> None:
        self.numbers, self.codes, self.targets = numbers, codes, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
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
    """Whether loading a batch is so cheap that worker processes would only slow it down."""
    problems: tuple[str, ...] = ()
    """What was skipped, and other warnings, one line each."""


def split(groups: Tensor, val_fraction: float) -> tuple[Tensor, Tensor]:
    """Row indices of train and val, with the same fraction of each group; a group of one row stays in train.

    Raises:
        UserError: a split is empty.
    """
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(0))
    order = order[groups[order].argsort(stable=True)]
    quota = (torch.arange(len(order) + 1, dtype=torch.float64) * val_fraction + 0.5).floor()
    in_val = quota[1:] > quota[:-1]
    in_val &= torch.isin(groups[order], groups[order[~in_val]])
    if not 0 < int(in_val.sum()) < len(order):
        raise UserError(f"data.val_fraction={val_fraction} of {len(order)} rows leaves one split empty: add rows")
    return order[~in_val].sort().values, order[in_val].sort().values


def statistics(values: NDArray[Any]) -> tuple[float, float]:
    """Mean and standard deviation of the finite values (0 and 1 if there are none), bit-identical on every machine."""
    known = values[np.isfinite(values)].astype(np.float64)
    mean = math.fsum(known) / max(len(known), 1)
    std = math.sqrt(math.fsum((known - mean) ** 2) / max(len(known), 1))
    return mean, std or 1.0
