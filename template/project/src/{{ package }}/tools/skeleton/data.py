"""Data of your own: replace what makes up the numbers with what reads your samples.

This file is yours to edit. The rest of the project uses `DataConfig`, `Spec`, `load` and `Prepare`; see contracts.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...config_base import Section, within

Batch = tuple[Tensor, Tensor]
"""Numbers (n, features), float32; classes (n,), int64."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which samples to load: the options `--data.*`."""

    samples: int = within("[16, inf)", 640)
    """Number of samples."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the samples for validation."""


@dataclass(frozen=True)
class Spec:
    """What the model needs to know about the data."""

    features: int
    classes: int


class Samples:
    """Samples in memory. One sample per call works as well: `__getitem__(index)` in place of `__getitems__`."""

    def __init__(self, numbers: Tensor, classes: Tensor) -> None:
        self.numbers, self.classes = numbers, classes

    def __len__(self) -> int:
        return len(self.classes)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return self.numbers.index_select(0, chosen), self.classes.index_select(0, chosen)


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Samples
    val: Samples
    spec: Spec
    in_memory: bool = True


def load(cfg: DataConfig) -> Data:
    """Load the samples; the same split each time."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(cfg.samples, 8, generator=generator)
    classes = numbers[:, :3].argmax(1)  # a rule that can be learned
    first = round(cfg.samples * (1 - cfg.val_fraction))
    return Data(Samples(numbers[:first], classes[:first]), Samples(numbers[first:], classes[first:]), Spec(8, 3))


class Prepare(nn.Module):
    """Turns a batch as loaded into the model's input, on the device: convert, normalize, augment."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Return the input; random numbers come from `generator` only."""
        return batch
