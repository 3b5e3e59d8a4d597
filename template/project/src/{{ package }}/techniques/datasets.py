"""Datasets as people have them: each split that `load` returned is made to answer whole batches."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from ..contracts import Data
from ..errors import UserError
from .collate import Collated
from .stream import Stream


class Adapted:
    """What `load` returned, with splits that answer whole batches."""

    def __init__(self, data: Any, splits: Mapping[str, Any]) -> None:
        self.__dict__.update(splits)
        self.data = data

    def __getattr__(self, name: str) -> Any:
        if name == "data" or name.startswith("__"):  # a copy is not filled yet
            raise AttributeError(name)
        return getattr(self.data, name)


def adapted(data: Any) -> Data:
    """Return the data with splits that answer whole batches.

    Raises:
        UserError: a split is no dataset, or its samples make no batch.
    """
    found: Any = Adapted(data, {name: adapt(name, getattr(data, name), data) for name in ("train", "val")})
    return found  # type: ignore[no-any-return]


def adapt(name: str, split: Any, data: Any) -> Any:
    """Return a split that answers whole batches."""
    place = f"data.{name}, of type {type(split).__name__},"
    if isinstance(split, Mapping):
        raise UserError(f"{place} is a dict: `load` must return one dataset for each split, such as the_dict['{name}']")
    if isinstance(split, DataLoader):
        raise UserError(
            f"{place} makes batches itself: return its dataset, and give `Data` its collate_fn, if it has one of yours"
        )
    parts = parts_of(split)
    collate_fn = next((found for part in [*parts, data] if (found := getattr(part, "collate_fn", None))), None)
    by_sample = any(isinstance(part, ConcatDataset) for part in parts)  # which asks its parts for one sample
    for part in parts if by_sample else ():
        if not hasattr(part, "__getitem__"):
            raise UserError(f"{place} has a part of type {type(part).__name__} without __getitem__(index): add it")
    by_index = hasattr(split, "__getitems__") or hasattr(split, "__getitem__")
    if not by_index and not hasattr(split, "__iter__"):
        raise UserError(f"{place} is no dataset: it needs __len__, and __getitems__(indices) or __getitem__(index)")
    if not by_index or isinstance(split, IterableDataset):  # which has a __getitem__ that raises
        return Stream(place, split, collate_fn)
    if not hasattr(split, "__len__"):
        raise UserError(f"{place} has no __len__: add it, as an epoch is planned by the number of samples")
    return Collated(place, split, collate_fn)


def parts_of(split: Any) -> list[Any]:
    """Return a dataset, and those that it is made of, if it is a `Subset` or `ConcatDataset`."""
    inner = [split.dataset] if isinstance(split, Subset) else []
    inner = split.datasets if isinstance(split, ConcatDataset) else inner
    return [split, *(part for one in inner for part in parts_of(one))]
