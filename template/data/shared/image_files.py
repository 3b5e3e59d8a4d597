"""Files of images for data.py: which ones a folder has, their splits, and their pixels."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F
from PIL import ExifTags, Image, ImageColor, ImageOps
from torch import Tensor

from .errors import UserError

FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of images, in any case. Other files are left out."""
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's names of pixels with at most 8 bits per channel."""
SYSTEM = (
    "__macosx",
    "thumbs.db",
    "desktop.ini",
    "@eadir",
    "#recycle",
    "$recycle.bin",
    "lost+found",
    "system volume information",
)
"""Names in lower case of files and folders that an operating system or a NAS makes."""
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "test": "test",
    "testing": "test",
}
"""Names of folders, in any case, and the split that their images are in."""

FLIPS = {
    2: (2,),
    3: (1, 2),
    4: (1,),
    6: (2,),
    7: (1, 2),
    8: (1,),
}
"""EXIF's orientations: the axes to flip, of rows and columns; from 5, these are swapped before."""

Splits = dict[str, list[tuple[Any, str]]]
"""The files of images for `train`, `val` and `test`, each with the name of its class."""


def read_folder(
    path: Path,
    labels: bool,
    val_fraction: float,
    test_fraction: float,
) -> tuple[Splits, list[str]]:
    """Return the images of each split, and notes on what else is in the folder.

    With labels, the first folder of an image is its class. Without a folder of validation images,
    they are taken from those for training; the test split, without folders of splits.
    """
    root = existing_folder(path)
    folders = _find_split_folders(root)
    splits, notes = _find_images(root, folders, labels)
    if "val" not in folders.values():
        divided = _divide(
            splits["train"],
            root,
            val_fraction,
            0.0 if folders else test_fraction,
        )
        splits = {**divided, "test": divided["test"] + splits["test"]}
    return splits, notes


def _find_split_folders(root: Path) -> dict[str, str]:
    """Return the names of the folders that are splits, if there is `train` and another one."""
    folders: dict[str, str] = {}
    for folder in sorted(root.iterdir()):
        split = SPLIT_FOLDERS.get(folder.name.lower())
        if split and folder.is_dir():
            if split in folders.values():
                raise UserError(
                    f"data.path={root} has two folders for {split}, such as {folder.name}: keep one"
                )
            folders[folder.name] = split
    is_split = "train" in folders.values() and len(folders) > 1
    return folders if is_split else {}


def _find_images(
    root: Path,
    folders: dict[str, str],
    labels: bool,
) -> tuple[Splits, list[str]]:
    """Return the images of each split; without folders of splits, all are for training."""
    splits: Splits = {"train": [], "val": [], "test": []}
    others = []
    deeper: dict[str, set[str]] = {}
    for file in find_files(root):
        parts = file.relative_to(root).parts
        split = "train"
        if folders:
            split = folders.get(parts[0], "")
            parts = parts[1:]
        is_image = file.suffix.lower() in FORMATS
        if is_image and split and (len(parts) > 1 or not labels):
            name = parts[0] if labels else "image"
            splits[split].append((file, name))
            if labels and len(parts) > 2:
                deeper.setdefault(name, set()).add(parts[1])
        else:
            others.append("images in no class folder" if is_image else file.suffix.lower())
    if not folders:
        _refuse_splits(deeper, root)
    notes = left_out(others)
    if deeper:
        notes.append(f"classes with subfolders: {', '.join(sorted(deeper)[:5])}")
    return splits, notes


def _refuse_splits(deeper: dict[str, set[str]], root: Path) -> None:
    """Refuse a class with subfolders that is named like a split.

    A class may have such a name if no other one is named like another split, and if no other one
    has a subfolder of the same name. No class may have the splits as subfolders.
    """
    for name, subfolders in sorted(deeper.items()):
        found = {SPLIT_FOLDERS.get(subfolder.lower(), "") for subfolder in subfolders}
        if "train" in found and found & {"val", "test"}:
            raise UserError(
                f"data.path={root} has splits within the folder {name}: put the classes into "
                "folders train and val, or give one folder per class"
            )
    counts = Counter(chain.from_iterable(deeper.values()))
    splits: dict[str, set[str]] = {}
    for name in sorted(deeper):
        words = re.split(r"[^a-z]+", name.lower())
        splits[name] = {SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS}
    has_several = len(set().union(*splits.values())) > 1
    for name, found in splits.items():
        is_shared = any(counts[subfolder] > 1 for subfolder in deeper[name])
        if found and (is_shared or has_several):
            raise UserError(
                f"data.path={root} has the folder {name} with subfolders, as if it were a split: "
                "name the folders of the splits train, val and test, or rename the class"
            )


