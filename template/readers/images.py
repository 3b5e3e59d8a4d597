"""Your own images: one decoder for all of them, folders of classes, and a memory-map of what was decoded once."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from ..errors import UserError
from .common import Skipped, Substituting, UnreadableError, list_files, made_once, some

IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
HELD_OUT = ("val", "valid", "validation", "test")
"""Names of the folder beside `train` that has the held-out images; the first that is there counts."""
SEEN = 1024
"""Images of train, at most, that its statistics are of."""
CHUNK = 1024
"""Files that the threads read before what they found is taken in."""

Pixels = NDArray[np.uint8]
K = TypeVar("K")
T = TypeVar("T")


def decode(file: Path, size: int, channels: int) -> Pixels:
    """Read an image of any kind and shape as (size, size, channels): RGB if these are 3, grey if 1.

    Raises:
        UnreadableError: it is no image, or a broken or far too large one.
    """
    mode = "RGB" if channels == 3 else "L"
    try:
        with Image.open(file) as image:
            image.draft(mode, (size, size))  # lets the JPEG decoder skip resolution that the resize would drop
            ImageOps.exif_transpose(image, in_place=True)
            small = _plain(image).convert(mode).resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(small).reshape(size, size, channels)
    except UnidentifiedImageError as error:
        raise UnreadableError("it is no image") from error
    except Exception as error:  # a broken file makes Pillow raise nearly anything: OSError, struct.error, IndexError
        raise UnreadableError(str(error) or type(error).__name__) from error


def named(inputs: Sequence[Path]) -> list[Path]:
    """The images that a command line names, of folders those in them.

    Raises:
        UserError: a folder holds none.
    """
    found = []
    for path in inputs:
        inside = list_files(path, suffixes=IMAGE_SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise UserError(f"{path} holds no image ({', '.join(sorted(IMAGE_SUFFIXES))}): give another folder")
        found += inside
    return found


def opened(file: Path, size: int, channels: int) -> Tensor:
    """One image for a trained model, uint8 (channels, size, size).

    Raises:
        UserError: it cannot be read.
    """
    try:
        return torch.from_numpy(decode(file, size, channels).transpose(2, 0, 1).copy())
    except UnreadableError as error:
        raise UserError(f"cannot read the image {file} ({error}): mend it, or leave it out") from error


def _plain(image: Image.Image) -> Image.Image:
    """Scale 16 bits down, where Pillow would clip; spell out a palette with transparency, of which it would warn."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGBA") if image.has_transparency_data else image


@dataclass(frozen=True)
class Folder:
    """What a folder of classes holds."""

    classes: tuple[str, ...]
    files: list[Path]
    labels: Tensor
    """The class of each file, int64."""
    train: Tensor
    """Places in `files`."""
    val: Tensor
    problems: tuple[str, ...]


def find(path: Path, val_fraction: float) -> Folder:
    """List `path/<class>/...`, split by fraction, or `path/train/<class>/...` and `path/val/<class>/...`, as they are.

    Raises:
        UserError: there is no such folder, it holds fewer than two classes, or train or val lacks what it must have.
    """
    if not path.is_dir():
        state = "a file" if path.exists() else "not there"
        raise UserError(f"data.path={path} is {state}: give a folder that holds a sub-folder of images for each class")
    if not list_files(path, suffixes=IMAGE_SUFFIXES):
        raise UserError(f"data.path={path} holds no image ({', '.join(sorted(IMAGE_SUFFIXES))}): give another folder")
    folders = _folders(path)
    held_out = next((name for name in HELD_OUT if name in folders), None)
    if held_out is not None and "train" in folders:
        return _by_folder(path, held_out, [name for name in folders if name not in ("train", held_out)])
    classes = tuple(folders)
    parts = _listed(path, classes)
    _check_classes(path, classes, parts)
    files = [file for part in parts for file in part]
    labels = torch.tensor([label for label, part in enumerate(parts) for _ in part])
    train, val = _stratified([len(part) for part in parts], val_fraction)
    if not len(val):
        raise UserError(f"data.val_fraction={val_fraction} of {len(files)} images holds out none: raise it")
    return Folder(classes, files, labels, train, val, _loose(path))


