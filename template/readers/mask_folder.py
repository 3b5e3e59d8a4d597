"""Finds images and their masks in folders, and reads masks."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import UserError
from .common import abbreviate, list_files
from .decoding import IMAGE_SUFFIXES, Pixels
from .images import VALIDATION_FOLDERS
from .segmentation import split
from .unreadable import UnreadableError, unreadable

LOSSLESS = {".bmp", ".gif", ".png", ".tif", ".tiff"}
LOSSY = {".jpeg", ".jpg", ".webp"}
ORIENTATION, ROTATED = 0x0112, (5, 6, 7, 8)
"""EXIF tag, and its values for images that are displayed with width and height swapped."""
EXIF_KEYS = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}
"""Where Pillow stores the EXIF data of a PNG; searching further would decode the image."""


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    image: Path
    mask: Path


def find_pairs(path: Path, val_fraction: float) -> tuple[list[Pair], list[Pair], tuple[str, ...], int]:
    """Find the pairs of train and val, and messages about the files that have no counterpart, with their number.

    Raises:
        UserError: folders are missing or empty, or names do not match.
    """
    if not path.is_dir():
        state = "is a file" if path.exists() else "does not exist"
        raise UserError(f"data.path={path} {state}: give a folder that contains the folders images and masks")
    val_folder = next((name for name in VALIDATION_FOLDERS if (path / name).is_dir()), None)
    if (path / "train").is_dir() and val_folder is not None:
        train, problems, single = _match(path / "train")
        val, more_problems, more = _match(path / val_folder)
        return train, val, problems + more_problems, single + more
    pairs, problems, single = _match(path)
    chosen, rest = split(len(pairs), val_fraction)
    return [pairs[index] for index in chosen.tolist()], [pairs[index] for index in rest.tolist()], problems, single


def read_mask(file: Path) -> Pixels:
    """Read a mask as it is: one integer per pixel, (height, width).

    Raises:
        UnreadableError: it is not an image, has several values per pixel, or has lossy compression.
    """
    try:
        with Image.open(file) as image:
            kind, mode, pixels = image.format, image.mode, np.asarray(image)
    except UnidentifiedImageError as error:
        raise UnreadableError("not an image") from error
    except Exception as error:  # for a broken file Pillow raises almost anything
        raise unreadable(error, file) from error
    if kind in ("JPEG", "MPO", "WEBP"):
        raise UnreadableError(f"it is a {kind}, whose compression changes the values; save it as PNG")
    if pixels.ndim != 2 or pixels.dtype.kind not in "bui":
        raise UnreadableError(f"its mode is {mode}; a mask has one integer per pixel, grayscale or a palette index")
    if pixels.min() < 0 or pixels.max() > 255:
        raise UnreadableError(f"it has the value {pixels.max()}; values from 0 to 255 are supported")
    return pixels.astype(np.uint8)


def displayed_size(file: Path) -> tuple[int, int]:
    """Width and height of an image as displayed, that is, after the rotation in its EXIF data.

    Raises:
        UnreadableError: it is not an image.
    """
    try:
        with Image.open(file) as image:
            width, height = image.size
            has_exif = image.format != "PNG" or EXIF_KEYS & image.info.keys()
            rotated = has_exif and image.getexif().get(ORIENTATION) in ROTATED
            return (height, width) if rotated else (width, height)
    except UnidentifiedImageError as error:
        raise UnreadableError("not an image") from error
    except Exception as error:  # as above
        raise unreadable(error, file) from error


def _match(path: Path) -> tuple[list[Pair], tuple[str, ...], int]:
    """Match the files in `path/images` and `path/masks` by name without suffix, including subfolders."""
    for name in ("images", "masks"):
        if not (path / name).is_dir():
            raise UserError(
                f"{path} has no folder {name}: data.path must contain images and masks, or train and val with these"
            )
    images, masks = _by_name(path / "images", IMAGE_SUFFIXES), _by_name(path / "masks", LOSSLESS | LOSSY)
    lossy = [mask for mask in masks.values() if mask.suffix.lower() in LOSSY]
    if lossy:
        raise UserError(
            f"{len(lossy)} masks in {path / 'masks'} are JPEG or WebP ({abbreviate([mask.name for mask in lossy])}), "
            "whose compression changes the values of the classes: save them as PNG from their source"
        )
    for name, files in (("images", images), ("masks", masks)):
        if not files:
            raise UserError(f"{path / name} contains no readable file: add some, or give another data.path")
    names = [name for name in images if name in masks]
    without_mask = [name for name in images if name not in masks]
    without_image = [name for name in masks if name not in images]
    if not names:
        raise UserError(
            f"no image in {path} has a mask with the same name: images are {abbreviate(without_mask, 3)}, masks are "
            f"{abbreviate(without_image, 3)}; give both the same names, except for the suffix"
        )
    problems = []
    if without_mask:
        problems.append(f"{len(without_mask)} images in {path} have no mask: {abbreviate(without_mask)}")
    if without_image:
        problems.append(f"{len(without_image)} masks in {path} have no image: {abbreviate(without_image)}")
    single = len(without_mask) + len(without_image)
    return [Pair(images[name], masks[name]) for name in names], tuple(problems), single


def _by_name(path: Path, suffixes: set[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in list_files(path, suffixes=suffixes):
        name = file.relative_to(path).with_suffix("").as_posix()
        if name in found:
            raise UserError(f"{found[name]} and {file} have the same name except for the suffix: remove one of them")
        found[name] = file
    return found
