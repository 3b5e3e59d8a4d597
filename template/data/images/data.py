"""Images: scikit-learn's handwritten digits, or your own folder.

This file is yours to edit; train.py uses `load`.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import Dataset

from .config_base import Section, within
from .errors import UserError

FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of images, in any case. Other files are left out."""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's names of pixels with at most 8 bits per channel."""
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Names of folders, in any case, and the split that their images are in."""
SYSTEM = ("__MACOSX", "Thumbs.db", "desktop.ini")
"""Names of files and folders that an operating system makes."""

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
    """Fraction of the images for validation, chosen by a hash of their names, unless the folder has
    `train` and `val`."""
    test_fraction: float = within("[0, 1)", 0.0)
    """Fraction of the images for the test split, unless the folder has `train` and another one."""
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


class Splits(NamedTuple):
    """The samples for training, for validation and for the test, and what was left out."""

    train: list[Sample]
    val: list[Sample]
    test: list[Sample]
    notes: Sequence[str] = ()


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
                    f"{image} is of the class {name}, which has no training images: "
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


def load(cfg: DataConfig, spec: Spec | None = None) -> tuple[Images, Images, Spec]:
    """Return the training set, the validation set and their `Spec`.

    With the `Spec` of a run, its classes and statistics are kept.
    """
    found = _read(cfg)
    classes = spec.classes if spec else _classes(found, cfg)
    if not found.val:
        raise UserError(
            f"data.path={cfg.path} has no validation images, and {len(found.train)} for training: "
            "add images, or change data.val_fraction"
        )
    train = Images(found.train, classes, cfg, found.notes)
    val = Images(found.val, classes, cfg)
    return train, val, spec or _statistics(train)


def load_test(cfg: DataConfig, spec: Spec | None = None) -> Images | None:
    """Return the test split, if there is one. Only `evaluate --split test` calls this."""
    found = _read(cfg)
    classes = spec.classes if spec else _classes(found, cfg)
    return Images(found.test, classes, cfg) if found.test else None


def describe(
    train: Images,
    val: Images,
    spec: Spec,
) -> list[str]:
    """Return lines that say what was read, and how it was understood."""
    images = f"{len(train)} + {len(val)} images"
    if len(spec.classes) > 5:
        images = f"{len(spec.classes)} classes, {images}"
    elif len(spec.classes) > 1:
        counts = zip(spec.classes, _counts(train), _counts(val), strict=True)
        listed = [f"{name} {in_train} + {in_val}" for name, in_train, in_val in counts]
        images = f"{len(listed)} classes: {', '.join(listed)}"
    read = "; ".join([f"{images} (training + validation)", *train.notes])
    return [read, *_doubts(train, val)]


def _counts(images: Images) -> list[int]:
    """Return the number of images of each class."""
    counts = images.labels.bincount(minlength=len(images.classes))
    return list(map(int, counts))


def _doubts(train: Images, val: Images) -> list[str]:
    """Return lines on what you may not have meant."""
    lines = []
    names = train.classes
    plain = Counter(name.strip().casefold() for name in names)
    similar = [name for name in names if plain[name.strip().casefold()] > 1]
    if similar:
        lines.append(f"classes that differ only by case or blanks: {', '.join(similar)}")
    in_val = val.labels.unique().tolist()
    if len(in_val) == 1 < len(names):
        lines.append(f"all validation images are of the class {names[in_val[0]]}")
    return lines


def _read(cfg: DataConfig) -> Splits:
    """Return the samples of each split."""
    if cfg.path is None:
        return _divide_digits(_digits(), cfg)
    root = existing_folder(cfg.path)
    folders = _split_folders(root)
    found = _find(root, folders, cfg)
    if "val" in folders.values():
        return found
    if folders:
        cfg = replace(cfg, test_fraction=0.0)
    divided = _divide(found.train, root, cfg)
    return divided._replace(test=divided.test + found.test, notes=found.notes)


def _digits() -> list[Sample]:
    from sklearn.datasets import load_digits  # here, because this takes a second

    digits = load_digits()
    pixels = torch.from_numpy(digits.images) * (255 / 16)
    images = pixels.round().byte().unsqueeze(1)
    names = map(str, digits.target)
    return list(zip(images, names, strict=True))


def _divide_digits(
    samples: list[Sample],
    cfg: DataConfig,
) -> Splits:
    """Divide the samples at random, always in the same way."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(samples), generator=generator)
    shuffled = [samples[index] for index in order]
    val_end = round(len(samples) * cfg.val_fraction)
    test_end = val_end + round(len(samples) * cfg.test_fraction)
    return Splits(
        train=shuffled[test_end:],
        val=shuffled[:val_end],
        test=shuffled[val_end:test_end],
    )


def existing_folder(path: Path) -> Path:
    """Return the folder that `data.path` names; `~` is your home."""
    folder = path.expanduser()
    if folder == Path():  # what "" is read as, so a variable of the shell may be unset
        raise UserError("data.path is empty, or the current folder: give the folder's name")
    if not folder.is_dir():
        why = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"data.path={path} {why}: give a folder of images")
    return folder


