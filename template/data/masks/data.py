"""Images and masks: handwritten digits placed on canvases, or your own folders.

This file is yours to edit; train.py uses `load`.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError

Batch = tuple[Tensor, ...]
Pair = tuple[Tensor, Tensor]
"""Images (n, channels, size, size) and masks (n, size, size), uint8; or one of each."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images and masks to load, and how to augment them."""

    path: Path | None = None
    """Folder with `images` and, as PNG of the same names, `masks` of class values; null: digits on
    32 x 32 canvases."""
    size: int = within("[8, 4096]", 128)
    """Height and width in pixels to which your own images and masks are resized."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation; for the canvases, of the digits."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of the images for the test split; for the canvases, of the digits."""
    ignore: int | None = within("[0, 255]", None)
    """Mask value whose pixels are ignored in the loss and the metrics: 255 in PASCAL VOC and
    Cityscapes."""
    shift: int = within("[0, 512]", 2)
    """Augmentation: maximum random shift of image and mask in pixels, in each direction; 0: off."""
    flip: bool = False
    """Augmentation: flip images and masks horizontally with probability 0.5. Not for digits."""


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    channels: int
    size: int  # height and width of the images, in pixels
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel over the training split, for pixels from 0 to 1
    std: tuple[float, ...]
    ignored: int = 255  # class index of ignored pixels


class Samples(TensorDataset):
    """Images (n, channels, size, size) and masks (n, size, size) of class indices, in memory."""

    in_memory = True

    def __init__(
        self,
        pairs: Pair,
        values: list[int],
    ) -> None:
        images, masks = pairs
        classes = torch.full(
            (256,),
            Spec.ignored,
            dtype=torch.uint8,
        )
        classes[values] = torch.arange(len(values), dtype=torch.uint8)
        super().__init__(images, classes[masks.long()])

    def __getitems__(self, indices: list[int]) -> Batch:
        images, masks = self.tensors
        return images[indices], masks[indices]


class Prepare(nn.Module):
    """Prepares a batch on the device: augments in training, converts, and normalizes."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        mean = torch.tensor(spec.mean).view(1, -1, 1, 1)
        std = torch.tensor(spec.std).view(1, -1, 1, 1)
        self.mean = nn.Buffer(mean, persistent=False)
        self.std = nn.Buffer(std, persistent=False)

    def forward(
        self,
        batch: Batch,
        training: bool,
        generator: torch.Generator,
    ) -> Batch:
        """Return images (n, channels, size, size), float32, and masks (n, size, size), int64."""
        images, masks = batch
        if training and self.cfg.flip:
            images, masks = random_flip(images, masks, generator)
        if training and self.cfg.shift:
            most = self.cfg.shift
            images, masks = random_shift(images, masks, most, generator)
        images = images.float() / 255
        return (images - self.mean) / self.std, masks.long()


def random_flip(
    images: Tensor,
    masks: Tensor,
    generator: torch.Generator,
) -> Pair:
    """Flip each image and its mask horizontally with probability 0.5."""
    random = torch.rand(
        (len(images), 1, 1),
        device=images.device,
        generator=generator,
    )
    flipped = random < 0.5
    masks = torch.where(
        flipped,
        masks.flip(-1),
        masks,
    )
    flipped = flipped.unsqueeze(1)
    images = torch.where(
        flipped,
        images.flip(-1),
        images,
    )
    return images, masks


def random_shift(
    images: Tensor,
    masks: Tensor,
    most: int,
    generator: torch.Generator,
) -> Pair:
    """Move each image and its mask by up to `most` pixels; the edges are repeated."""
    device = images.device
    count, _, _, size = images.shape
    offsets = torch.randint(
        -most,
        most + 1,
        (2, count, 1),
        device=device,
        generator=generator,
    )
    positions = offsets + torch.arange(size, device=device)
    rows, columns = positions.clamp(0, size - 1)
    samples = torch.arange(count, device=device)
    source = (
        samples.view(-1, 1, 1),
        rows.unsqueeze(2),
        columns.unsqueeze(1),
    )
    images = images.permute(0, 2, 3, 1)
    images = images[source].permute(0, 3, 1, 2)
    return images, masks[source]


def load(cfg: DataConfig) -> tuple[Samples, Samples, Spec]:
    """Return the training set, the validation set and their `Spec`."""
    train, val, test = _read(cfg)
    values = _values([train, val, test], cfg)
    spec = _describe(train, values)
    return Samples(train, values), Samples(val, values), spec


def load_test(cfg: DataConfig) -> Samples | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    splits = _read(cfg)
    images, masks = splits[2]
    values = _values(splits, cfg)
    return Samples((images, masks), values) if len(images) else None


def _read(cfg: DataConfig) -> list[Pair]:
    """Return the images and masks for training, for validation and for the test."""
    if cfg.path is None:
        return _canvases(cfg)
    images, masks = _own_pairs(cfg.path, cfg.size)
    parts = _divide(len(images), cfg)
    return [(images[part], masks[part]) for part in parts]


def _canvases(cfg: DataConfig) -> list[Pair]:
    from sklearn.datasets import load_digits  # here, because this takes a second

    digits = load_digits()
    pixels = torch.from_numpy(digits.images) * (255 / 16)
    images = pixels.round().byte()
    labels = torch.from_numpy(digits.target).byte()
    splits = []
    for seed, part in enumerate(_divide(len(images), cfg)):
        pair = place(images[part], labels[part], seed)
        splits.append(pair)
    return splits


def _own_pairs(path: Path, size: int) -> Pair:
    folder = path / "images"
    files = sorted(folder.rglob("*.*"))
    files = [file for file in files if file.name[0] != "."]
    if not files:
        raise UserError(f"data.path={path} has no image in its folder images: give another folder")

    def read(file: Path) -> Pair:
        mask = path / "masks" / file.relative_to(folder)
        return read_pair(file, mask.with_suffix(".png"), size)

    with ThreadPoolExecutor() as pool:
        pairs = list(pool.map(read, files))
    images = [image for image, _ in pairs]
    masks = [mask for _, mask in pairs]
    return torch.stack(images), torch.stack(masks)


def _divide(
    count: int,
    cfg: DataConfig,
) -> list[Tensor]:
    """Return random indices for training, validation and the test, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(count, generator=generator)
    val_end = round(count * cfg.val_fraction)
    test_end = val_end + round(count * cfg.test_fraction)
    if min(val_end, count - test_end) < 2:
        raise UserError(
            f"data.val_fraction={cfg.val_fraction} of {count} images is too small a split: "
            "add images"
        )
    train = order[test_end:]
    val = order[:val_end]
    test = order[val_end:test_end]
    return [train, val, test]


