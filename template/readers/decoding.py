"""Decodes image files: one at a time, or many in parallel threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from ..errors import UserError
from .common import list_files
from .unreadable import UnreadableError, unreadable

IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
CHUNK = 1024
"""Files submitted to the threads at once."""

Pixels = NDArray[np.uint8]
K = TypeVar("K")
T = TypeVar("T")


def decode(file: Path, size: int, channels: int) -> Pixels:
    """Read an image of any format and shape as (size, size, channels): RGB for 3 channels, grayscale for 1.

    Raises:
        UnreadableError: it is not an image, or it is broken or far too large.
        UserError: the disk fails, or the memory does not suffice.
    """
    mode = "RGB" if channels == 3 else "L"
    try:
        with Image.open(file) as image:
            image.draft(mode, (size, size))  # lets the JPEG decoder skip resolution that the resize would drop
            ImageOps.exif_transpose(image, in_place=True)
            small = _normalize_mode(image).convert(mode).resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(small).reshape(size, size, channels)
    except UnidentifiedImageError as error:
        raise UnreadableError("not an image") from error
    except Exception as error:  # for a broken file Pillow raises almost anything: OSError, struct.error, IndexError
        raise unreadable(error, file) from error


def decode_all(files: Sequence[Path], size: int, channels: int) -> Iterator[Pixels | UnreadableError]:
    """Decode files in parallel, in order; an error takes the place of an image that cannot be read."""
    return read_all(lambda file: decode(file, size, channels), files, "decoding")


def read_all(read: Callable[[K], T], items: Sequence[K], description: str) -> Iterator[T | UnreadableError]:
    """Read items in parallel threads, in order, with a progress bar on a terminal."""

    def attempt(item: K) -> T | UnreadableError:
        try:
            return read(item)
        except UnreadableError as error:
            return error

    with ThreadPoolExecutor() as pool, tqdm(total=len(items), desc=description, unit=" files", disable=None) as bar:
        for begin in range(0, len(items), CHUNK):
            for result in pool.map(attempt, items[begin : begin + CHUNK]):
                bar.update()
                yield result


def find_images(inputs: Sequence[Path]) -> list[Path]:
    """The images that a command line names, including those in folders.

    Raises:
        UserError: a folder contains no image.
    """
    found = []
    for path in inputs:
        files = list_files(path, suffixes=IMAGE_SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path} contains no image ({', '.join(sorted(IMAGE_SUFFIXES))}): give another folder")
        found += files
    return found


def load_image(file: Path, size: int, channels: int) -> Tensor:
    """One image as input for a trained model, uint8 (channels, size, size).

    Raises:
        UserError: it cannot be read.
    """
    try:
        return torch.from_numpy(decode(file, size, channels).transpose(2, 0, 1).copy())
    except UnreadableError as error:
        raise UserError(f"cannot read the image {file} ({error}): fix or remove it") from error


def _normalize_mode(image: Image.Image) -> Image.Image:
    """Scale 16 bits to 8, where Pillow would clip; expand a palette with transparency, which Pillow warns about."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGBA") if image.has_transparency_data else image
