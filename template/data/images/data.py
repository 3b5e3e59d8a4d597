"""Images: scikit-learn's handwritten digits, or your own folder.

This file is yours to edit. Training needs `DataConfig`, `Spec`, `load` and `Prepare`; `describe`
and `load_test` are optional: see contracts.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from .config_base import Section, within
from .errors import UserError
from .image_files import (
    are_transparent,
    check_options,
    read_folder,
    read_image,
    sort_names,
    split_digits,
)

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
    channels: Literal[1, 3, 4] = 3
    """Convert your own images to RGB, 3, or grayscale, 1; or 4, RGB and transparency. The digits
    are grayscale."""
    background: str = "white"
    """Color behind transparent pixels, such as black or #808080; without effect for 4 channels."""
    labels: bool = True
    """Whether subfolders are classes; false: all images below the folder are of one class, to
    generate more of them."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation, chosen by a hash of their names, unless the folder has
    `train` and `val`."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of the images for the test split, unless the folder has `train` and another one."""
    shift: int = within("[0, 64]", 1)
    """Augmentation: maximum random shift in pixels, in each direction; 0 for off."""
    flip: bool = False
    """Augmentation: flip images horizontally with probability 0.5. Not for digits."""
    crop: float = within("(0, 1]", 1.0)
    """Augmentation: cut a random part with at least this fraction of the area, and resize it to the
    whole; 1 for off. 0.08 is usual for ImageNet."""
    jitter: float = within("[0, 1]", 0.0)
    """Augmentation: maximum change of brightness, contrast and saturation; 0 for off. 0.4 is
    usual."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)


@dataclass(frozen=True)
class Spec:
    """What the model needs to know."""

    channels: int
    size: int  # height and width, in pixels
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel in the training set, for pixels from 0 to 1
    std: tuple[float, ...]
    background: str = "white"  # color behind transparent pixels
    transparent: bool = False  # whether training images have any


class Images(Dataset[tuple[Tensor, ...]]):
    """Samples in memory, or files to decode.

    A batch: images (n, channels, size, size), uint8, and labels (n,), int64.
    """

    def __init__(
        self,
        samples: list[Sample],
        classes: Sequence[str],
        cfg: DataConfig,
        notes: Sequence[str] = (),
    ) -> None:
        numbers = {name: number for number, name in enumerate(classes)}
        for image, name in samples:
            if name not in numbers:
                raise UserError(
                    f"{image} is of the class {name}, of which the run has no training images: "
                    "remove it, or add training images for a new run"
                )
        labels = [numbers[name] for _, name in samples]
        self.images = [image for image, _ in samples]
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.classes = tuple(classes)
        self.cfg = cfg
        self.notes = notes
        self.in_memory = cfg.path is None

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(
        self,
        indices: list[int],
    ) -> tuple[Tensor, ...]:
        images = []
        for index in indices:
            image = self.images[index]
            images.append(read_image(image, self.cfg) if isinstance(image, Path) else image)
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
        if training:
            images = augment(images, self.cfg, generator)
        images = (images - self.mean) / self.std
        return images, labels


def augment(
    images: Tensor,
    cfg: DataConfig,
    generator: torch.Generator,
) -> Tensor:
    """Change each image at random, as the options say; values are from 0 to 1."""
    if cfg.crop < 1:
        images = random_crop(images, cfg.crop, generator)
    if cfg.flip:
        images = random_flip(images, generator)
    if cfg.shift:
        images = random_shift(images, cfg.shift, generator)
    if cfg.jitter:
        images = jitter_colors(images, cfg.jitter, generator)
    return images


def random_crop(
    images: Tensor,
    least: float,
    generator: torch.Generator,
) -> Tensor:
    """Cut a part with at least `least` of the area and sides of up to 4:3; resize it to the whole.

    Szegedy et al. 2014, arXiv:1409.4842, section 6.
    """
    random = torch.rand(
        (4, len(images)),
        device=images.device,
        generator=generator,
    )
    area = least + (1 - least) * random[0]
    ratio = (4 / 3) ** (2 * random[1] - 1)
    ratio = ratio.clamp(area, 1 / area)  # else a side would be longer than the image
    width = (area * ratio).sqrt()
    height = (area / ratio).sqrt()
    x = (1 - width) * (2 * random[2] - 1)  # of the center; the image is from -1 to 1
    y = (1 - height) * (2 * random[3] - 1)
    zero = torch.zeros_like(area)
    matrix = torch.stack((width, zero, x, zero, height, y), 1)
    grid = nn.functional.affine_grid(
        matrix.view(-1, 2, 3),
        list(images.shape),
        align_corners=False,
    )
    return nn.functional.grid_sample(
        images,
        grid,
        padding_mode="border",
        align_corners=False,
    )


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


def jitter_colors(
    images: Tensor,
    most: float,
    generator: torch.Generator,
) -> Tensor:
    """Multiply brightness, contrast and saturation by random factors from 1 - `most` to 1 + `most`.

    A fourth channel, the transparency, stays.
    """
    random = torch.rand(
        (3, len(images), 1, 1, 1),
        device=images.device,
        generator=generator,
    )
    brightness, contrast, saturation = 1 + most * (2 * random - 1)
    colors = (brightness * images[:, :3]).clamp(0, 1)
    mean = to_gray(colors).mean((2, 3), keepdim=True)
    colors = torch.lerp(mean, colors, contrast).clamp(0, 1)
    colors = torch.lerp(to_gray(colors), colors, saturation).clamp(0, 1)
    return torch.cat((colors, images[:, 3:]), 1)


def to_gray(colors: Tensor) -> Tensor:
    """Return the brightness (n, 1, height, width) that the eye sees (ITU-R BT.601)."""
    if colors.shape[1] == 1:
        return colors
    red, green, blue = colors.split(1, 1)
    gray: Tensor = 0.299 * red + 0.587 * green + 0.114 * blue
    return gray


def load(cfg: DataConfig, spec: Spec | None = None) -> tuple[Images, Images, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `Spec` of a run, its classes and statistics are kept.
    """
    splits, notes = _read(cfg)
    classes = spec.classes if spec else _find_classes(splits["train"], notes, cfg)
    if not splits["val"]:
        raise UserError(
            f"data.path={cfg.path} has no validation images, and {len(splits['train'])} for "
            "training: add images, or change data.val_fraction"
        )
    train = Images(splits["train"], classes, cfg, notes)
    val = Images(splits["val"], classes, cfg)
    return train, val, spec or _find_spec(train)


