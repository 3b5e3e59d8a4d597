"""Images and their masks: handwritten digits placed on canvases, or your own folders of images and of masks.

Yours to change. The rest of the project needs `DataConfig`, `load` and `Prepare`, as they stand here.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from .config_base import Section, within
from .errors import UserError

Batch = tuple[Tensor, Tensor]
"""Images (n, channels, size, size), uint8 as loaded and float as prepared; class indices (n, size, size), uint8 as
loaded and int64 as prepared."""

IGNORED = 255
"""What a pixel that does not count has in the masks as loaded, whatever it has in your files."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images and masks, and what training sees of them."""

    path: Path | None = None
    """A folder with `images` and `masks`, or with `train` and `val` that do; null: digits placed on canvases."""
    size: int = within("[8, 4096]", 128)
    """Side, in pixels, to which your own images and masks are resized. The canvases keep their 32."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Share of the images that is held out, where `path` has no `train` and `val`; of the digits, for the canvases."""
    ignore: int | None = within("[0, 255]", None)
    """A value in your masks whose pixels neither train nor count: 255 in PASCAL VOC and in Cityscapes."""
    shift: int = within("[0, 512]", 2)
    """Augmentation: the largest shift of image and mask in pixels, each way; 0 for none."""
    flip: bool = False
    """Augmentation: mirror half of the images and their masks from left to right. Not for digits."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Share of your files that may be unreadable; they are left out, and counted."""
    cache_dir: Path = Path(".cache")
    """Where what is made once of your own files is kept."""
    cache: Literal["none", "disk", "device"] = "none"
    """disk: decode and resize all once into a memory-mapped file under `cache_dir`; device: keep all samples in the
    device's memory, and gather each batch there, for small data sets."""


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` must know of the data."""

    channels: int
    size: int
    """Side of the square images, in pixels."""
    classes: tuple[str, ...]
    values: tuple[int, ...]
    """What each class has in mask files."""
    ignore: int | None
    """The index in masks of pixels that do not count; None: all do."""
    pixels: tuple[int, ...]
    """Of each class, in the train split."""
    mean: tuple[float, ...]
    """Of each channel over the train split, on a scale from 0 to 1."""
    std: tuple[float, ...]


class Samples(Protocol):
    """Images with their masks, a whole batch in one call."""

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> Batch: ...


class InMemory:
    """Images and masks that lie decoded in tensors: a batch is one slice of each."""

    def __init__(self, images: Tensor, masks: Tensor) -> None:
        self.images, self.masks = images, masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return self.images.index_select(0, chosen), self.masks.index_select(0, chosen)


@dataclass(frozen=True)
class Data:
    """Both splits, and what they have in common."""

    train: Samples
    val: Samples
    spec: Spec
    in_memory: bool
    """Whether a batch costs so little that a loader process would only add to it."""
    problems: tuple[str, ...] = ()
    """What was left out and what else one should know, a line each."""


def load(cfg: DataConfig) -> Data:
    """Open the images; the split depends on nothing but their names or order.

    Raises:
        UserError: the files are missing, do not fit together, or are too few or too bad.
    """
    if cfg.path is None:
        return _canvases(cfg)
    from .readers import masks

    return masks.load(cfg, cfg.path)


def split(count: int, val_fraction: float) -> tuple[Tensor, Tensor]:
    """Indices of train and of val.

    Raises:
        UserError: one of the two would be empty.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    held_out = round(count * val_fraction)
    if not 0 < held_out < count:
        raise UserError(f"data.val_fraction={val_fraction} of {count} images leaves one split empty: add images")
    return order[held_out:], order[:held_out]


SIDE, DIGIT, CELLS = 32, 8, 3
"""Of a canvas and of a digit, in pixels; a canvas has 3 x 3 cells, each with room for a digit and two pixels more."""
DIGITS, SCRAMBLED, COPIES = 4, 2, 3
"""On each canvas, digits, and others with their pixels in disorder, which are background; canvases with each digit."""
INK = 96
"""From here on, to the white of 255, a pixel of a digit counts as its own; the noise around it is darker."""


def _canvases(cfg: DataConfig) -> Data:
    from sklearn.datasets import load_digits  # takes over a second to import, so only where it is used

    found = load_digits()
    digits = (torch.from_numpy(found.images) * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(found.target).to(torch.uint8)
    parts = split(len(labels), cfg.val_fraction)
    splits = [_place(digits[part], labels[part], seed) for seed, part in enumerate(parts)]
    classes = ("background", *map(str, range(10)))
    pixels = torch.bincount(splits[0].masks.flatten(), minlength=len(classes)).tolist()
    shades = splits[0].images.long()
    total, squares, count = int(shades.sum()), int((shades**2).sum()), shades.numel()
    std = math.sqrt((count * squares - total**2) / count**2)  # in whole numbers up to here: the same on every machine
    mean_std = (total / count / 255,), (std / 255,)
    spec = Spec(1, SIDE, classes, tuple(range(len(classes))), None, tuple(pixels), *mean_std)
    return Data(splits[0], splits[1], spec, in_memory=True)


def _place(digits: Tensor, labels: Tensor, seed: int) -> InMemory:
    """Put digits on noisy canvases, each in a cell of its own, with masks of the digits' own pixels."""
    noise = torch.Generator().manual_seed(seed)
    n = len(digits) * COPIES // DIGITS
    if n == 0:
        raise UserError(f"data.val_fraction leaves {len(digits)} digits in one split: two are needed to fill a canvas")
    order = torch.cat([torch.randperm(len(digits), generator=noise) for _ in range(COPIES)])[: n * DIGITS]
    placed = digits[order].view(n, DIGITS, DIGIT**2)
    disorder = torch.rand(n, SCRAMBLED, DIGIT**2, generator=noise).argsort(dim=-1, stable=True)
    scrambled = placed.roll(1, 0)[:, :SCRAMBLED].gather(-1, disorder)
    things = torch.cat([placed, scrambled], 1).view(n, -1, DIGIT, DIGIT)

    cells = torch.rand(n, CELLS**2, generator=noise).argsort(dim=-1, stable=True)[:, : things.shape[1]]
    jitter = torch.randint(0, 3, (2, *cells.shape), generator=noise)
    corners = torch.stack([cells // CELLS, cells % CELLS]) * (DIGIT + 2) + 1 + jitter
    rows, columns = corners.unsqueeze(-1) + torch.arange(DIGIT)
    place = torch.arange(n).view(n, 1, 1, 1), rows.unsqueeze(-1), columns.unsqueeze(-2)

    images = torch.randint(0, INK, (n, SIDE, SIDE), generator=noise, dtype=torch.uint8)
    images[place] = torch.maximum(images[place], things)
    names = torch.zeros(n, things.shape[1], dtype=torch.uint8)  # of what is scrambled: background
    names[:, :DIGITS] = labels[order].view(n, DIGITS) + 1
    masks = torch.zeros_like(images)
    masks[place] = (things >= INK) * names.view(n, -1, 1, 1)
    return InMemory(images.unsqueeze(1), masks)


class Prepare(nn.Module):
    """What happens to a batch on the device: moved while training, image and mask alike; to float and normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Take a batch as loaded, give it as the model wants it; noise comes from `generator` alone."""
        images, masks = batch
        if training and self.cfg.flip:
            mirrored = torch.rand(len(images), 1, 1, device=images.device, generator=generator) < 0.5
            images = torch.where(mirrored.unsqueeze(1), images.flip(-1), images)
            masks = torch.where(mirrored, masks.flip(-1), masks)
        if training and self.cfg.shift:
            images, masks = shift(images, masks, self.cfg.shift, generator)
        return (images.float() / 255 - self.mean) / self.std, masks.long()


def shift(images: Tensor, masks: Tensor, largest: int, generator: torch.Generator) -> Batch:
    """Move each image with its mask by its own whole number of pixels, at most `largest`; the edge is repeated."""
    n, _, h, w = images.shape
    by = torch.randint(-largest, largest + 1, (2, n, 1), device=images.device, generator=generator)
    rows = (by[0] + torch.arange(h, device=images.device)).clamp(0, h - 1).unsqueeze(2)
    columns = (by[1] + torch.arange(w, device=images.device)).clamp(0, w - 1).unsqueeze(1)
    sample = torch.arange(n, device=images.device).view(n, 1, 1)
    moved = images.permute(0, 2, 3, 1)[sample, rows, columns].permute(0, 3, 1, 2)
    return moved, masks[sample, rows, columns]


if __name__ == "__main__":
    from .tools.show import main

    main()