def find_files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder in order, without hidden ones and those of the system.

    Links are followed, except one to a folder that it is in.
    """
    real = folder.resolve()
    if any(inner.is_relative_to(real) for inner in above):
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=attrgetter("name")):
            if entry.name.startswith(".") or entry.name in SYSTEM:
                continue
            if entry.is_dir():
                yield from find_files(Path(entry.path), (*above, real))
            else:
                yield Path(entry.path)


def _split_folders(root: Path) -> dict[str, str]:
    """Return the names of the folders that are splits, if there is `train` and another one."""
    folders: dict[str, str] = {}
    for folder in sorted(root.iterdir()):
        split = SPLITS.get(folder.name.lower())
        if split and folder.is_dir():
            if split in folders.values():
                raise UserError(
                    f"data.path={root} has two folders for {split}, such as {folder.name}: keep one"
                )
            folders[folder.name] = split
    is_split = "train" in folders.values() and len(folders) > 1
    return folders if is_split else {}


def _find(
    root: Path,
    folders: dict[str, str],
    cfg: DataConfig,
) -> Splits:
    """Return the images of each split; without folders of splits, all are for training."""
    samples: dict[str, list[Sample]] = {"train": [], "val": [], "test": []}
    left_out: Counter[str] = Counter()
    deeper = set()
    for file in find_files(root):
        parts = file.relative_to(root).parts
        split = "train"
        if folders:
            split = folders.get(parts[0], "")
            parts = parts[1:]
        suffix = file.suffix.lower()
        has_class = len(parts) > 1 or not cfg.labels
        if split and has_class and suffix in FORMATS:
            name = parts[0] if cfg.labels else "image"
            samples[split].append((file, name))
            if cfg.labels and len(parts) > 2:
                deeper.add(name)
        elif suffix in FORMATS:
            left_out["images in no class folder"] += 1
        else:
            left_out[suffix or "no suffix"] += 1
    return Splits(**samples, notes=_notes(left_out, deeper))


def _notes(left_out: Counter[str], deeper: set[str]) -> list[str]:
    """Return which kinds of files were left out, and which classes have subfolders."""
    notes = []
    count = left_out.total()
    if count:
        kinds = ", ".join(kind for kind, _ in left_out.most_common(5))
        notes.append(f"{count} file{'s' * (count > 1)} left out ({kinds})")
    if deeper:
        notes.append(f"classes with subfolders: {', '.join(sorted(deeper)[:5])}")
    return notes


def _divide(
    samples: list[Sample],
    root: Path,
    cfg: DataConfig,
) -> Splits:
    """Divide files by a hash of their names below `root`, so that other files do not move them.

    The one with the highest hash of a class is always for training.
    """
    places = [_place(str(file).removeprefix(f"{root}/")) for file, _ in samples]
    found = Splits([], [], [])
    trained = set()
    for place, (file, name) in sorted(zip(places, samples, strict=True), reverse=True):
        if place >= cfg.val_fraction + cfg.test_fraction or name not in trained:
            found.train.append((file, name))
            trained.add(name)
        elif place < cfg.val_fraction:
            found.val.append((file, name))
        else:
            found.test.append((file, name))
    return found


def _place(text: str) -> float:
    """Return a hash from 0 to 1, which is the same on every machine."""
    digest = hashlib.sha256(text.encode(errors="surrogateescape"))
    return int(digest.hexdigest()[:12], 16) / 2**48


def _classes(found: Splits, cfg: DataConfig) -> list[str]:
    """Return the names of the classes, sorted as numbers if all are, or else as text."""
    names = sorted({name for _, name in found.train})
    fewest = 2 if cfg.labels else 1
    if len(names) < fewest:
        has = f"only one class, {names[0]}" if names else "no images"
        needed = "a subfolder of images per class" if cfg.labels else "images"
        message = f"data.path={cfg.path} has {has}: give a folder with {needed}"
        raise UserError("; ".join([message, *found.notes]))
    with suppress(ValueError):  # for a name that is not a number
        numbers = [float(name) for name in names]
        if np.isfinite(numbers).all():
            names.sort(key=float)
    return names


def _statistics(train: Images) -> Spec:
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
        classes=train.classes,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )


def decode(file: Path, like: DataConfig | Spec) -> Tensor:
    """Read an image of any format and shape as (channels, size, size), uint8."""
    mode = "RGB" if like.channels == 3 else "L"
    size = (like.size, like.size)
    image = open_image(file, mode, size)
    image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    pixels = pixels.view(
        like.size,
        like.size,
        like.channels,
    )
    return pixels.permute(2, 0, 1)


def open_image(
    file: Path,
    mode: str,
    size: tuple[int, int],
) -> Image.Image:
    """Return the first frame of an image as a viewer shows it: rotated, and on white.

    It may be smaller than the file's, but not smaller than `size`.
    """
    try:
        with Image.open(file) as opened:
            opened.draft(mode, size)  # a JPEG decoder skips resolution that is not needed
            image: Image.Image = ImageOps.exif_transpose(opened)
    except Exception as error:  # for a broken file Pillow raises almost anything
        is_empty = file.exists() and file.stat().st_size == 0
        why = "it is empty" if is_empty else error
        raise UserError(f"cannot read the image {file} ({why}): replace or remove it") from error
    if image.mode not in MODES:
        raise UserError(
            f"cannot read the image {file} (its pixels are of the mode {image.mode}): "
            "convert it to 8 bits per channel"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)
