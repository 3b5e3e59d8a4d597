"""Your own images and masks: pairs matched by name, the classes that the masks hold, a memory-map of all decoded."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..data import IGNORED, Batch, Data, DataConfig, Spec, split
from ..errors import UserError
from . import images
from .common import Skipped, Substituting, UnreadableError, list_files, made_once, some
from .images import HELD_OUT, IMAGE_SUFFIXES, Pixels, decode, each

LOSSLESS = {".bmp", ".gif", ".png", ".tif", ".tiff"}
LOSSY = {".jpeg", ".jpg", ".webp"}
CHANNELS = 3
"""Of your own images, as the model sees them: RGB."""
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)
"""EXIF's tag, and its values for images that are shown with width and height exchanged."""
HOLDING_EXIF = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}
"""Where Pillow finds it in a PNG; looking for more there would decode the image."""


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    image: Path
    mask: Path


def load(cfg: DataConfig, path: Path) -> Data:
    """Read `path/images` and `path/masks`, split by fraction, or `path/train/images` and so on, as they are.

    Raises:
        UserError: folders are missing or empty, names do not match, too many files are unreadable, the masks hold one
            class only, or val holds one that train does not; or the cache cannot be written.
    """
    train, val, problems = _splits(path, cfg.val_fraction)
    known = _examine(cfg, path, train, val)
    train, val = ([part[place] for place in good] for part, good in zip((train, val), known["good"], strict=True))
    for name, part in (("train", train), ("val", val)):
        if not part:
            raise UserError(f"no image of {name} can be used ({some(known['problems'], 2)}): mend them")
    values, counts = known["values"], known["pixels"]
    if len(values) < 2:
        raise UserError(
            f"the masks of train in {path} hold {f'the value {values[0]} alone' if values else 'ignored pixels alone'}"
            f" (data.ignore={json.dumps(cfg.ignore)}): two classes are needed, as values of one number a pixel"
        )
    binary = values == [0, 255]
    classes = ("0", "1") if binary else tuple(map(str, values))
    mean, std, unread = images.statistics(
        [pair.image for pair in train], cfg.size, CHANNELS, cfg.max_unreadable, cfg.cache_dir
    )
    ignored = None if cfg.ignore is None else IGNORED
    spec = Spec(CHANNELS, cfg.size, classes, tuple(values), ignored, tuple(counts), mean, std)
    index = np.full(256, IGNORED, np.uint8)
    index[values] = np.arange(len(values))
    found = (*problems, *known["problems"])
    if cfg.cache != "disk":
        parts = [Decoding(part, cfg.size, index, cfg.max_unreadable) for part in (train, val)]
        return Data(parts[0], parts[1], spec, False, (*found, *unread))
    kept, left_out = _mapped(cfg, path, train, val, index)
    return Data(kept[0], kept[1], spec, True, (*found, *left_out))


def read_mask(file: Path) -> Pixels:
    """Read a mask as it is: a whole number a pixel, (height, width).

    Raises:
        UnreadableError: it is no image, has several numbers a pixel, or is compressed with losses.
    """
    try:
        with Image.open(file) as image:
            kind, mode, pixels = image.format, image.mode, np.asarray(image)
    except UnidentifiedImageError as error:
        raise UnreadableError("it is no image") from error
    except Exception as error:  # a broken file makes Pillow raise nearly anything
        raise UnreadableError(str(error) or type(error).__name__) from error
    if kind in ("JPEG", "MPO", "WEBP"):
        raise UnreadableError(f"it is a {kind}, whose compression changes the values; write PNG")
    if pixels.ndim != 2 or pixels.dtype.kind not in "bui":
        raise UnreadableError(
            f"it is of mode {mode}; a mask has one whole number a pixel, as grey or as a palette's index"
        )
    if pixels.min() < 0 or pixels.max() > 255:
        raise UnreadableError(f"it has the value {pixels.max()}; those from 0 to 255 are read")
    return pixels.astype(np.uint8)


def shape_of(file: Path) -> tuple[int, int]:
    """Width and height of an image as it is shown, which EXIF may have turned.

    Raises:
        UnreadableError: it is no image.
    """
    try:
        with Image.open(file) as image:
            width, height = image.size
            tagged = image.format != "PNG" or HOLDING_EXIF & image.info.keys()
            turned = tagged and image.getexif().get(ORIENTATION) in TURNED
            return (height, width) if turned else (width, height)
    except UnidentifiedImageError as error:
        raise UnreadableError("it is no image") from error
    except Exception as error:  # as above
        raise UnreadableError(str(error) or type(error).__name__) from error


