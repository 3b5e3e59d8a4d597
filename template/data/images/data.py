"""Images: scikit-learn's handwritten digits, or your own folder.

This file is yours to edit; train.py uses `load`.
"""

from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import Dataset

from .config_base import Section, within
from .errors import UserError

Sample = tuple[Tensor | Path, str]
"""An image (channels, size, size), uint8, or the file of one; and the name of its class."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images to load, and how to augment them."""

    path: Path | None = None
    """Folder with a subfolder per class, or with `train`, `val` and, if you have one, `test`, each
    with these; null: digits of 8 x 8 pixels."""
    size: int = within("[4, 4096]", 64)
    """Height and width in pixels to which your own images are resized; the digits keep theirs."""
    channels: Literal[1, 3] = 3
    """Convert your own images to RGB, 3, or grayscale, 1; the digits are grayscale."""
    labels: bool = True
    """Whether subfolders are classes; false: all images below the folder are of one class, to
    generate more of them."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation, unless the folder has `train` and `val`."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of the images for the test split, unless the folder has `train` and `val`."""
    shift: int = within("[0, 64]", 1)
    """Augmentation: maximum random shift in pixels, in each direction; 0 for off."""
    flip: bool = False
    """Augmentation: flip images horizontally with probability 0.5. Not for digits."""


@dataclass(frozen=True)
class Spec:
    """What the model needs to know."""

    channels: int
    size: int  # height and width, in pixels
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel in the training set, for pixels from 0 to 1
    std: tuple[float, ...]


class Images(Dataset[tuple[Tensor, ...]]):
    """Samples in memory, or files to decode.

    A batch: images (n, channels, size, size), uint8, and labels (n,), int64.
    """

    def __init__(
        self,
        samples: list[Sample],
        classes: list[str],
        cfg: DataConfig,
    ) -> None:
        numbers = {name: number for number, name in enumerate(classes)}
        labels = [numbers[name] for _, name in samples]
        self.images = [image for image, _ in samples]
        self.labels = torch.tensor(labels)
        self.cfg = cfg
        self.in_memory = cfg.path is None

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        images = []
        for index in indices:
            image = self.images[index]
            if isinstance(image, Path):
                image = decode(image, self.cfg)
            images.append(image)
        return torch.stack(images), self.labels[indices]


class Prepare(nn.Module):
    """Prepares a batch on the device: converts, augments in training, and normalizes."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        mean = torch.tensor(spec.mean).view(-1, 1, 1)
        std = torch.tensor(spec.std).view(-1, 1, 1)
        self.mean = nn.Buffer(mean, persistent=False)
        self.std = nn.Buffer(std, persistent=False)

    def forward(
        self,
        batch: tuple[Tensor, ...],
        training: bool,
        generator: torch.Generator,
    ) -> tuple[Tensor, ...]:
        """Return images (n, channels, size, size), float32, and labels (n,)."""
        images, labels = batch
        images = images.float() / 255
        if training and self.cfg.flip:
            images = random_flip(images, generator)
        if training and self.cfg.shift:
            images = random_shift(images, self.cfg.shift, generator)
        images = (images - self.mean) / self.std
        return images, labels


def random_flip(
    images: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Flip each image horizontally with probability 0.5."""
    random = torch.rand(
        (len(images), 1, 1, 1),
        device=images.device,
        generator=generator,
    )
    flipped = images.flip(-1)
    return torch.where(random < 0.5, flipped, images)


def random_shift(
    images: Tensor,
    most: int,
    generator: torch.Generator,
) -> Tensor:
    """Move each image by up to `most` pixels in each direction; zeros fill the gap."""
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (most, most, most, most))
    crops = padded.unfold(2, height, 1)
    crops = crops.unfold(3, width, 1)  # a view of all possible crops
    rows, columns = torch.randint(
        2 * most + 1,
        (2, count),
        device=images.device,
        generator=generator,
    )
    samples = torch.arange(count, device=images.device)
    shifted = crops[samples, :, rows, columns]
    return shifted.clone(memory_format=torch.channels_last)  # convolutions prefer it