def _divide(
    samples: list[tuple[Any, str]],
    root: Path,
    val_fraction: float,
    test_fraction: float,
) -> Splits:
    """Divide files by a hash of their names below `root`, so that other files do not move them.

    The one with the highest hash of a class is always for training.
    """
    splits: Splits = {"train": [], "val": [], "test": []}
    places = [place_of(str(file).removeprefix(f"{root}/")) for file, _ in samples]
    trained = set()
    for place, sample in sorted(zip(places, samples, strict=True), reverse=True):
        split = split_at(place, val_fraction, test_fraction)
        if sample[1] not in trained:
            split = "train"
            trained.add(sample[1])
        splits[split].append(sample)
    return splits


def sort_names(names: Iterable[str]) -> list[str]:
    """Sort names as numbers if all are, or else as text."""
    ordered = sorted(names)
    with suppress(ValueError):  # for a name that is not a number
        numbers = [float(name) for name in ordered]
        if np.isfinite(numbers).all():
            ordered.sort(key=float)
    return ordered


def existing_folder(path: Path) -> Path:
    """Return the folder that `data.path` names."""
    if path == Path():  # what "" is read as, so a variable of the shell may be unset
        raise UserError("data.path is empty, or the current folder: give the folder's name")
    if not path.is_dir():
        why = "is a file" if path.exists() else "does not exist"
        raise UserError(f"data.path={path} {why}: give a folder of images")
    return path


def find_files(
    folder: Path,
    above: tuple[Path, ...] = (),
) -> Iterator[Path]:
    """Yield the files below a folder in order, without hidden ones and those of the system.

    Links are followed, except one to a folder that it is in.
    """
    real = folder.resolve()
    if any(inner.is_relative_to(real) for inner in above):
        return
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=attrgetter("name")):
            if entry.name.startswith(".") or entry.name.lower() in SYSTEM:
                continue
            if entry.is_dir():
                yield from find_files(Path(entry.path), (*above, real))
            elif entry.is_file() or entry.is_symlink():  # no pipe, which would be read for ever
                yield Path(entry.path)


def left_out(kinds: Iterable[str]) -> list[str]:
    """Return a line on how many files were left out, and of which kinds most of them are."""
    counts = Counter(kind or "no suffix" for kind in kinds)
    count = counts.total()
    if not count:
        return []
    listed = ", ".join(kind for kind, _ in counts.most_common(5))
    return [f"{count} file{'s' * (count > 1)} left out ({listed})"]


def place_of(name: str) -> float:
    """Return a hash from 0 to 1, which is the same on every machine."""
    digest = hashlib.sha256(name.encode(errors="surrogateescape"))
    return int(digest.hexdigest()[:12], 16) / 2**48


def split_at(
    place: float,
    val_fraction: float,
    test_fraction: float,
) -> str:
    """Return the split of a sample with this hash."""
    if place < val_fraction:
        return "val"
    return "test" if place < val_fraction + test_fraction else "train"


