"""Images by class: scikit-learn's handwritten digits, or your own folder with one sub-folder a class.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from .errors import UserError
from .ranges import Section, within

IMAGE_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}

Batch = tuple[Tensor, Tensor]
"""Images (n, channels, size, size), uint8 as loaded and float as prepared; class indices (n,), int64."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images, and what training sees of them."""

    path: Path | None = None
    """A folder with one sub-folder of images a class; null: scikit-learn's 1,797 digits of 8 x 8 pixels."""
    size: int = within("[4, 4096]", 64)
    """Side, in pixels, to which your own images are resized. The digits keep theirs."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Share of the images that is held out."""
    shift: int = within("[0, 64]", 1)
    """Augmentation: the largest shift in pixels, each way; 0 for none."""
    flip: bool = False
    """Augmentation: mirror half of the images from left to right. Not for digits."""
    cache: Literal["none", "device"] = "none"
    """device: keep all samples in the device's memory, and gather each batch there; for small data sets."""


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


class Files:
    """Images that are decoded and resized when asked for, in whichever process asks."""

    def __init__(self, files: list[Path], labels: Tensor, size: int) -> None:
        self.files, self.labels, self.size = files, labels, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> Batch:
        images = torch.from_numpy(np.stack([decode(self.files[i], self.size) for i in indices]))
        return images.permute(0, 3, 1, 2), self.labels.index_select(0, torch.as_tensor(indices))


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: InMemory | Files
    val: InMemory | Files
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""


def load(cfg: DataConfig) -> Data:
    """Open the images; the split depends on nothing but their names or order.

    Raises:
        UserError: the folder is missing, holds fewer than two classes, or too few images to split.
    """
    return _digits(cfg) if cfg.path is None else _folder(cfg, cfg.path)


def decode(file: Path, size: int) -> NDArray[np.uint8]:
    """Read one image as (size, size, 3) RGB.

    Raises:
        UserError: the file is no readable image.
    """
    try:
        with Image.open(file) as image:
            image.draft("RGB", (size, size))  # lets the JPEG decoder skip resolution that the resize would drop
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"cannot read the image {file} ({error}): mend or remove it") from error


def _split(count: int, val_fraction: float) -> tuple[Tensor, Tensor]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    held_out = round(count * val_fraction)
    if not 0 < held_out < count:
        raise UserError(f"data.val_fraction={val_fraction} of {count} images leaves one split empty: add images")
    return order[held_out:], order[:held_out]


def _statistics(images: InMemory | Files) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on a scale from 0 to 1; of files, the first 1,024.

    Counted in whole numbers, so that every machine gets the same to the bit.
    """
    shown = len(images) if isinstance(images, InMemory) else min(1024, len(images))
    levels = [torch.zeros(256, dtype=torch.int64) for _ in range(images.__getitems__([0])[0].shape[1])]
    for begin in range(0, shown, 16):
        batch, _ = images.__getitems__(list(range(begin, min(begin + 16, shown))))
        for channel, counts in enumerate(levels):
            counts += torch.bincount(batch[:, channel].flatten(), minlength=256)
    means, stds = [], []
    for histogram in (counts.tolist() for counts in levels):
        mean = sum(count * value for value, count in enumerate(histogram)) / sum(histogram)
        variance = sum(count * (value - mean) ** 2 for value, count in enumerate(histogram)) / sum(histogram)
        means.append(mean / 255)
        stds.append(max(math.sqrt(variance) / 255, 1e-3))
    return tuple(means), tuple(stds)


def _digits(cfg: DataConfig) -> Data:
    from sklearn.datasets import load_digits  # takes over a second to import, so only where it is used

    digits = load_digits()
    images = torch.from_numpy((digits.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target).long()
    train, val = _split(len(labels), cfg.val_fraction)
    splits = [InMemory(images[part], labels[part]) for part in (train, val)]
    classes = tuple(str(name) for name in digits.target_names)
    spec = Spec(1, images.shape[-1], classes, *_statistics(splits[0]))
    return Data(splits[0], splits[1], spec, in_memory=True)


def _folder(cfg: DataConfig, path: Path) -> Data:
    if not path.is_dir():
        raise UserError(f"data.path={path} is not a folder: give one that holds a sub-folder of images for each class")
    classes = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((path / name).rglob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if len({label for _, label in found}) < 2:
        raise UserError(f"data.path={path} has images of fewer than two classes: add sub-folders, one a class")
    files, labels = [file for file, _ in found], torch.tensor([label for _, label in found])
    train, val = _split(len(files), cfg.val_fraction)
    splits = [Files([files[i] for i in part.tolist()], labels[part], cfg.size) for part in (train, val)]
    return Data(splits[0], splits[1], Spec(3, cfg.size, tuple(classes), *_statistics(splits[0])), in_memory=False)


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