def _splits(path: Path, val_fraction: float) -> tuple[list[Pair], list[Pair], tuple[str, ...]]:
    if not path.is_dir():
        state = "a file" if path.exists() else "not there"
        raise UserError(f"data.path={path} is {state}: give a folder that holds the folders images and masks")
    held_out = next((name for name in HELD_OUT if (path / name).is_dir()), None)
    if (path / "train").is_dir() and held_out is not None:
        train, problems = _pairs(path / "train")
        val, more = _pairs(path / held_out)
        return train, val, problems + more
    pairs, problems = _pairs(path)
    chosen, rest = split(len(pairs), val_fraction)
    return [pairs[place] for place in chosen.tolist()], [pairs[place] for place in rest.tolist()], problems


def _pairs(path: Path) -> tuple[list[Pair], tuple[str, ...]]:
    """Match what lies in `path/images` and in `path/masks` by the name without suffix, sub-folders included."""
    for name in ("images", "masks"):
        if not (path / name).is_dir():
            raise UserError(
                f"{path} has no folder {name}: data.path must hold images and masks, or train and val that hold these"
            )
    found, masks = (_by_name(path / "images", IMAGE_SUFFIXES), _by_name(path / "masks", LOSSLESS | LOSSY))
    lossy = [mask for mask in masks.values() if mask.suffix.lower() in LOSSY]
    if lossy:
        raise UserError(
            f"{len(lossy)} masks in {path / 'masks'} are JPEG or WebP ({some([mask.name for mask in lossy])}), whose "
            "compression changes the values, which are classes: write them as PNG from their source"
        )
    for name, those in (("images", found), ("masks", masks)):
        if not those:
            raise UserError(f"{path / name} holds no file that can be read: add some, or give another data.path")
    names = [name for name in found if name in masks]
    alone, widowed = [name for name in found if name not in masks], [name for name in masks if name not in found]
    if not names:
        raise UserError(
            f"no image in {path} has a mask of its name: images are {some(alone, 3)}, masks are {some(widowed, 3)}; "
            "give both the same names, but for the suffix"
        )
    problems = [f"{len(alone)} images in {path} have no mask of their name: {some(alone)}"] if alone else []
    problems += [f"{len(widowed)} masks in {path} have no image of their name: {some(widowed)}"] if widowed else []
    return [Pair(found[name], masks[name]) for name in names], tuple(problems)