def split_digits(
    val_fraction: float,
    test_fraction: float,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return scikit-learn's digits (n, 8, 8), uint8, and their labels (n,), of each split.

    They are divided at random, always in the same way.
    """
    from sklearn.datasets import load_digits  # here, because this takes a second

    digits = load_digits()
    pixels = torch.from_numpy(digits.images) * (255 / 16)
    images = pixels.round().byte()
    labels = torch.from_numpy(digits.target)
    count = len(images)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    sizes = [round(count * val_fraction), round(count * test_fraction)]
    rest = count - sum(sizes)
    if min(sizes[0], rest) < 2:
        raise UserError(
            f"data.val_fraction={val_fraction} and data.test_fraction={test_fraction} leave fewer "
            f"than 2 of {count} digits for training or for validation: change them"
        )
    val, test, train = order.split([*sizes, rest])
    indices = {"train": train, "val": val, "test": test}
    return {split: (images[chosen], labels[chosen]) for split, chosen in indices.items()}


def read_image(file: Path, like: Any) -> Tensor:
    """Return an image (channels, size, size), uint8, resized but not cropped.

    `like` is a `DataConfig` or a `Spec`: it has channels, size and background.
    """
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[like.channels]
    pixels = _read_jpeg(file, mode, like.size)
    if pixels is None:
        image = open_image(file, mode, like.background)
        pixels = resize(image, like.size)
    return pixels


def _read_jpeg(file: Path, mode: str, size: int) -> Tensor | None:
    """Return what `read_image` does, in half of Pillow's time; None if only Pillow can."""
    try:
        with Image.open(file) as header:  # this decodes no pixels
            is_jpeg = header.format in ("JPEG", "MPO") and header.mode in ("L", "RGB")
            orientation = header.getexif().get(ExifTags.Base.Orientation, 1)
        if not is_jpeg or mode == "RGBA":
            return None
        array = simplejpeg.decode_jpeg(
            file.read_bytes(),
            "GRAY" if mode == "L" else mode,
            min_height=size,
            min_width=size,
            min_factor=2,  # skips resolution that is not needed, from twice the size
        )
    except Exception:  # Pillow reads more of a broken file, or says what is wrong
        return None
    pixels = _resize(torch.from_numpy(array).permute(2, 0, 1), size)
    if orientation > 4:
        pixels = pixels.transpose(1, 2)
    if orientation in FLIPS:
        pixels = pixels.flip(FLIPS[orientation])
    return pixels


def open_image(
    file: Path,
    mode: str,
    background: str,
) -> Image.Image:
    """Return the first frame of an image as a viewer shows it: rotated, and on a background.

    RGBA keeps what is transparent.
    """
    image = open_any(file)
    if image.mode not in MODES:
        raise UserError(
            f"cannot read the image {file} (its pixels are of the mode {image.mode}): "
            "convert it to 8 bits per channel"
        )
    if image.has_transparency_data and mode != "RGBA":
        image = image.convert("RGBA")
        below = Image.new("RGBA", image.size, background)
        image = Image.alpha_composite(below, image)
    return image.convert(mode)


def open_any(file: Path) -> Image.Image:
    """Return the first frame of an image, rotated as its EXIF data says."""
    try:
        with Image.open(file) as opened:
            return ImageOps.exif_transpose(opened)
    except Exception as error:  # for a broken file Pillow raises almost anything
        is_empty = file.exists() and file.stat().st_size == 0
        why = "it is empty" if is_empty else error
        raise UserError(f"cannot read the image {file} ({why}): replace or remove it") from error


def is_rotated(file: Path) -> bool:
    """Whether the EXIF data of an image say that it is to be rotated or flipped."""
    with Image.open(file) as header:
        if header.format == "PNG" and "exif" not in header.info:  # getexif() would decode it
            return False
        return header.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)


def resize(image: Image.Image, size: int) -> Tensor:
    """Return an image (channels, size, size), uint8, resized but not cropped."""
    if image.mode == "RGBA":  # Pillow weights colors by their opacity
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(image))
    pixels = pixels.view(image.height, image.width, -1)
    return _resize(pixels.permute(2, 0, 1), size)


def _resize(pixels: Tensor, size: int) -> Tensor:
    """Resize an image (channels, height, width), uint8: as Pillow within one level, but faster."""
    batch = pixels.unsqueeze(0)
    resized = F.interpolate(
        batch,
        (size, size),
        mode="bilinear",
        antialias=True,
    )
    return resized.squeeze(0)


def check_options(cfg: Any) -> None:
    """Raise a UserError if Pillow does not know the background, or fractions leave no images."""
    try:
        ImageColor.getrgb(cfg.background)
    except ValueError:
        cfg.refuse("background", "it is no color: give white, #808080, ...")
    if cfg.val_fraction + cfg.test_fraction >= 1:
        cfg.refuse("test_fraction", "with data.val_fraction, it leaves no images for training")


def are_transparent(
    files: Sequence[Path | Tensor],
    images: Tensor,
    background: str,
) -> bool:
    """Whether files have transparent pixels; raise a UserError if most shapes cannot be seen.

    The images (n, channels, size, size) are those that were read from the files.
    """
    transparent = [number for number, file in enumerate(files) if _is_transparent(file)]
    levels = images[transparent].flatten(2)
    contrast = (levels.amax(2) - levels.amin(2)).amax(1)
    is_blank = contrast < 8
    if is_blank.sum() > max(len(transparent) / 2, len(files) / 20):
        file = files[transparent[int(is_blank.byte().argmax())]]
        raise UserError(
            f"{file} and most other images with transparent pixels are blank on {background}: "
            "set data.background to another color, or remove them"
        )
    return bool(transparent)


def _is_transparent(file: Path | Tensor) -> bool:
    if isinstance(file, Tensor):
        return False
    with Image.open(file) as image:
        if not image.has_transparency_data:
            return False
        alpha = image.convert("RGBA").getchannel("A")
    return alpha.getextrema() != (255, 255)
