"""Images and masks: handwritten digits placed on canvases, or your own folders.

This file is yours to edit. Training needs `DataConfig`, `Spec`, `load` and `Prepare`; `describe`
and `load_test` are optional: see contracts.py.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from .config_base import Section, within
from .errors import UserError
from .image_files import (
    FORMATS,
    SPLIT_FOLDERS,
    are_transparent,
    check_options,
    existing_folder,
    find_files,
    is_rotated,
    left_out,
    open_any,
    open_image,
    place_of,
    resize,
    split_at,
    split_digits,
)

LOSSY = (".jpeg", ".jpg", ".webp")
"""Suffixes of files that may change the values of a mask."""
MAX_CLASSES = 64
"""Masks with smoothed edges have more values. Raise it, up to 255, if yours have more classes."""

Batch = tuple[Tensor, ...]
Pair = tuple[Tensor, Tensor]
"""Images (n, channels, size, size) and masks (n, size, size), uint8; or one of each."""


@dataclass(frozen=True)
class DataConfig(Section):
    """Which images and masks to load, and how to augment them."""

    path: Path | None = None
    """Folder with `images` and, as PNG of the same names, `masks` of class values; both may have
    the folders `train`, `val` and `test`. null: digits on 32 x 32 canvases."""
    size: int = within("[8, 4096]", 128)
    """Height and width in pixels to which your own images and masks are resized."""
    background: str = "white"
    """Color behind transparent pixels of images, such as black or #808080."""
    val_fraction: float = within("(0, 1)", 0.2)
    """Fraction of the images for validation, chosen by a hash of their names, unless there are
    `train` and `val`; for the canvases, of the digits."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of the images for the test split; for the canvases, of the digits."""
    ignore: int | None = within("[0, 255]", None)
    """Mask value whose pixels are ignored in the loss and the metrics: 255 in PASCAL VOC and
    Cityscapes."""
    shift: int = within("[0, 512]", 2)
    """Augmentation: maximum random shift of image and mask in pixels, in each direction; 0: off."""
    flip: bool = False
    """Augmentation: flip images and masks horizontally with probability 0.5. Not for digits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)


@dataclass(frozen=True)
class Spec:
    """What the model and `Prepare` need to know about the data."""

    channels: int
    size: int  # height and width of the images, in pixels
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel over the training split, for pixels from 0 to 1
    std: tuple[float, ...]
    ignored: int = 255  # class index of ignored pixels
    background: str = "white"  # color behind transparent pixels


class Samples(TensorDataset):
    """Images (n, channels, size, size) and masks (n, size, size) of class indices, in memory."""

    in_memory = True

    def __init__(
        self,
        pairs: Pair,
        spec: Spec,
        cfg: DataConfig,
        notes: Sequence[str] = (),
    ) -> None:
        images, masks = pairs
        values = [int(name) for name in spec.classes]
        for value in _values(masks, cfg):
            if value not in values:
                raise UserError(
                    f"a mask of data.path={cfg.path} has the value {value}, which is not a class "
                    f"of this run ({', '.join(spec.classes)}): correct it, or start a new run"
                )
        classes = torch.full(
            (256,),
            Spec.ignored,
            dtype=torch.uint8,
        )
        classes[values] = torch.arange(len(values), dtype=torch.uint8)
        super().__init__(images, classes[masks.long()])
        self.notes = notes

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


def load(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> tuple[Samples, Samples, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `Spec` of a run, its classes and statistics are kept.
    """
    splits, notes = _read(cfg)
    spec = spec or _find_spec(splits, cfg)
    if not _values(splits["val"][1], cfg):
        raise UserError(
            f"the validation masks of data.path={cfg.path} have no pixel that is not "
            f"data.ignore={cfg.ignore}: correct the masks"
        )
    train = Samples(splits["train"], spec, cfg, notes)
    val = Samples(splits["val"], spec, cfg)
    return train, val, spec


