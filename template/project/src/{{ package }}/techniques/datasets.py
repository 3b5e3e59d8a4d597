"""Datasets as people have them: each split that `load` returned is made to answer whole batches."""

from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

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
    place = f"data.{name}, a {type(split).__name__},"
    if isinstance(split, Mapping):
        raise UserError(f"{place} is a dict: `load` must return one dataset for each split, such as the_dict['{name}']")
    collate_fn = getattr(split, "collate_fn", None) or getattr(data, "collate_fn", None)
    by_index = hasattr(split, "__getitems__") or hasattr(split, "__getitem__")
    if not by_index and not hasattr(split, "__iter__"):
        raise UserError(f"{place} is no dataset: it needs __len__, and __getitems__(indices) or __getitem__(index)")
    if not by_index or isinstance(split, IterableDataset):  # which has a __getitem__ that raises
        return Stream(place, split, collate_fn)
    if not hasattr(split, "__len__"):
        raise UserError(f"{place} has no __len__: add it, as an epoch is planned by the number of samples")
    return Collated(place, split, collate_fn)