def _by_folder(path: Path, held_out: str, others: list[str]) -> Folder:
    train, val = path / "train", path / held_out
    classes = tuple(_folders(train))
    parts = _listed(train, classes)
    _check_classes(train, classes, parts)
    unseen = [name for name in _folders(val) if name not in classes and list_files(val / name, suffixes=IMAGE_SUFFIXES)]
    if unseen:
        raise UserError(
            f"{val} has images of {some(unseen)}, which {train} has not: a model cannot learn what it never sees; "
            "add some there, or remove these"
        )
    parts += _listed(val, classes)
    files = [file for part in parts for file in part]
    labels = torch.tensor([number % len(classes) for number, part in enumerate(parts) for _ in part])
    places, of_train = torch.arange(len(files)), sum(len(part) for part in parts[: len(classes)])
    if of_train == len(files):
        raise UserError(f"{val} holds no image: add some, or remove that folder to split by data.val_fraction")
    unused = (f"not used, as the split is {train.name} and {val.name}: {some(others)}",) if others else ()
    return Folder(classes, files, labels, places[:of_train], places[of_train:], unused + _loose(train) + _loose(val))


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _listed(path: Path, classes: Sequence[str]) -> list[list[Path]]:
    return [list_files(path / name, suffixes=IMAGE_SUFFIXES) if (path / name).is_dir() else [] for name in classes]


def _loose(path: Path) -> tuple[str, ...]:
    """Say so if images lie beside the classes, where they belong to none."""
    loose = [entry.name for entry in sorted(path.iterdir()) if entry.suffix.lower() in IMAGE_SUFFIXES]
    return (f"not used, as they lie in no class's folder: {some(loose)}",) if loose else ()


def _check_classes(path: Path, classes: Sequence[str], parts: Sequence[Sequence[Path]]) -> None:
    if len(classes) < 2:
        raise UserError(
            f"{path} has fewer than two classes ({some(classes) or 'no sub-folder'}): give a folder that holds a "
            "sub-folder of images for each class"
        )
    empty = [name for name, part in zip(classes, parts, strict=True) if not part]
    if empty:
        raise UserError(f"{path} has no image to learn {some(empty)} from: add some, or remove the empty folder")


def _stratified(counts: Sequence[int], val_fraction: float) -> tuple[Tensor, Tensor]:
    """Split each class by the same share, rounded so that the whole has that share too; train gets one at least."""
    generator = torch.Generator().manual_seed(0)
    train, val, begin = [], [], 0
    for count in counts:
        order = begin + torch.randperm(count, generator=generator)
        share = round((begin + count) * val_fraction) - round(begin * val_fraction)
        held_out = min(share, count - 1)
        val.append(order[:held_out])
        train.append(order[held_out:])
        begin += count
    return torch.cat(train).sort().values, torch.cat(val).sort().values


class Decoding:
    """Images that are decoded and resized when asked for, in whichever process asks."""

    def __init__(self, files: list[Path], labels: Tensor, size: int, channels: int, most: float) -> None:
        self.files, self.labels, self.size, self.channels = files, labels, size, channels
        self.one = Substituting(files, self._read, most)

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        pairs = [self.one(index) for index in indices]
        images = torch.from_numpy(np.stack([image for image, _ in pairs])).permute(0, 3, 1, 2)
        return images.contiguous(), torch.tensor([label for _, label in pairs])

    def _read(self, index: int) -> tuple[Pixels, int]:
        return decode(self.files[index], self.size, self.channels), int(self.labels[index])


class Mapped:
    """Images that lie decoded in one file, (rows, channels, size, size): a batch is copied out of it."""

    def __init__(self, file: Path, shape: tuple[int, ...], rows: Tensor, labels: Tensor) -> None:
        self.file, self.shape, self.rows, self.labels = file, shape, rows, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices)
        # Opened anew, which takes microseconds: an open map would be sent whole to loader processes not made by fork.
        images = np.memmap(self.file, np.uint8, "r", shape=self.shape)
        rows = self.rows.index_select(0, chosen).numpy()
        return torch.from_numpy(np.asarray(images[rows])), self.labels.index_select(0, chosen)


