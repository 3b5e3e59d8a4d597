"""Images and masks: handwritten digits placed on canvases, or your own folders.

This file is yours to edit.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images and masks to load, and how to augment them."""

    path: Path | None = None
    """Folder with `images` and, as PNG of the same names, `masks` of class values; null: digits on 32 x 32 canvases."""
    size: int = within("[8, 4096]", 128)
    """Height and width in pixels to which your own images and masks are resized."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation; for the canvases, of the digits."""
    ignore: int | None = within("[0, 255]", None)
    """Mask value whose pixels are ignored in the loss and the metrics: 255 in PASCAL VOC and Cityscapes."""
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
    """Images (n, channels, size, size) and masks (n, size, size) of class indices, uint8, in memory."""

    in_memory = True

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        return tuple(tensor.index_select(0, torch.as_tensor(indices)) for tensor in self.tensors)


class Prepare(nn.Module):
    """Prepares a batch on the device: augmentation of images and masks in training, conversion, normalization."""

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.mean = nn.Buffer(torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(
        self, batch: tuple[Tensor, ...], training: bool, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Turn a batch as loaded into model inputs and targets."""
        images, masks = batch
        if training and self.cfg.flip:
            flipped = torch.rand(len(images), 1, 1, device=images.device, generator=generator) < 0.5
            images = torch.where(flipped.unsqueeze(1), images.flip(-1), images)
            masks = torch.where(flipped, masks.flip(-1), masks)
        if training and self.cfg.shift:
            most, pixels = self.cfg.shift, torch.arange(images.shape[-1], device=images.device)
            offsets = torch.randint(
                -most, most + 1, (2, len(images), 1), device=images.device, generator=generator
            )
            rows, columns = (offsets + pixels).clamp(0, len(pixels) - 1)  # replicates the edges
            sample = torch.arange(len(images), device=images.device).view(-1, 1, 1)
            moved = sample, rows.unsqueeze(2), columns.unsqueeze(1)
            images, masks = images.permute(0, 2, 3, 1)[moved].permute(0, 3, 1, 2), masks[moved]
        return (images.float() / 255 - self.mean) / self.std, masks.long()


def load(cfg: DataConfig) -> tuple[Samples, Samples, Spec]:
    """Return the training set, the validation set and their `Spec`; the split depends only on the order of names."""
    if (
        cfg.path is None
    ):  # from scikit-learn's file, because importing scikit-learn takes about a second
        file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
        rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))
        images, masks = (
            (rows[:, :-1].view(-1, 8, 8) * (255 / 16)).round().byte(),
            rows[:, -1].byte(),
        )
    else:
        folder, masks_folder = cfg.path / "images", cfg.path / "masks"
        files = sorted(
            file.relative_to(folder) for file in folder.rglob("*.*") if file.name[0] != "."
        )
        if not files:
            raise UserError(
                f"data.path={cfg.path} has no image in its folder images: give another folder"
            )
        pairs = (
            (folder / file, masks_folder / file.with_suffix(".png"), cfg.size) for file in files
        )
        with ThreadPoolExecutor() as pool:
            images, masks = map(
                torch.stack, zip(*pool.map(lambda pair: read_pair(*pair), pairs), strict=True)
            )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    count = round(len(order) * cfg.val_fraction)
    parts = [(images[part], masks[part]) for part in (order[count:], order[:count])]
    if min(count, len(order) - count) < 2:
        raise UserError(
            f"data.val_fraction={cfg.val_fraction} of {len(order)} images is too small a split: add images"
        )
    if cfg.path is None:
        parts = [place(*part, seed) for seed, part in enumerate(parts)]
    values = sorted(
        {value for _, masks in parts for value in masks.unique().tolist()} - {cfg.ignore}
    )
    class_of = torch.full((256,), Spec.ignored, dtype=torch.uint8)
    class_of[values] = torch.arange(len(values), dtype=torch.uint8)
    train, val = (Samples(images, class_of[masks.long()]) for images, masks in parts)
    channels = parts[0][0].transpose(0, 1).flatten(1)
    shares = (
        torch.stack([channel.bincount(minlength=256) for channel in channels]).double()
        / channels.shape[1]
    )
    levels = torch.arange(256).double() / 255
    mean, std = (
        shares @ levels,
        (shares @ levels**2 - (shares @ levels) ** 2).sqrt().clamp(min=1 / 255),
    )
    shape = len(channels), parts[0][0].shape[-1]
    return (
        train,
        val,
        Spec(*shape, tuple(map(str, values)), tuple(mean.tolist()), tuple(std.tolist())),
    )


def read_pair(file: Path, mask_file: Path, size: int) -> tuple[Tensor, ...]:
    """Return an image (3, size, size) and its mask (size, size), uint8, resized but not cropped."""
    try:
        with Image.open(file) as opened, Image.open(mask_file) as mask:
            image = ImageOps.exif_transpose(opened)
            if image.size != mask.size:
                raise ValueError(f"the image has {image.size} pixels, the mask {mask.size}")
            if image.mode[0] in "IF" or mask.mode not in ("1", "L", "P"):
                raise ValueError(
                    f"modes {image.mode} and {mask.mode}; save images with 8 bits, masks in L or P mode"
                )
            pixels = np.array(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
            values = np.array(mask.resize((size, size), Image.Resampling.NEAREST), np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(
            f"cannot use {file} with {mask_file} ({error}): fix or remove them"
        ) from error
    return torch.from_numpy(pixels).permute(2, 0, 1), torch.from_numpy(values)


def place(digits: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Place 4 digits, and 2 with shuffled pixels as background, on noisy canvases of 3 x 3 cells of 10 pixels."""
    generator = torch.Generator().manual_seed(seed)
    n = len(digits) * 3 // 4
    # A digit is on 3 canvases; its pixels from 96 on belong to its mask, and the noise is darker.
    order = torch.cat([torch.randperm(len(digits), generator=generator) for _ in range(3)])[
        : n * 4
    ].view(n, 4)
    placed = digits[order].view(n, 4, 64)
    shuffled = torch.rand(n, 2, 64, generator=generator).argsort(dim=-1, stable=True)
    patches = torch.cat([placed, placed.roll(1, 0)[:, :2].gather(-1, shuffled)], 1).view(n, 6, 8, 8)
    cells = torch.rand(n, 9, generator=generator).argsort(dim=-1, stable=True)[:, :6]
    corners = (
        torch.stack([cells // 3, cells % 3]) * 10
        + 1
        + torch.randint(0, 3, (2, n, 6), generator=generator)
    )
    rows, columns = corners.unsqueeze(-1) + torch.arange(8)
    where = torch.arange(n).view(n, 1, 1, 1), rows.unsqueeze(-1), columns.unsqueeze(-2)
    images = torch.randint(0, 96, (n, 32, 32), generator=generator, dtype=torch.uint8)
    images[where] = torch.maximum(images[where], patches)
    classes = torch.cat([labels[order] + 1, torch.zeros(n, 2, dtype=torch.uint8)], dim=1)
    masks = torch.zeros_like(images)
    masks[where] = (patches >= 96) * classes.view(n, 6, 1, 1)
    return images.unsqueeze(1), masks
