"""What `load` returns for image segmentation: samples, splits, and a `Spec` of the data."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import UserError

IGNORED = 255
"""Value of ignored pixels in masks as loaded, whatever value they have in your files."""


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` need to know about the data."""

    channels: int
    size: int
    """Height and width of the images, in pixels."""
    classes: tuple[str, ...]
    values: tuple[int, ...]
    """Value of each class in mask files."""
    ignore: int | None
    """Value of ignored pixels in masks as loaded; None: no pixel is ignored."""
    pixels: tuple[int, ...]
    """Number of pixels of each class in the training split."""
    mean: tuple[float, ...]
    """Mean of each channel over the training split, for pixels from 0 to 1."""
    std: tuple[float, ...]


class Samples(Protocol):
    """A dataset of images with their masks, which returns a whole batch per call."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Samples
    val: Samples
    spec: Spec
    in_memory: bool
    """Whether loading a batch is so cheap that worker processes would only slow it down."""
    problems: tuple[str, ...] = ()
    """What was skipped, and other warnings, one line each."""
    hint: str = ""
    """How to load faster, said when a run starts."""


def split(count: int, val_fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the validation samples.

    Raises:
        UserError: one of the two would be empty.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    val_count = round(count * val_fraction)
    if not 0 < val_count < count:
        raise UserError(f"data.val_fraction={val_fraction} of {count} images leaves one split empty: add images")
    return order[val_count:], order[:val_count]
