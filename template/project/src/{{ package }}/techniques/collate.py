"""Datasets that return one sample, a list of samples, or columns: batches are made of them.

Those of torch, such as `Subset` of `random_split`, and the map-style ones of Hugging Face `datasets` are read a batch
at a time.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from ..contracts import Batch, tensors
from ..errors import UserError

CollateFn = Callable[[list[Any]], Batch]
GIVE = "give `Data`, or the dataset, a `collate_fn` that makes a batch of a list of samples"


class Collated:
    """A dataset that answers whole batches; other attributes are those of the original.

    `by_sample` says whether batches were made of single samples so far, which takes longer.

    Raises:
        UserError: the samples make no batch.
    """

    def __init__(self, place: str, split: Any, collate_fn: CollateFn | None) -> None:
        self.place, self.split, self.collate_fn, self.checked = place, split, collate_fn, False
        self.by_sample = False
        self.chosen: Sequence[int] | None = None
        while isinstance(split, Subset) and type(split).__getitems__ is Subset.__getitems__:  # it changes no sample
            inner: Sequence[int] = split.indices
            self.chosen = inner if self.chosen is None else [inner[index] for index in self.chosen]
            split = split.dataset
        self.source = split
        if collate_fn is None and is_hugging_face(split) and split.format["type"] is None:
            self.source = split.with_format("torch")  # not lists of numbers

    def __len__(self) -> int:
        return len(self.split)

    def __getattr__(self, name: str) -> Any:
        if name == "split" or name.startswith("__"):  # a copy is not filled yet
            raise AttributeError(name)
        return getattr(self.split, name)

    def __getitems__(self, indices: list[int]) -> Batch:
        if self.chosen is not None:
            indices = [int(self.chosen[index]) for index in indices]
        batch = self._read(indices)
        if not self.checked:
            check(batch, self.place)
            self.checked = True
        return batch

    def _read(self, indices: list[int]) -> Batch:
        if self.collate_fn is None and type(self.source) is TensorDataset:
            chosen = torch.tensor(indices)
            return tuple(part.index_select(0, chosen) for part in self.source.tensors)
        if self.collate_fn is None and is_hugging_face(self.source):
            columns = self.source[indices]
            return {name: self._column(name, values) for name, values in columns.items()}
        if hasattr(self.source, "__getitems__"):
            found = self.source.__getitems__(indices)
            if isinstance(found, list) and len(found) != len(indices):
                what = f"a list of {len(found)} for a batch of {len(indices)}"
                raise UserError(f"{self.place} returns {what}: return a list of samples, or a whole batch as a tuple")
            return self._collate(found) if isinstance(found, list) else found
        return self._collate([self.source[index] for index in indices])

    def _column(self, name: str, values: Any) -> Any:
        """Return a column of a Hugging Face dataset: tensors of one shape as one."""
        if isinstance(values, Tensor):
            return values
        if all(isinstance(value, Tensor) for value in values) and len({value.shape for value in values}) > 1:
            shapes = ", ".join(sorted({str(tuple(value.shape)) for value in values})[:3])
            raise UserError(f"{self.place} has samples of different shapes in {name} ({shapes}): pad them, or {GIVE}")
        return self._collate(list(values))

    def _collate(self, samples: list[Any]) -> Batch:
        self.by_sample = True
        return collated(samples, self.collate_fn, self.place)


def is_hugging_face(dataset: Any) -> bool:
    """Whether it is a map-style dataset of Hugging Face, whose package need not be imported."""
    package = sys.modules.get("datasets")
    return isinstance(dataset, getattr(package, "Dataset", ()))


def collated(samples: list[Any], collate_fn: CollateFn | None, place: str) -> Batch:
    """Return a batch of samples.

    Raises:
        UserError: they cannot be collated.
    """
    if collate_fn is not None:
        return collate_fn(samples)
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError, KeyError) as error:
        if torch.OutOfMemoryError is type(error) or "memory" in str(error):
            raise
        reason = " ".join(str(error).split())
        how = f"return tensors, arrays or numbers of one shape, or {GIVE}"
        raise UserError(f"{place} has samples that make no batch ({reason}): {how}") from error


def check(batch: Batch, place: str) -> None:
    """Refuse a batch that has no tensors.

    Raises:
        UserError: says what to return.
    """
    if not tensors(batch):
        what = f"a batch of type {type(batch).__name__} without tensors"
        raise UserError(f"{place} returns {what}: return tensors, in a tuple or dict, or {GIVE}")
