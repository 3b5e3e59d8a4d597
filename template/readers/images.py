"""Your own images: folders with one subfolder per class, decoded per batch or once into a memory-mapped file."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .common import abbreviate, build_once, list_files
from .decoding import IMAGE_SUFFIXES, Pixels, decode, decode_all
from .unreadable import ReplacingReader, Skipped, UnreadableError

VALIDATION_FOLDERS = ("val", "valid", "validation", "test")
"""Names of the folder next to `train` that contains the validation images; the first that exists is used."""
UNLABELED = (".",)
"""The classes of images without labels: the folder itself."""
STATISTICS_IMAGES = 1024
"""Training images, at most, from which the mean and standard deviation are computed."""

HINT = "data.cache=disk decodes each image once and not in every epoch"


@dataclass(frozen=True)
class ImageFolder:
    """The files of an image folder, with their labels and splits."""

    classes: tuple[str, ...]
    files: list[Path]
    labels: Tensor
    """Class index of each file, int64."""
    train: Tensor
    """Indices into `files`."""
    val: Tensor
    problems: tuple[str, ...]


def find(path: Path, val_fraction: float, labels: bool = True) -> ImageFolder:
    """List `path/<class>/...` and split it by fraction, or list `path/train/<class>/...` and `path/val/<class>/...`.

    Without `labels`, all images below `path`, or below these two, are of one class.

    Raises:
        UserError: the folder does not exist, has fewer than two classes, or a split lacks images.
    """
    if not path.is_dir():
        state = "is a file" if path.exists() else "does not exist"
        wanted = "a folder with one subfolder of images per class" if labels else "a folder of images"
        raise UserError(f"data.path={path} {state}: give {wanted}")
    if not list_files(path, suffixes=IMAGE_SUFFIXES):
        raise UserError(
            f"data.path={path} contains no image ({', '.join(sorted(IMAGE_SUFFIXES))}): give another folder"
        )
    folders = _folders(path)
    val_folder = next((name for name in VALIDATION_FOLDERS if name in folders), None)
    if val_folder is not None and "train" in folders:
        others = [name for name in folders if name not in ("train", val_folder)]
        return _split_by_folder(path, val_folder, others, labels)
    classes = tuple(folders) if labels else UNLABELED
    files_by_class = _files_by_class(path, classes)
    _check_classes(path, classes, files_by_class)
    files = [file for part in files_by_class for file in part]
    numbers = torch.tensor([label for label, part in enumerate(files_by_class) for _ in part])
    train, val = _stratified_split([len(part) for part in files_by_class], val_fraction)
    if not len(val):
        raise UserError(f"data.val_fraction={val_fraction} of {len(files)} images leaves none for validation: raise it")
    return ImageFolder(classes, files, numbers, train, val, _images_without_class(path) if labels else ())


def _split_by_folder(path: Path, val_folder: str, others: list[str], labels: bool) -> ImageFolder:
    train, val = path / "train", path / val_folder
    classes = tuple(_folders(train)) if labels else UNLABELED
    parts = _files_by_class(train, classes)
    _check_classes(train, classes, parts)
    unseen = [
        name
        for name in _folders(val)
        if labels and name not in classes and list_files(val / name, suffixes=IMAGE_SUFFIXES)
    ]
    if unseen:
        raise UserError(
            f"{val} has images of {abbreviate(unseen)}, which {train} does not have: add some there, or remove these"
        )
    parts += _files_by_class(val, classes)
    files = [file for part in parts for file in part]
    numbers = torch.tensor([number % len(classes) for number, part in enumerate(parts) for _ in part])
    indices, train_count = torch.arange(len(files)), sum(len(part) for part in parts[: len(classes)])
    if train_count == len(files):
        raise UserError(f"{val} contains no image: add some, or remove the folder to split by data.val_fraction")
    unused = (f"not used, because the splits are {train.name} and {val.name}: {abbreviate(others)}",) if others else ()
    problems = unused + (_images_without_class(train) + _images_without_class(val) if labels else ())
    return ImageFolder(classes, files, numbers, indices[:train_count], indices[train_count:], problems)


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files_by_class(path: Path, classes: Sequence[str]) -> list[list[Path]]:
    return [list_files(path / name, suffixes=IMAGE_SUFFIXES) if (path / name).is_dir() else [] for name in classes]


def _images_without_class(path: Path) -> tuple[str, ...]:
    """A message about images that are next to the class folders."""
    names = [entry.name for entry in sorted(path.iterdir()) if entry.suffix.lower() in IMAGE_SUFFIXES]
    return (f"not used, because they are in no class folder: {abbreviate(names)}",) if names else ()


def _check_classes(path: Path, classes: Sequence[str], parts: Sequence[Sequence[Path]]) -> None:
    if classes == UNLABELED and not parts[0]:
        raise UserError(f"{path} contains no image: add some")
    if len(classes) < 2 and classes != UNLABELED:
        raise UserError(
            f"{path} has fewer than two classes ({abbreviate(classes) or 'no subfolder'}): give a folder with one "
            "subfolder of images per class"
        )
    empty = [name for name, part in zip(classes, parts, strict=True) if not part]
    if empty:
        raise UserError(f"{path} has no training image of {abbreviate(empty)}: add some, or remove the empty folder")


def _stratified_split(counts: Sequence[int], val_fraction: float) -> tuple[Tensor, Tensor]:
    """Split each class by the same fraction, rounded so that the total matches too; train gets at least one sample."""
    generator = torch.Generator().manual_seed(0)
    train, val, begin = [], [], 0
    for count in counts:
        order = begin + torch.randperm(count, generator=generator)
        rounded = round((begin + count) * val_fraction) - round(begin * val_fraction)
        val_count = min(rounded, count - 1)
        val.append(order[:val_count])
        train.append(order[val_count:])
        begin += count
    return torch.cat(train).sort().values, torch.cat(val).sort().values


class Decoding:
    """Dataset that decodes and resizes images per batch, in the process that asks for them."""

    def __init__(
        self, files: list[Path], labels: Tensor, size: int, channels: int, max_unreadable: float, replace: bool = True
    ) -> None:
        """Unreadable images are replaced by others, or, without `replace`, left out of the batch."""
        self.files, self.labels, self.size, self.channels = files, labels, size, channels
        self.read = ReplacingReader(files, self._read, max_unreadable, replace)
        self.unreadable = self.read.unreadable

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        samples = self.read(indices)
        images = torch.from_numpy(np.stack([image for image, _ in samples])).permute(0, 3, 1, 2)
        return images.contiguous(), torch.tensor([label for _, label in samples])

    def _read(self, index: int) -> tuple[Pixels, int]:
        return decode(self.files[index], self.size, self.channels), int(self.labels[index])


class MemoryMapped:
    """Dataset of decoded images in one memory-mapped file, (rows, channels, size, size)."""

    def __init__(self, file: Path, shape: tuple[int, ...], rows: Tensor, labels: Tensor) -> None:
        self.file, self.shape, self.rows, self.labels = file, shape, rows, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices)
        # Opened per batch, which takes microseconds: an open memmap would be pickled whole to spawned workers.
        images = open_mapped(self.file, self.shape)
        rows = self.rows.index_select(0, chosen).numpy()
        return torch.from_numpy(np.asarray(images[rows])), self.labels.index_select(0, chosen)


def open_mapped(file: Path, shape: tuple[int, ...]) -> Pixels:
    """Open a memory-mapped file of a cache.

    Raises:
        UserError: it is not there any more, or has another size.
    """
    try:
        return np.memmap(file, np.uint8, "r", shape=shape)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the cache {file} ({reason}): resume, which builds it again") from error


def mapped(
    found: ImageFolder, size: int, channels: int, max_unreadable: float, cache: Path
) -> tuple[MemoryMapped, MemoryMapped, tuple[str, ...]]:
    """Return train and val from a memory-mapped file, which is built if necessary, and the problems found.

    Raises:
        UserError: too many images cannot be read, or the cache cannot be written.
    """

    def build(folder: Path) -> dict[str, Any]:
        skipped, indices = Skipped(len(found.files), max_unreadable), []
        with (folder / "images.u8").open("wb") as target:
            for index, pixels in enumerate(decode_all(found.files, size, channels)):
                if isinstance(pixels, UnreadableError):
                    skipped.add(found.files[index], str(pixels))
                    indices.append(index)
                else:
                    target.write(pixels.transpose(2, 0, 1).tobytes())
        return {"left_out": indices, "problems": skipped.problems}

    settings = _cache_settings(found.files, size, channels, max_unreadable)
    folder, manifest = build_once(cache, "images", settings, found.files, build)
    readable = torch.ones(len(found.files), dtype=torch.bool)
    readable[manifest["left_out"]] = False
    row_of, shape = readable.cumsum(0) - 1, (int(readable.sum()), channels, size, size)
    parts = [indices[readable[indices]] for indices in (found.train, found.val)]
    train, val = (MemoryMapped(folder / "images.u8", shape, row_of[part], found.labels[part]) for part in parts)
    if not len(train) or not len(val):
        split = "val" if len(train) else "train"
        raise UserError(f"no image of {split} can be read ({manifest['problems'][0]}): fix them")
    return train, val, tuple(manifest["problems"])


def statistics(
    files: Sequence[Path], size: int, channels: int, max_unreadable: float, cache: Path
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """Mean and standard deviation of each channel, for pixels from 0 to 1, and the problems found.

    Computed from all training images, or from 1,024 evenly spaced ones.

    Raises:
        UserError: too many images cannot be read, or the cache cannot be written.
    """
    count = min(STATISTICS_IMAGES, len(files))
    chosen = [files[index * len(files) // count] for index in range(count)]

    def build(_: Path) -> dict[str, Any]:
        skipped = Skipped(len(files), max_unreadable)
        pixels, total, squares = 0, np.zeros(channels, np.int64), np.zeros(channels, np.int64)
        for file, image in zip(chosen, decode_all(chosen, size, channels), strict=True):
            if isinstance(image, UnreadableError):
                skipped.add(file, str(image))
                continue
            levels = image.reshape(-1, channels).astype(np.int64)
            pixels, total, squares = pixels + len(levels), total + levels.sum(0), squares + (levels**2).sum(0)
        if not pixels:
            raise UserError(f"none of {count} training images can be read ({skipped.problems[0]}): fix them")
        # Integer arithmetic up to here, so that the result is bit-identical on every machine.
        variances = [(pixels * int(s) - int(t) ** 2) / pixels**2 for t, s in zip(total, squares, strict=True)]
        mean = [int(t) / pixels / 255 for t in total]
        std = [max(math.sqrt(variance) / 255, 1e-3) for variance in variances]
        return {"mean": mean, "std": std, "problems": skipped.problems}

    settings = _cache_settings(files, size, channels, max_unreadable)
    _, manifest = build_once(cache, "image-statistics", settings, files, build)
    return tuple(manifest["mean"]), tuple(manifest["std"]), tuple(manifest["problems"])


def _cache_settings(files: Sequence[Path], size: int, channels: int, max_unreadable: float) -> dict[str, Any]:
    root = os.path.commonpath([file.absolute() for file in files])
    return {"of": root, "files": len(files), "size": size, "channels": channels, "most": max_unreadable}
