"""Image segmentation data: handwritten digits placed on canvases, or your own folders of images and masks.

This file is yours to edit. The rest of the project uses `DataConfig`, `load` and `Prepare`; see contracts.py.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from .config_base import Section, within
from .errors import UserError
from .readers.digits import load_digits
from .readers.segmentation import IGNORED, Data, Samples, Spec, split

__all__ = ["IGNORED", "Data", "Samples", "Spec"]  # what `load` returns, with the type of `Data.spec`

UNIT = "img"  # the word for a sample in the log

Batch = tuple[Tensor, Tensor]
"""Images (n, channels, size, size), uint8 as loaded and float32 as prepared; class indices (n, size, size), uint8
as loaded and int64 as prepared."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images and masks to load, and how to augment them."""

    path: Path | None = None
    """Folder with `images` and `masks`, or with `train` and `val` that have these; null: digits placed on canvases."""
    size: int = within("[8, 4096]", 128)
    """Height and width in pixels to which your own images and masks are resized; the canvases keep their 32."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation, unless `path` has `train` and `val`; of the digits, for the canvases."""
    ignore: int | None = within("[0, 255]", None)
    """Mask value whose pixels are ignored in the loss and the metrics: 255 in PASCAL VOC and Cityscapes."""
    shift: int = within("[0, 512]", 2)
    """Augmentation: maximum random shift of image and mask in pixels, in each direction; 0: off."""
    flip: bool = False
    """Augmentation: flip images and masks horizontally with probability 0.5. Not for digits."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Maximum fraction of unreadable files, and of those without counterpart, which are skipped and counted."""
    cache_dir: Path = Path(".cache")
    """Folder for data derived from your own files, such as decoded images."""
    cache: Literal["none", "disk", "device"] = "none"
    """disk: decode and resize all once, into a memory-mapped file in `cache_dir`. device: keep all samples in device
    memory and gather each batch there; for small data sets."""


class InMemory:
    """Dataset of decoded images and masks in tensors: a batch is one `index_select` of each."""

    def __init__(self, images: Tensor, masks: Tensor) -> None:
        self.images, self.masks = images, masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return self.images.index_select(0, chosen), self.masks.index_select(0, chosen)


def load(cfg: DataConfig) -> Data:
    """Load the images and masks; the split depends only on their names or order.

    Raises:
        UserError: files are missing, do not match, are too few, or too many are unreadable.
    """
    if cfg.path is None:
        return _canvases(cfg)
    from .readers import masks  # imported here because Pillow is only needed here

    return masks.load(cfg, cfg.path)


SIDE, DIGIT, CELLS = 32, 8, 3
"""Size of a canvas and of a digit, in pixels; a canvas has 3 x 3 cells, each two pixels larger than a digit."""
DIGITS, SCRAMBLED, COPIES = 4, 2, 3
"""Per canvas: digits, and digits with shuffled pixels, which are background; and the number of canvases per digit."""
INK = 96
"""Pixels of a digit from this value on, up to 255, belong to its mask; the noise around is darker."""


def _canvases(cfg: DataConfig) -> Data:
    digits, labels = load_digits()
    parts = split(len(labels), cfg.val_fraction)
    splits = [_place(digits[part], labels[part].to(torch.uint8), seed) for seed, part in enumerate(parts)]
    classes = ("background", *map(str, range(10)))
    pixels = torch.bincount(splits[0].masks.flatten(), minlength=len(classes)).tolist()
    levels = splits[0].images.long()
    total, squares, count = int(levels.sum()), int((levels**2).sum()), levels.numel()
    std = math.sqrt((count * squares - total**2) / count**2)  # integers up to here: bit-identical on every machine
    mean_std = (total / count / 255,), (std / 255,)
    spec = Spec(1, SIDE, classes, tuple(range(len(classes))), None, tuple(pixels), *mean_std)
    return Data(splits[0], splits[1], spec, in_memory=True)


def _place(digits: Tensor, labels: Tensor, seed: int) -> InMemory:
    """Place digits on noisy canvases, one per cell, with masks of the digits' pixels."""
    generator = torch.Generator().manual_seed(seed)
    n = len(digits) * COPIES // DIGITS
    if n == 0:
        raise UserError(f"data.val_fraction leaves {len(digits)} digits in one split: a canvas needs two")
    order = torch.cat([torch.randperm(len(digits), generator=generator) for _ in range(COPIES)])[: n * DIGITS]
    placed = digits[order].view(n, DIGITS, DIGIT**2)
    shuffled = torch.rand(n, SCRAMBLED, DIGIT**2, generator=generator).argsort(dim=-1, stable=True)
    scrambled = placed.roll(1, 0)[:, :SCRAMBLED].gather(-1, shuffled)
    patches = torch.cat([placed, scrambled], 1).view(n, -1, DIGIT, DIGIT)

    cells = torch.rand(n, CELLS**2, generator=generator).argsort(dim=-1, stable=True)[:, : patches.shape[1]]
    jitter = torch.randint(0, 3, (2, *cells.shape), generator=generator)
    corners = torch.stack([cells // CELLS, cells % CELLS]) * (DIGIT + 2) + 1 + jitter
    rows, columns = corners.unsqueeze(-1) + torch.arange(DIGIT)
    place = torch.arange(n).view(n, 1, 1, 1), rows.unsqueeze(-1), columns.unsqueeze(-2)

    images = torch.randint(0, INK, (n, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    images[place] = torch.maximum(images[place], patches)
    classes = torch.zeros(n, patches.shape[1], dtype=torch.uint8)  # 0, background, for the scrambled digits
    classes[:, :DIGITS] = labels[order].view(n, DIGITS) + 1
    masks = torch.zeros_like(images)
    masks[place] = (patches >= INK) * classes.view(n, -1, 1, 1)
    return InMemory(images.unsqueeze(1), masks)


class Prepare(nn.Module):
    """Prepares a batch on the device: augmentation of images and masks in training, conversion, normalization."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Turn a batch as loaded into model inputs; random numbers come from `generator` only."""
        images, masks = batch
        if training and self.cfg.flip:
            flipped = torch.rand(len(images), 1, 1, device=images.device, generator=generator) < 0.5
            images = torch.where(flipped.unsqueeze(1), images.flip(-1), images)
            masks = torch.where(flipped, masks.flip(-1), masks)
        if training and self.cfg.shift:
            images, masks = shift(images, masks, self.cfg.shift, generator)
        return (images.float() / 255 - self.mean) / self.std, masks.long()


def shift(images: Tensor, masks: Tensor, max_shift: int, generator: torch.Generator) -> Batch:
    """Shift each image and its mask by a random integer number of pixels, replicating the edges."""
    n, _, h, w = images.shape
    offset = torch.randint(-max_shift, max_shift + 1, (2, n, 1), device=images.device, generator=generator)
    rows = (offset[0] + torch.arange(h, device=images.device)).clamp(0, h - 1).unsqueeze(2)
    columns = (offset[1] + torch.arange(w, device=images.device)).clamp(0, w - 1).unsqueeze(1)
    sample = torch.arange(n, device=images.device).view(n, 1, 1)
    shifted = images.permute(0, 2, 3, 1)[sample, rows, columns].permute(0, 3, 1, 2)
    return shifted, masks[sample, rows, columns]