def _by_name(path: Path, suffixes: set[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in list_files(path, suffixes=suffixes):
        name = file.relative_to(path).with_suffix("").as_posix()
        if name in found:
            raise UserError(f"{found[name]} and {file} have the same name but for the suffix: remove one of them")
        found[name] = file
    return found


def _examine(cfg: DataConfig, path: Path, train: list[Pair], val: list[Pair]) -> dict[str, Any]:
    """Read all masks once: which pairs are good, by split, which values train's masks hold, and how often."""
    pairs = [*train, *val]

    def make(_: Path) -> dict[str, Any]:
        skipped = Skipped(len(pairs), cfg.max_unreadable)
        good: tuple[list[int], list[int]] = [], []
        pixels = np.zeros(256, np.int64)
        for place, counts in enumerate(each(_values, pairs, "reading masks")):
            if isinstance(counts, UnreadableError):
                skipped.add(pairs[place].mask, str(counts))
                continue
            if cfg.ignore is not None:
                counts[cfg.ignore] = 0
            if place < len(train):
                good[0].append(place)
                pixels += counts
                continue
            good[1].append(place - len(train))
            unseen = np.flatnonzero((counts > 0) & (pixels == 0)).tolist()
            if unseen:
                raise UserError(
                    f"{pairs[place].mask} of val has the value {some(unseen)}, which no mask of train has: a model "
                    "cannot learn what it never sees; add some there, remove it here, or set data.ignore"
                )
        values = np.flatnonzero(pixels).tolist()
        return {"good": good, "values": values, "pixels": pixels[values].tolist(), "problems": skipped.problems}

    settings = {"of": str(path.absolute()), "ignore": cfg.ignore, "most": cfg.max_unreadable, "train": len(train)}
    _, known = made_once(cfg.cache_dir, "mask-values", {**settings, "val": len(val)}, _files(pairs), make)
    return known


def _values(pair: Pair) -> NDArray[np.int64]:
    """How often a mask has each value.

    Raises:
        UnreadableError: the mask or the image cannot be read, or their shapes differ.
    """
    mask = read_mask(pair.mask)
    try:
        width, height = shape_of(pair.image)
    except UnreadableError as error:
        raise UnreadableError(f"its image {pair.image} cannot be read: {error}") from error
    if mask.shape != (height, width):
        sizes = f"{mask.shape[1]} x {mask.shape[0]} pixels, and its image {pair.image} has {width} x {height}"
        raise UnreadableError(f"it has {sizes}")
    return np.bincount(mask.reshape(-1), minlength=256)


def _files(pairs: Sequence[Pair]) -> list[Path]:
    return [file for pair in pairs for file in (pair.image, pair.mask)]


class Decoding:
    """Images and masks that are decoded and resized when asked for, in whichever process asks."""

    def __init__(self, pairs: list[Pair], size: int, index: Pixels, most: float) -> None:
        self.pairs, self.size, self.index = pairs, size, index
        self.one = Substituting([pair.image for pair in pairs], self.read, most)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, indices: list[int]) -> Batch:
        both = [self.one(place) for place in indices]
        pixels = torch.from_numpy(np.stack([image for image, _ in both])).permute(0, 3, 1, 2)
        return pixels.contiguous(), torch.from_numpy(np.stack([mask for _, mask in both]))

    def read(self, place: int) -> tuple[Pixels, Pixels]:
        """Return the image (size, size, channels), resized smoothly, and the mask of classes, by the nearest pixel.

        Raises:
            UnreadableError: one of the two cannot be read.
        """
        pair = self.pairs[place]
        image = decode(pair.image, self.size, CHANNELS)
        mask = Image.fromarray(self.index[read_mask(pair.mask)])
        return image, np.asarray(mask.resize((self.size, self.size), Image.Resampling.NEAREST))


class Mapped:
    """Images and masks that lie decoded in one file, a row each of the image and then of its mask."""

    def __init__(self, file: Path, rows: int, size: int) -> None:
        self.file, self.rows, self.size = file, rows, size

    def __len__(self) -> int:
        return self.rows

    def __getitems__(self, indices: list[int]) -> Batch:
        # Opened anew, which takes microseconds: an open map would be sent whole to loader processes not made by fork.
        shape = (self.rows, CHANNELS + 1, self.size, self.size)
        rows = np.memmap(self.file, np.uint8, "r", shape=shape)
        pixels, masks = np.asarray(rows[indices, :CHANNELS]), np.asarray(rows[indices, CHANNELS])
        return torch.from_numpy(pixels), torch.from_numpy(masks)


def _mapped(
    cfg: DataConfig, path: Path, train: list[Pair], val: list[Pair], index: Pixels
) -> tuple[list[Mapped], list[str]]:
    """Decode both splits into a file each, if need be; return these, and what was left out."""
    names = ("train", "val")

    def make(folder: Path) -> dict[str, Any]:
        skipped = Skipped(len(train) + len(val), cfg.max_unreadable)
        rows = []
        for name, part in zip(names, (train, val), strict=True):
            read = Decoding(part, cfg.size, index, cfg.max_unreadable).read
            with (folder / name).open("wb") as target:
                for place, both in enumerate(each(read, range(len(part)), f"decoding {name}")):
                    if isinstance(both, UnreadableError):
                        skipped.add(part[place].image, str(both))
                    else:
                        target.write(both[0].transpose(2, 0, 1).tobytes() + both[1].tobytes())
                rows.append(target.tell() // ((CHANNELS + 1) * cfg.size**2))
        return {"rows": rows, "problems": skipped.problems}

    settings = {"of": str(path.absolute()), "size": cfg.size, "index": index.tolist(), "most": cfg.max_unreadable}
    counts = {name: len(part) for name, part in zip(names, (train, val), strict=True)}
    folder, about = made_once(cfg.cache_dir, "masks", {**settings, **counts}, _files([*train, *val]), make)
    for name, rows in zip(names, about["rows"], strict=True):
        if not rows:
            raise UserError(f"no image of {name} can be read ({some(about['problems'], 2)}): mend them")
    maps = [Mapped(folder / name, rows, cfg.size) for name, rows in zip(names, about["rows"], strict=True)]
    return maps, about["problems"]