def load_test(
    cfg: DataConfig,
    spec: Spec | None = None,
) -> Samples | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    splits, _ = _read(cfg)
    spec = spec or _find_spec(splits, cfg)
    return Samples(splits["test"], spec, cfg) if len(splits["test"][0]) else None


def describe(
    train: Samples,
    val: Samples,
    spec: Spec,
) -> list[str]:
    """Return lines that say what was read, and how it was understood."""
    images = f"{len(train)} + {len(val)} images with masks for training + validation"
    _, masks = train.tensors
    pixels = masks.flatten().bincount(minlength=256)
    shares = [f"{share:.3g}%" for share in (100 * pixels / masks.numel()).tolist()]
    classes = f"{len(spec.classes)} classes"
    named = zip(spec.classes[:10], shares, strict=False)
    listed = ", ".join(f"{name} ({share})" for name, share in named)
    more = ", ..." if len(spec.classes) > 10 else ""
    classes += f" with their shares of the training pixels: {listed}{more}"
    if pixels[spec.ignored]:
        classes += f"; {shares[spec.ignored]} are ignored"
    lines = ["; ".join([images, *train.notes]), classes]
    missing = [name for name, count in zip(spec.classes, pixels, strict=False) if not count]
    if missing:
        lines.append(f"no training mask has these classes: {', '.join(missing)}")
    return lines


def _read(cfg: DataConfig) -> tuple[dict[str, Pair], list[str]]:
    """Return the images and masks of each split, and notes on other files."""
    if cfg.path is None:
        digits = split_digits(cfg.val_fraction, cfg.test_fraction)
        seeds = {"train": 0, "val": 1, "test": 2}
        return {split: place(*digits[split], seed) for split, seed in seeds.items()}, []
    root = existing_folder(cfg.path)
    images, others = _find_images(root / "images")
    masks, more = _find_images(root / "masks")
    _check_partners(images, masks, root)
    indices = _divide(list(images), cfg)
    count = len(images) - sum(map(len, indices.values()))
    others += ["images in no folder of a split"] * count

    def read(name: str) -> Pair:
        return read_pair(images[name], masks[name], cfg)

    with ThreadPoolExecutor() as pool:
        pairs = list(pool.map(read, images))
        rotated = sum(pool.map(is_rotated, images.values()))
        rotated_masks = sum(pool.map(is_rotated, masks.values()))
    pixels = torch.stack([image for image, _ in pairs])
    values = torch.stack([mask for _, mask in pairs])
    notes = left_out(others + more)
    if are_transparent(list(images.values()), pixels, cfg.background):
        notes.append(f"transparent pixels are {cfg.background} (data.background)")
    if rotated > rotated_masks:
        notes.append(
            f"{rotated} images are rotated by their EXIF orientation, and {rotated_masks} masks: "
            "check them"
        )
    splits = {split: (pixels[chosen], values[chosen]) for split, chosen in indices.items()}
    return splits, notes


