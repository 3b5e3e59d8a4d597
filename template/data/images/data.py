"""Image classification data: scikit-learn's handwritten digits, or your own folder with one subfolder per class.

This file is yours to edit. The rest of the project uses `DataConfig`, `load` and `Prepare`; see contracts.py.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config_base import Section, within
from .errors import UserError
from .readers.digits import load_digits

UNIT = "img"  # the word for a sample in the log

Batch = tuple[Tensor, Tensor]
"""Images (n, channels, size, size), uint8 as loaded, float32 as prepared; labels (n,), int64, or mixed (n, classes)."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images to load, and how to augment them."""

    path: Path | None = None
    """Folder with one subfolder of images per class, or with such folders `train` and `val`; null: scikit-learn's 1,797
    digits of 8 x 8 pixels."""
    size: int = within("[4, 4096]", 64)
    """Height and width in pixels to which your own images are resized; the digits keep theirs."""
    labels: bool = True
    """Whether subfolders are classes; false: all images below the folder are of one class, to generate more of them."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation, unless the folder has `train` and `val`."""
    max_unreadable: float = within("[0, 1]", 0.05)
    """Maximum fraction of unreadable files, which are skipped and counted."""
    cache_dir: Path = Path(".cache")
    """Folder for data derived from your own files, such as decoded images."""
    shift: int = within("[0, 64]", 1)
    """Augmentation: maximum random shift in pixels, in each direction; 0: off."""
    flip: bool = False
    """Augmentation: flip images horizontally with probability 0.5. Not for digits."""
    crop: float = within("(0, 1]", 1.0)
    """Augmentation: minimum fraction of the area in a random crop, which is resized to the whole; 1: off."""
    mixup: float = within("[0, 0.5]", 0.0)
    """Augmentation: maximum weight of another image and its label that are blended into each one; 0: off."""
    cache: Literal["none", "disk", "device"] = "none"
    """none: decode your images in every epoch. disk: decode and resize them once, into a memory-mapped file in
    `cache_dir`. device: keep all samples in device memory and gather each batch there; for small data sets."""


@dataclass(frozen=True)
class Spec:
    """What a model and `Prepare` need to know about the data."""

    channels: int
    size: int
    """Height and width of the images, in pixels."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Mean of each channel over the training split, for pixels from 0 to 1."""
    std: tuple[float, ...]