def load_test(cfg: DataConfig, spec: Spec | None = None) -> Images | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    splits, notes = _read(cfg)
    classes = spec.classes if spec else _find_classes(splits["train"], notes, cfg)
    return Images(splits["test"], classes, cfg) if splits["test"] else None


def describe(
    train: Images,
    val: Images,
    spec: Spec,
) -> list[str]:
    """Return lines that say what was read, and how it was understood."""
    names = spec.classes
    in_train = train.labels.bincount(minlength=len(names)).tolist()
    in_val = val.labels.bincount(minlength=len(names)).tolist()
    images = f"{len(train)} + {len(val)} images"
    if len(names) > 5:
        images = f"{len(names)} classes, {images}"
    elif len(names) > 1:
        counts = zip(names, in_train, in_val, strict=True)
        listed = [f"{name} ({for_train} + {for_val})" for name, for_train, for_val in counts]
        images = f"{len(names)} classes: {', '.join(listed)}"
    first = [f"{images} for training + validation", *train.notes]
    if spec.transparent:
        shown = "kept" if spec.channels == 4 else f"{spec.background} (data.background)"
        first.append(f"transparent pixels are {shown}")
    lines = ["; ".join(first)]
    plain = Counter(name.strip().casefold() for name in names)
    similar = [name for name in names if plain[name.strip().casefold()] > 1]
    if similar:
        lines.append(f"classes that differ only by case or blanks: {', '.join(similar)}")
    if max(in_val) == len(val) and len(names) > 1:
        lines.append(f"all validation images are of the class {names[in_val.index(len(val))]}")
    return lines


def _read(cfg: DataConfig) -> tuple[dict[str, list[Sample]], list[str]]:
    """Return the samples of each split, and notes on other files."""
    if cfg.path is not None:
        return read_folder(
            cfg.path,
            cfg.labels,
            cfg.val_fraction,
            cfg.test_fraction,
        )
    splits: dict[str, list[Sample]] = {}
    for split, (images, labels) in split_digits(cfg.val_fraction, cfg.test_fraction).items():
        names = map(str, labels.tolist())
        splits[split] = list(zip(images.unsqueeze(1), names, strict=True))
    return splits, []


def _find_classes(
    train: list[Sample],
    notes: list[str],
    cfg: DataConfig,
) -> list[str]:
    """Return the names of the classes, in order."""
    names = sort_names({name for _, name in train})
    fewest = 2 if cfg.labels else 1
    if len(names) < fewest:
        has = f"only one class, {names[0]}" if names else "no images"
        needed = "a subfolder of images per class" if cfg.labels else "images"
        message = f"data.path={cfg.path} has {has}: give a folder with {needed}"
        raise UserError("; ".join([message, *notes]))
    return names


def _find_spec(train: Images) -> Spec:
    """Return the `Spec`, with the statistics of all digits, or of 4 million pixels of files."""
    cfg = train.cfg
    every = 1 if train.in_memory else 1 + len(train) * cfg.size**2 // 2**22
    images, _ = train.__getitems__(list(range(0, len(train), every)))
    transparent = are_transparent(train.images[::every], images, cfg.background)
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
        classes=train.classes,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        background=cfg.background,
        transparent=transparent,
    )