def load(cfg: DataConfig) -> tuple[Images, Images, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    train_samples, val_samples, _ = _read(cfg)
    classes = _classes(train_samples, val_samples, cfg)
    train = Images(train_samples, classes, cfg)
    val = Images(val_samples, classes, cfg)
    return train, val, _describe(train, classes)


def load_test(cfg: DataConfig) -> Images | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    train, val, test = _read(cfg)
    classes = _classes(train, val, cfg)
    for image, name in test:
        if name not in classes:
            raise UserError(f"{image} is of the class {name}, which has no training images")
    return Images(test, classes, cfg) if test else None


def _read(cfg: DataConfig) -> list[list[Sample]]:
    """Return the samples for training, for validation and for the test."""
    if cfg.path is None:
        return _divide(_digits(), cfg)
    train = cfg.path / "train"
    val = cfg.path / "val"
    test = cfg.path / "test"
    if train.is_dir() and val.is_dir():
        return [_find(folder, cfg) for folder in (train, val, test)]
    return _divide(_find(cfg.path, cfg), cfg)


def _digits() -> list[Sample]:
    from sklearn.datasets import load_digits  # here, because this takes a second

    digits = load_digits()
    pixels = torch.from_numpy(digits.images) * (255 / 16)
    images = pixels.round().byte().unsqueeze(1)
    names = map(str, digits.target)
    return list(zip(images, names, strict=True))


def _find(
    folder: Path,
    cfg: DataConfig,
) -> list[Sample]:
    """Return the images below a folder, without hidden ones."""
    formats = Image.registered_extensions()
    names = glob("**", root_dir=folder, recursive=True)
    samples: list[Sample] = []
    for file in map(Path, sorted(names)):
        if file.suffix.lower() not in formats:
            continue
        if not cfg.labels:
            samples.append((folder / file, "image"))
        elif len(file.parts) > 1:
            samples.append((folder / file, file.parts[0]))
    return samples


def _divide(
    samples: list[Sample],
    cfg: DataConfig,
) -> list[list[Sample]]:
    """Divide the samples at random, always in the same way."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(samples), generator=generator)
    shuffled = [samples[index] for index in order]
    val_end = round(len(samples) * cfg.val_fraction)
    test_end = val_end + round(len(samples) * cfg.test_fraction)
    train = shuffled[test_end:]
    val = shuffled[:val_end]
    test = shuffled[val_end:test_end]
    return [train, val, test]


def _classes(
    train: list[Sample],
    val: list[Sample],
    cfg: DataConfig,
) -> list[str]:
    """Return the names of the classes, sorted as numbers if all are, or else as text."""
    known = {name for _, name in train}
    names = sorted(known.union(name for _, name in val))
    fewest = 2 if cfg.labels else 1
    if len(names) < fewest or len(names) > len(known):
        raise UserError(
            f"data.path={cfg.path} has {len(names)} classes: "
            "give a folder of training images per class"
        )
    with suppress(ValueError):  # for a name that is not a number
        numbers = [float(name) for name in names]
        if np.isfinite(numbers).all():
            names.sort(key=float)
    return names


def _describe(
    train: Images,
    classes: list[str],
) -> Spec:
    """Return the `Spec`, with the statistics of all digits, or of 4 million pixels of files."""
    every = 1
    if not train.in_memory:
        every += len(train) * train.cfg.size**2 // 2**22
    indices = range(0, len(train), every)
    images, _ = train.__getitems__(list(indices))
    pixels = images.double() / 255
    std, mean = torch.std_mean(
        pixels,
        (0, 2, 3),
        correction=0,
    )
    std = std.clamp(min=1e-3)
    return Spec(
        channels=images.shape[1],
        size=images.shape[2],
        classes=tuple(classes),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )


def decode(file: Path, cfg: DataConfig) -> Tensor:
    """Read an image of any format and shape as (channels, size, size), uint8."""
    mode = "RGB" if cfg.channels == 3 else "L"
    size = (cfg.size, cfg.size)
    try:
        with Image.open(file) as opened:
            opened.draft(mode, size)  # a JPEG decoder skips resolution that is not needed
            image: Image.Image = ImageOps.exif_transpose(opened)
        if image.mode.startswith(("I", "F")):  # 16 or 32 bits
            raise ValueError(f"the range of pixels of mode {image.mode} is not known")
        image = image.convert(mode)
        image = image.resize(size, Image.Resampling.BILINEAR)
    except Exception as error:  # for a broken file Pillow raises almost anything
        raise UserError(
            f"cannot read the image {file} ({error}): convert it to 8 bits, or remove it"
        ) from error
    pixels = torch.from_numpy(np.array(image))
    pixels = pixels.view(
        cfg.size,
        cfg.size,
        cfg.channels,
    )
    return pixels.permute(2, 0, 1)
