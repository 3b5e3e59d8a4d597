"""What `test_techniques.py` observes of a run."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Observed:
    """What was observed during a run."""

    dtypes: set[torch.dtype] = field(default_factory=set)
    """Data types of the outputs of the model's modules in training."""
    saved: int = 0
    """Bytes saved for the backward pass."""
    fetched: list[int] = field(default_factory=list)
    """Sizes of the batches that this process fetched from the dataset."""
    loader: Any = None
    """The loader of the batches."""
    modes: set[str] = field(default_factory=set)
    """Debugging modes of torch while the model ran."""
    printed: str = ""
    logged: str = ""
    graphs: int = 0
    """Number of compiled graphs."""
    model: nn.Module = field(default_factory=nn.Module)
    optimizer: Any = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    val: list[dict[str, Any]] = field(default_factory=list)


class CountedDataset:
    """A dataset that records the size of each batch that this process fetches."""

    def __init__(self, samples: Any, fetched: list[int]) -> None:
        self.samples, self.fetched = samples, fetched

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> Any:
        self.fetched.append(len(indices))
        return self.samples.__getitems__(indices)