class InMemory:
    """Dataset of decoded images in one tensor: a batch is one `index_select`."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.as_tensor(indices)
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)


class Samples(Protocol):
    """A dataset, which returns a whole batch per call."""

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
    """Whether loading a batch is so cheap that worker processes would only slow it down."""
    problems: tuple[str, ...] = ()
    """What was skipped, and other warnings, one line each."""
    hint: str = ""  # how to load faster, said when a run starts


def load(cfg: DataConfig) -> Data:
    """Load the images; the split depends only on their names or order.

    Raises:
        UserError: the folder does not exist, or lacks what training needs.
    """
    return _digits(cfg) if cfg.path is None else _image_folder(cfg, cfg.path)


def _digits(cfg: DataConfig) -> Data:
    images, labels = load_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    val_count = round(len(labels) * cfg.val_fraction)
    if not 0 < val_count < len(labels):
        raise UserError(f"data.val_fraction={cfg.val_fraction} of {len(labels)} images leaves one split empty")
    train, val = (InMemory(images.unsqueeze(1)[part], labels[part]) for part in (order[val_count:], order[:val_count]))
    levels = train.images.long()  # integers, so that the statistics are bit-identical on every machine
    mean = levels.sum().item() / levels.numel()
    std = math.sqrt((levels**2).sum().item() / levels.numel() - mean**2)
    classes = tuple(map(str, range(10)))
    return Data(train, val, Spec(1, images.shape[-1], classes, (mean / 255,), (std / 255,)), in_memory=True)


def _image_folder(cfg: DataConfig, path: Path) -> Data:
    from .readers import images  # imported here because Pillow is only needed here

    found = images.find(path, cfg.val_fraction, cfg.labels)
    options = (cfg.size, 3, cfg.max_unreadable)
    train_files = [found.files[index] for index in found.train.tolist()]
    mean, std, problems = images.statistics(train_files, *options, cfg.cache_dir)
    spec = Spec(3, cfg.size, found.classes, mean, std)
    if cfg.cache == "disk":
        train, val, problems = images.mapped(found, *options, cfg.cache_dir)
        small = (len(train) + len(val)) * 3 * cfg.size**2 < 2**30  # else it is read from disk, so that workers help
        return Data(train, val, spec, small, found.problems + problems)
    val_files = [found.files[index] for index in found.val.tolist()]
    replaced = images.Decoding(train_files, found.labels[found.train], *options)
    left_out = images.Decoding(val_files, found.labels[found.val], *options, replace=False)
    return Data(replaced, left_out, spec, False, found.problems + problems, images.HINT)


class Prepare(nn.Module):
    """Prepares a batch on the device: conversion to float, augmentation in training, normalization."""

    mean: Tensor
    std: Tensor

    def __init__(self, spec: Spec, cfg: DataConfig) -> None:
        super().__init__()
        self.cfg, self.classes = cfg, len(spec.classes)
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1), persistent=False)

    def forward(self, batch: Batch, training: bool, generator: torch.Generator) -> Batch:
        """Turn a batch as loaded into model inputs; random numbers come from `generator` only."""
        images, labels = batch[0].float() / 255, batch[1]
        if training and self.cfg.flip:
            flipped = torch.rand(len(images), 1, 1, 1, device=images.device, generator=generator) < 0.5
            images = torch.where(flipped, images.flip(-1), images)
        if training and self.cfg.shift:
            images = shift(images, self.cfg.shift, generator)
        if training and self.cfg.crop < 1:
            images = random_resized_crop(images, self.cfg.crop, generator)
        if training and self.cfg.mixup:
            chosen = labels.unsqueeze(1) == torch.arange(self.classes, device=labels.device)  # one_hot may synchronize
            images, labels = mixup(images, chosen.float(), self.cfg.mixup, generator)
        return (images - self.mean) / self.std, labels


def shift(images: Tensor, max_shift: int, generator: torch.Generator) -> Tensor:
    """Shift each of the (n, c, h, w) images by a random integer number of pixels, padding with zeros."""
    n, _, h, w = images.shape
    padded = F.pad(images, (max_shift,) * 4)
    corner = torch.randint(0, 2 * max_shift + 1, (2, n, 1), device=images.device, generator=generator)
    rows = corner[0] + torch.arange(h, device=images.device)
    columns = corner[1] + torch.arange(w, device=images.device)
    sample = torch.arange(n, device=images.device).view(n, 1, 1)
    return padded.permute(0, 2, 3, 1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def random_resized_crop(images: Tensor, min_area: float, generator: torch.Generator) -> Tensor:
    """Crop a random part, of `min_area` to 1, of each of the (n, c, h, w) images, and resize it to (h, w) bilinearly.

    Aspect ratios are from 3/4 to 4/3 of the image's (Szegedy et al. 2015, arXiv:1409.4842, section 6).
    """
    area, ratio, left, top = torch.rand(4, len(images), device=images.device, generator=generator)
    area, ratio = min_area + (1 - min_area) * area, (4 / 3) ** (2 * ratio - 1)
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    left, top = (2 * left - 1) * (1 - width), (2 * top - 1) * (1 - height)  # in coordinates from -1 to 1
    boxes = torch.stack((width, 0 * width, left, 0 * width, height, top), 1).view(-1, 2, 3)
    grid = F.affine_grid(boxes, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def mixup(images: Tensor, labels: Tensor, most: float, generator: torch.Generator) -> Batch:
    """Blend each image, and its class probabilities (n, classes), with another of the batch.

    Its weight is uniform up to `most`; 0.5 is Zhang et al. 2018 (arXiv:1710.09412) with alpha = 1.
    """
    other = torch.randperm(len(images), device=images.device, generator=generator)
    weight = most * torch.rand(len(images), 1, device=images.device, generator=generator)
    return torch.lerp(images, images[other], weight[..., None, None]), torch.lerp(labels, labels[other], weight)