def mapped(found: Folder, size: int, channels: int, most: float, cache: Path) -> tuple[Mapped, Mapped, tuple[str, ...]]:
    """Return train and val of a folder from a memory-map that is made if need be, and what was left out of it.

    Raises:
        UserError: too many images cannot be read, or the cache cannot be written.
    """

    def make(folder: Path) -> dict[str, Any]:
        skipped, bad = Skipped(len(found.files), most), []
        with (folder / "images.u8").open("wb") as target:
            for place, pixels in enumerate(decoded(found.files, size, channels)):
                if isinstance(pixels, UnreadableError):
                    skipped.add(found.files[place], str(pixels))
                    bad.append(place)
                else:
                    target.write(pixels.transpose(2, 0, 1).tobytes())
        return {"left_out": bad, "problems": skipped.problems}

    settings = {"of": _home(found.files), "files": len(found.files), "size": size, "channels": channels, "most": most}
    folder, about = made_once(cache, "images", settings, found.files, make)
    good = torch.ones(len(found.files), dtype=torch.bool)
    good[about["left_out"]] = False
    row_of, shape = good.cumsum(0) - 1, (int(good.sum()), channels, size, size)
    parts = [places[good[places]] for places in (found.train, found.val)]
    train, val = (Mapped(folder / "images.u8", shape, row_of[part], found.labels[part]) for part in parts)
    if not len(train) or not len(val):
        split = "val" if len(train) else "train"
        raise UserError(f"no image of {split} can be read ({about['problems'][0]}): mend them")
    return train, val, tuple(about["problems"])


def statistics(
    files: Sequence[Path], size: int, channels: int, most: float, cache: Path
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """Mean and standard deviation of each channel, on a scale from 0 to 1, and what of these images cannot be read.

    They are of all images of train, or of 1,024 that are spread over it.

    Raises:
        UserError: too many images cannot be read, or the cache cannot be written.
    """
    count = min(SEEN, len(files))
    seen = [files[place * len(files) // count] for place in range(count)]

    def make(_: Path) -> dict[str, Any]:
        skipped = Skipped(len(files), most)
        pixels, total, squares = 0, np.zeros(channels, np.int64), np.zeros(channels, np.int64)
        for file, image in zip(seen, decoded(seen, size, channels), strict=True):
            if isinstance(image, UnreadableError):
                skipped.add(file, str(image))
                continue
            levels = image.reshape(-1, channels).astype(np.int64)
            pixels, total, squares = pixels + len(levels), total + levels.sum(0), squares + (levels**2).sum(0)
        if not pixels:
            raise UserError(f"none of {count} images of train can be read ({skipped.problems[0]}): mend them")
        # In whole numbers up to here, so that every machine gets the same to the bit.
        variances = [(pixels * int(s) - int(t) ** 2) / pixels**2 for t, s in zip(total, squares, strict=True)]
        mean = [int(t) / pixels / 255 for t in total]
        std = [max(math.sqrt(variance) / 255, 1e-3) for variance in variances]
        return {"mean": mean, "std": std, "problems": skipped.problems}

    settings = {"of": _home(files), "files": len(files), "size": size, "channels": channels, "most": most}
    _, about = made_once(cache, "image-statistics", settings, files, make)
    return tuple(about["mean"]), tuple(about["std"]), tuple(about["problems"])


def decoded(files: Sequence[Path], size: int, channels: int) -> Iterator[Pixels | UnreadableError]:
    """Decode files in their order, or say what is wrong with them."""
    return each(lambda file: decode(file, size, channels), files, "decoding")


def each(read: Callable[[K], T], those: Sequence[K], what: str) -> Iterator[T | UnreadableError]:
    """Read each of many by several threads, in their order, with a progress bar if someone is looking."""

    def attempt(one: K) -> T | UnreadableError:
        try:
            return read(one)
        except UnreadableError as error:
            return error

    with ThreadPoolExecutor() as pool, tqdm(total=len(those), desc=what, unit=" files", disable=None) as bar:
        for begin in range(0, len(those), CHUNK):
            for result in pool.map(attempt, those[begin : begin + CHUNK]):
                bar.update()
                yield result


def _home(files: Sequence[Path]) -> str:
    return os.path.commonpath([file.absolute() for file in files])