def _find_images(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return images by their names below a folder, without suffix, and the suffixes of others."""
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist: data.path needs the folders images and masks")
    images: dict[str, Path] = {}
    others = []
    for file in find_files(folder):
        name = file.relative_to(folder).with_suffix("").as_posix()
        if file.suffix.lower() not in FORMATS:
            others.append(file.suffix.lower())
        elif name in images:
            raise UserError(f"{images[name]} and {file} differ only by their suffix: keep one")
        else:
            images[name] = file
    if not images:
        message = f"{folder} has no images: give another data.path"
        raise UserError("; ".join([message, *left_out(others)]))
    return images, others


def _check_partners(
    images: dict[str, Path],
    masks: dict[str, Path],
    root: Path,
) -> None:
    for name, image in images.items():
        if name not in masks:
            raise UserError(
                f"{image} has no mask {root / 'masks' / name}.png: add it, or remove the image"
            )
    for name, mask in masks.items():
        if name not in images:
            raise UserError(
                f"the mask {mask} has no image of the same name in {root / 'images'}: "
                "add it, or remove the mask"
            )
        if mask.suffix.lower() in LOSSY:
            raise UserError(
                f"the mask {mask} may have lost its exact values: save the masks as PNG"
            )


def _divide(
    names: list[str],
    cfg: DataConfig,
) -> dict[str, list[int]]:
    """Divide images by their folders, or by a hash of their names: other images do not move them.

    Beside folders of splits, others are left out. Without a folder of validation images, the hash
    takes them from those for training.
    """
    indices: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    first = [name.rpartition("/")[0].partition("/")[0] for name in names]
    folders = [SPLIT_FOLDERS.get(folder.lower()) for folder in first]
    has_folders = len({*folders} - {None}) > 1
    for index, (name, folder) in enumerate(zip(names, folders, strict=True)):
        if has_folders and not folder:
            continue
        split = split_at(place_of(name), cfg.val_fraction, 0 if has_folders else cfg.test_fraction)
        if has_folders and (folder != "train" or "val" in folders):
            split = str(folder)
        indices[split].append(index)
    if not indices["train"] or not indices["val"]:
        raise UserError(
            f"data.path={cfg.path} has {len(indices['train'])} images for training and "
            f"{len(indices['val'])} for validation: add images, or change data.val_fraction"
        )
    return indices


def _values(
    masks: Tensor,
    cfg: DataConfig,
) -> list[int]:
    """Return the values in masks, which are the classes, without the ignored one."""
    values = masks.flatten().bincount(minlength=256).nonzero()
    return [value for value in values.flatten().tolist() if value != cfg.ignore]


def _find_classes(
    splits: dict[str, Pair],
    cfg: DataConfig,
) -> list[int]:
    """Return the values of the classes in all masks."""
    trained = _values(splits["train"][1], cfg)
    if len(trained) < 2:
        only = ", ".join(map(str, trained)) or "none"
        raise UserError(
            f"the training masks of data.path={cfg.path} need two values or more besides "
            f"data.ignore={cfg.ignore}, and have {only} at data.size={cfg.size}: correct the masks"
        )
    values = set()
    for _, masks in splits.values():
        values.update(_values(masks, cfg))
    if len(values) > MAX_CLASSES:
        raise UserError(
            f"the masks of data.path={cfg.path} have {len(values)} values: save them without "
            "smoothed edges, or raise MAX_CLASSES in data.py"
        )
    return sorted(values)


def _find_spec(
    splits: dict[str, Pair],
    cfg: DataConfig,
) -> Spec:
    """Compute the statistics from a histogram: images as floats would need 8 times the memory."""
    images, _ = splits["train"]
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
        classes=tuple(map(str, _find_classes(splits, cfg))),
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        background=cfg.background,
    )


def read_pair(
    file: Path,
    mask_file: Path,
    cfg: DataConfig,
) -> Pair:
    """Return an image (3, size, size) and its mask (size, size), uint8, resized but not cropped."""
    image = open_image(file, "RGB", cfg.background)
    mask = open_any(mask_file)
    if mask.mode not in ("1", "L", "P"):
        raise UserError(
            f"the mask {mask_file} has pixels of the mode {mask.mode}: save it in grayscale with "
            "8 bits or with a palette, and a value per class"
        )
    if image.size != mask.size:
        rotated = ", rotated by its EXIF orientation," if is_rotated(file) else ""
        raise UserError(
            f"{file} has {_shape(image)} pixels{rotated} and its mask {mask_file} {_shape(mask)}: "
            "make them equal"
        )
    mask = mask.resize((cfg.size, cfg.size), Image.Resampling.NEAREST)
    values = torch.from_numpy(np.array(mask, np.uint8))
    return resize(image, cfg.size), values


def _shape(image: Image.Image) -> str:
    return f"{image.width} x {image.height}"


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
    classes = nn.functional.pad(labels[order].byte() + 1, (0, 2))  # class 0 for the background
    classes = classes.view(n, 6, 1, 1)
    masks = torch.zeros_like(images)
    masks[target] = (patches >= 96) * classes
    return images.unsqueeze(1), masks