def _values(
    splits: list[Pair],
    cfg: DataConfig,
) -> list[int]:
    """Return the values in masks, which are the classes."""
    masks = torch.cat([masks for _, masks in splits])
    values = masks.unique().tolist()
    return [value for value in values if value != cfg.ignore]


def _describe(
    train: Pair,
    values: list[int],
) -> Spec:
    """Compute the statistics from a histogram: images as floats would need 8 times the memory."""
    images, _ = train
    channels = images.transpose(0, 1).flatten(1)
    counts = [channel.bincount(minlength=256) for channel in channels]
    shares = torch.stack(counts).double() / channels.shape[1]
    levels = torch.arange(256).double() / 255
    mean = shares @ levels
    variance = shares @ levels**2 - mean**2
    std = variance.sqrt().clamp(min=1 / 255)
    return Spec(
        channels=len(channels),
        size=images.shape[-1],
        classes=tuple(map(str, values)),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )


def read_pair(
    file: Path,
    mask_file: Path,
    size: int,
) -> Pair:
    """Return an image (3, size, size) and its mask (size, size), uint8, resized but not cropped."""
    try:
        with Image.open(file) as opened, Image.open(mask_file) as mask:
            image = ImageOps.exif_transpose(opened)
            _check(image, mask)
            image = image.convert("RGB")
            image = image.resize((size, size), Image.Resampling.BILINEAR)
            resized = mask.resize((size, size), Image.Resampling.NEAREST)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"cannot use {file} with {mask_file} ({error}): fix or remove them"
        ) from error
    pixels = torch.from_numpy(np.array(image))
    values = torch.from_numpy(np.array(resized, np.uint8))
    return pixels.permute(2, 0, 1), values


def _check(
    image: Image.Image,
    mask: Image.Image,
) -> None:
    if image.size != mask.size:
        raise ValueError(f"the image has {image.size} pixels, the mask {mask.size}")
    if image.mode[0] in "IF" or mask.mode not in ("1", "L", "P"):
        raise ValueError(
            f"modes {image.mode} and {mask.mode}; save images with 8 bits, masks in L or P mode"
        )


def place(
    digits: Tensor,
    labels: Tensor,
    seed: int,
) -> Pair:
    """Place digits on noisy canvases of 3 x 3 cells of 10 pixels.

    A canvas has 4 digits and, as background, 2 with shuffled pixels. A digit is on 3 canvases; its
    pixels from 96 on belong to its mask, and the noise is darker.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(digits) * 3 // 4
    orders = [torch.randperm(len(digits), generator=generator) for _ in range(3)]
    order = torch.cat(orders)[: n * 4]
    order = order.view(n, 4)

    placed = digits[order].view(n, 4, 64)
    random = torch.rand(n, 2, 64, generator=generator)
    pixels = random.argsort(dim=-1, stable=True)
    others = placed.roll(1, 0)[:, :2]
    background = others.gather(-1, pixels)
    patches = torch.cat([placed, background], 1)
    patches = patches.view(n, 6, 8, 8)

    random = torch.rand(n, 9, generator=generator)
    cells = random.argsort(dim=-1, stable=True)
    cells = cells[:, :6]
    corners = torch.stack([cells // 3, cells % 3])
    shift = torch.randint(
        0,
        3,
        (2, n, 6),
        generator=generator,
    )
    corners = 10 * corners + 1 + shift
    rows, columns = corners.unsqueeze(-1) + torch.arange(8)
    target = (
        torch.arange(n).view(n, 1, 1, 1),
        rows.unsqueeze(-1),
        columns.unsqueeze(-2),
    )

    images = torch.randint(
        0,
        96,
        (n, 32, 32),
        generator=generator,
        dtype=torch.uint8,
    )
    images[target] = torch.maximum(images[target], patches)
    classes = nn.functional.pad(labels[order] + 1, (0, 2))  # class 0 for the background
    classes = classes.view(n, 6, 1, 1)
    masks = torch.zeros_like(images)
    masks[target] = (patches >= 96) * classes
    return images.unsqueeze(1), masks
