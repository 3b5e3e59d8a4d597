"""Images by class: scikit-learn's handwritten digits, or your own folder with one sub-folder a class.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .errors import UserError

Batch = tuple[Tensor, Tensor]
"""Images (n, channels, size, size), uint8 as loaded and float as prepared; class indices (n,), int64."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images, and what training sees of them."""

    path: Path | None = None
    """A folder with one sub-folder of images a class, or with folders `train` and `val` of such; null: scikit-learn's
    1,797 digits of 8 x 8 pixels."""
    size: int = within("[4, 4096]", 64)
    """Side, in pixels, to which your own images are resized. The digits keep theirs."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Share of the images that is held out, unless folders say it."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Share of your files that may be unreadable; they are left out, and counted."""
    cache_dir: Path = Path(".cache")
    """Where what is made once of your own files is kept."""
    shift: int = within("[0, 64]", 1)
    """Augmentation: the largest shift in pixels, each way; 0 for none."""
    flip: bool = False
    """Augmentation: mirror half of the images from left to right. Not for digits."""
    cache: Literal["none", "disk", "device"] = "none"
    """disk: decode and resize all of your images once, into a memory-mapped file under `cache_dir`. device: keep all
    samples in the device's memory, and gather each batch there; for small data sets."""


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` must know of the data."""

    channels: int
    size: int
    """Side of the square images, in pixels."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Of each channel over the train split, on a scale from 0 to 1."""
    std: tuple[float, ...]


class InMemory:
    """Images that lie decoded in one tensor: a batch is one slice."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)


class Samples(Protocol):
    """What a split must offer."""

    labels: Tensor

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> Batch: ...


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Samples
    val: Samples
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""
    problems: tuple[str, ...] = ()
    """What was left out, a line each."""


def load(cfg: DataConfig) -> Data:
    """Open the images; the split depends on nothing but their names or order.

    Raises:
        UserError: the folder is not there, or lacks what training needs.
    """
    return _digits(cfg) if cfg.path is None else _own(cfg, cfg.path)


def _digits(cfg: DataConfig) -> Data:
    from sklearn.datasets import load_digits  # takes over a second to import, so only where it is used

    digits = load_digits()
    images = torch.from_numpy((digits.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out = round(len(labels) * cfg.val_fraction)
    if not 0 < held_out < len(labels):
        raise UserError(f"data.val_fraction={cfg.val_fraction} of {len(labels)} images leaves one split empty")
    train, val = (InMemory(images[part], labels[part]) for part in (order[held_out:], order[:held_out]))
    levels = train.images.long()  # whole numbers, so that every machine gets the same to the bit
    mean = levels.sum().item() / levels.numel()
    std = math.sqrt((levels**2).sum().item() / levels.numel() - mean**2)
    classes = tuple(str(name) for name in digits.target_names)
    return Data(train, val, Spec(1, images.shape[-1], classes, (mean / 255,), (std / 255,)), in_memory=True)


def _own(cfg: DataConfig, path: Path) -> Data:
    from .readers import images

    found = images.find(path, cfg.val_fraction)
    how = (cfg.size, 3, cfg.max_unreadable)
    mean, std, bad = images.statistics([found.files[place] for place in found.train.tolist()], *how, cfg.cache_dir)
    spec = Spec(3, cfg.size, found.classes, mean, std)
    if cfg.cache == "disk":
        train, val, bad = images.mapped(found, *how, cfg.cache_dir)
        # What memory cannot hold is read from the disk, best by loader processes, for which training does not wait.
        small = (len(train) + len(val)) * 3 * cfg.size**2 < 2**30
        return Data(train, val, spec, small, found.problems + bad)
    parts = [([found.files[place] for place in part.tolist()], found.labels[part]) for part in (found.train, found.val)]
    lazy = [images.Decoding(files, labels, *how) for files, labels in parts]
    return Data(lazy[0], lazy[1], spec, in_memory=False, problems=found.problems + bad)


class Prepare(nn.Module):
    """What happens to a batch on the device: to float, augmented while training, normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Take a batch as loaded, give it as the model wants it; noise comes from `generator` alone."""
        images, labels = batch
        images = images.float() / 255
        if training and self.cfg.flip:
            mirrored = torch.rand(len(images), 1, 1, 1, device=images.device, generator=generator) < 0.5
            images = torch.where(mirrored, images.flip(-1), images)
        if training and self.cfg.shift:
            images = shift(images, self.cfg.shift, generator)
        return (images - self.mean) / self.std, labels


def shift(images: Tensor, largest: int, generator: torch.Generator) -> Tensor:
    """Move each of the (n, c, h, w) images by its own whole number of pixels, at most `largest`, filling with zeros."""
    n, _, h, w = images.shape
    padded = F.pad(images, (largest,) * 4)
    corner = torch.randint(0, 2 * largest + 1, (2, n, 1), device=images.device, generator=generator)
    rows = corner[0] + torch.arange(h, device=images.device)
    columns = corner[1] + torch.arange(w, device=images.device)
    sample = torch.arange(n, device=images.device).view(n, 1, 1)
    return padded.permute(0, 2, 3, 1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


if __name__ == "__main__":
    from .tools.show import main

    main()
