"""Images: scikit-learn's handwritten digits, or your own folder.

This file is yours to edit; train.py uses `load`.
"""

from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import Dataset

from .config_base import Section, within
from .errors import UserError


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images to load, and how to augment them."""

    path: Path | None = None
    """Folder with a subfolder per class, or with `train` and `val`, each with these; null: digits of 8 x 8 pixels."""
    size: int = within("[4, 4096]", 64)
    """Height and width in pixels to which your own images are resized; the digits keep theirs."""
    channels: Literal[1, 3] = 3
    """Convert your own images to RGB, 3, or grayscale, 1; the digits are grayscale."""
    labels: bool = True
    """Whether subfolders are classes; false: all images below the folder are of one class, to generate more of them."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation, unless the folder has `train` and `val`."""
    shift: int = within("[0, 64]", 1)
    """Augmentation: maximum random shift in pixels, in each direction; 0 for off."""
    flip: bool = False
    """Augmentation: flip images horizontally with probability 0.5. Not for digits."""


@dataclass(frozen=True)
class Spec:
    """What the model needs to know: image size in pixels, and each channel's mean and std for pixels from 0 to 1."""

    channels: int
    size: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Images(Dataset[tuple[Tensor, ...]]):
    """A part of all images, a tensor or files to decode.

    A batch: (n, channels, size, size), uint8, and labels (n,).
    """

    def __init__(
        self, images: Tensor | list[Path], labels: Tensor, part: Tensor, cfg: DataConfig
    ) -> None:
        self.images, self.labels, self.part, self.cfg = images, labels, part, cfg
        self.in_memory = isinstance(images, Tensor)

    def __len__(self) -> int:
        return len(self.part)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = self.part.index_select(0, torch.as_tensor(indices))
        if isinstance(self.images, Tensor):
            return self.images.index_select(0, rows), self.labels.index_select(0, rows)
        return torch.stack(
            [decode(self.images[row], self.cfg) for row in rows.tolist()]
        ), self.labels[rows]


class Prepare(nn.Module):
    """Prepares a batch on the device: conversion to float, augmentation in training, normalization."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.mean = nn.Buffer(torch.tensor(spec.mean).view(-1, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(spec.std).view(-1, 1, 1), persistent=False)

    def forward(
        self, batch: tuple[Tensor, Tensor], training: bool, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Turn a batch as loaded into images (n, channels, size, size), float32, and labels (n,)."""
        images, labels = batch[0].float() / 255, batch[1]
        if training and self.cfg.flip:
            flipped = (
                torch.rand(len(images), 1, 1, 1, device=images.device, generator=generator) < 0.5
            )
            images = torch.where(flipped, images.flip(-1), images)
        if training and (most := self.cfg.shift):
            samples = torch.arange(len(images), device=images.device)
            rows, columns = torch.randint(
                0, 2 * most + 1, (2, len(images)), device=images.device, generator=generator
            )
            crops = (
                nn.functional.pad(images, (most,) * 4)
                .unfold(2, images.shape[2], 1)
                .unfold(3, images.shape[3], 1)
            )
            # for convolutions
            images = crops[samples, :, rows, columns].clone(memory_format=torch.channels_last)
        return (images - self.mean) / self.std, labels


def load(cfg: DataConfig) -> tuple[Images, Images, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    images, labels, classes, val_count = (
        _digits() if cfg.path is None else _folder(cfg.path, cfg.labels)
    )
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    # the files in `val` are the last
    order = torch.arange(len(labels)).roll(val_count) if val_count else shuffled
    parts = order.tensor_split([val_count or round(len(labels) * cfg.val_fraction)])
    val, train = (Images(images, labels, part, cfg) for part in parts)
    step = 1 if cfg.path is None else len(train) * cfg.size**2 // 2**22 + 1  # 4 million pixels
    levels = train.__getitems__(list(range(0, len(train), step)))[0].double() / 255
    std, mean = torch.std_mean(levels, (0, 2, 3), correction=0)
    spec = Spec(
        levels.shape[1],
        levels.shape[2],
        classes,
        tuple(mean.tolist()),
        tuple(std.clamp(min=1e-3).tolist()),
    )
    return train, val, spec


def _digits() -> tuple[Tensor, Tensor, tuple[str, ...], int]:
    # its import takes a second
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))
    return (
        (rows[:, :-1] * (255 / 16)).round().byte().view(-1, 1, 8, 8),
        rows[:, -1].long(),
        tuple("0123456789"),
        0,
    )


def _folder(path: Path, labels: bool) -> tuple[list[Path], Tensor, tuple[str, ...], int]:
    """Return files, labels, classes, and how many of the last files are those in `val`."""
    given = (path / "train").is_dir() and (path / "val").is_dir()
    # without hidden ones
    found = sorted(glob("*/" * (given + labels) + "**", root_dir=path, recursive=True))
    files = [
        Path(name) for name in found if Path(name).suffix.lower() in Image.registered_extensions()
    ]
    files = [file for file in files if not given or file.parts[0] in ("train", "val")]
    val_count = sum(given and file.parts[0] == "val" for file in files)
    names = [file.parts[given] if labels else "image" for file in files]
    classes = sorted(set(names))
    with suppress(ValueError):  # raised for a name that is not a number
        classes = (
            sorted(classes, key=float) if np.isfinite(np.array(classes, float)).all() else classes
        )
    numbers = {name: number for number, name in enumerate(classes)}
    if len(classes) < 1 + labels or len(set(names[: len(files) - val_count])) < len(classes):
        raise UserError(
            f"data.path={path} has {len(classes)} classes: give a folder of training images per class"
        )
    return (
        [path / file for file in files],
        torch.tensor([numbers[name] for name in names]),
        tuple(classes),
        val_count,
    )


def decode(file: Path, cfg: DataConfig) -> Tensor:
    """Read an image of any format and shape as (channels, size, size), uint8."""
    mode = "RGB" if cfg.channels == 3 else "L"
    try:
        with Image.open(file) as opened:
            # lets the JPEG decoder skip resolution that is not needed
            opened.draft(mode, (cfg.size, cfg.size))
            image: Image.Image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")):  # 16 or 32 bits
            raise ValueError(f"the range of pixels of mode {image.mode} is not known")
        pixels = np.array(
            image.convert(mode).resize((cfg.size, cfg.size), Image.Resampling.BILINEAR)
        )
    except Exception as error:  # for a broken file Pillow raises almost anything
        raise UserError(
            f"cannot read the image {file} ({error}): convert it to 8 bits, or remove it"
        ) from error
    return torch.from_numpy(pixels).view(cfg.size, cfg.size, cfg.channels).permute(2, 0, 1)
