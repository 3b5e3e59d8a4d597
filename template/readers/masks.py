"""Your own images and masks: the classes in the masks, and datasets that decode pairs per batch or once."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import UserError
from . import images
from .common import abbreviate, build_once
from .decoding import Pixels, decode, read_all
from .mask_folder import Pair, displayed_size, find_pairs, read_mask
from .segmentation import IGNORED, Data, Spec
from .unreadable import ReplacingReader, Skipped, UnreadableError

CHANNELS = 3
"""Your own images are read as RGB."""


class MaskConfig(Protocol):
    """The fields of `DataConfig` that this reader uses."""

    @property
    def size(self) -> int: ...

    @property
    def val_fraction(self) -> float: ...

    @property
    def ignore(self) -> int | None: ...

    @property
    def max_unreadable(self) -> float: ...

    @property
    def cache_dir(self) -> Path: ...

    @property
    def cache(self) -> str: ...


def load(cfg: MaskConfig, path: Path) -> Data:
    """Read `path/images` and `path/masks` and split them by fraction, or read `path/train/images` and so on.

    Raises:
        UserError: folders are missing or empty, names do not match, too many files are unreadable or have no
            counterpart, the masks contain only one class, or val contains one that train does not; or the cache
            cannot be written.
    """
    train, val, problems, single = find_pairs(path, cfg.val_fraction)
    total = len(train) + len(val) + single
    if single > cfg.max_unreadable * total:
        raise UserError(
            f"{single} of {total} have no counterpart: {'; '.join(problems)}: add what is missing, remove the others, "
            f"or raise data.max_unreadable={cfg.max_unreadable:g}"
        )
    known = _scan_masks(cfg, path, train, val, single)
    train, val = ([part[index] for index in good] for part, good in zip((train, val), known["good"], strict=True))
    for name, part in (("train", train), ("val", val)):
        if not part:
            raise UserError(f"no image of {name} can be used ({abbreviate(known['problems'], 2)}): fix them")
    values, counts = known["values"], known["pixels"]
    if len(values) < 2:
        content = f"only the value {values[0]}" if values else "only ignored pixels"
        raise UserError(
            f"the training masks in {path} contain {content} (data.ignore={json.dumps(cfg.ignore)}): at least two "
            "classes are needed, as one integer per pixel"
        )
    classes = ("0", "1") if values == [0, 255] else tuple(map(str, values))  # black and white
    mean, std, unread = images.statistics(
        [pair.image for pair in train], cfg.size, CHANNELS, cfg.max_unreadable, cfg.cache_dir
    )
    ignored = None if cfg.ignore is None else IGNORED
    spec = Spec(CHANNELS, cfg.size, classes, tuple(values), ignored, tuple(counts), mean, std)
    class_of = np.full(256, IGNORED, np.uint8)
    class_of[values] = np.arange(len(values))
    problems = (*problems, *known["problems"])
    if cfg.cache != "disk":
        parts = [Decoding(part, cfg.size, class_of, cfg.max_unreadable, part is train) for part in (train, val)]
        return Data(parts[0], parts[1], spec, False, (*problems, *unread), images.HINT)
    stored, skipped = _memory_mapped(cfg, path, train, val, class_of)
    return Data(stored[0], stored[1], spec, True, (*problems, *skipped))


def _scan_masks(cfg: MaskConfig, path: Path, train: list[Pair], val: list[Pair], single: int) -> dict[str, Any]:
    """Read all masks once: the usable pairs of each split, and the values in the training masks with their counts.

    `single` images and masks have no counterpart.
    """
    pairs = [*train, *val]

    def build(_: Path) -> dict[str, Any]:
        skipped = Skipped(len(pairs) + single, cfg.max_unreadable, single)
        good: tuple[list[int], list[int]] = [], []
        pixels = np.zeros(256, np.int64)
        for index, counts in enumerate(read_all(_count_values, pairs, "reading masks")):
            if isinstance(counts, UnreadableError):
                skipped.add(pairs[index].mask, str(counts))
                continue
            if cfg.ignore is not None:
                counts[cfg.ignore] = 0
            if index < len(train):
                good[0].append(index)
                pixels += counts
                continue
            good[1].append(index - len(train))
            unseen = np.flatnonzero((counts > 0) & (pixels == 0)).tolist()
            if unseen:
                raise UserError(
                    f"the validation mask {pairs[index].mask} has the value {abbreviate(unseen)}, which no training "
                    "mask has: add some there, remove it here, or set data.ignore"
                )
        values = np.flatnonzero(pixels).tolist()
        return {"good": good, "values": values, "pixels": pixels[values].tolist(), "problems": skipped.problems}

    settings = {"of": str(path.absolute()), "ignore": cfg.ignore, "most": cfg.max_unreadable, "train": len(train)}
    settings |= {"val": len(val), "single": single}
    _, manifest = build_once(cfg.cache_dir, "mask-values", settings, _files(pairs), build)
    return manifest


def _count_values(pair: Pair) -> NDArray[np.int64]:
    """The number of pixels of each value in a mask.

    Raises:
        UnreadableError: the mask or the image cannot be read, or their sizes differ.
    """
    mask = read_mask(pair.mask)
    try:
        width, height = displayed_size(pair.image)
    except UnreadableError as error:
        raise UnreadableError(f"its image {pair.image} cannot be read: {error}") from error
    if mask.shape != (height, width):
        sizes = f"{mask.shape[1]} x {mask.shape[0]} pixels, but its image {pair.image} has {width} x {height}"
        raise UnreadableError(f"it has {sizes}")
    return np.bincount(mask.reshape(-1), minlength=256)


def _files(pairs: Sequence[Pair]) -> list[Path]:
    return [file for pair in pairs for file in (pair.image, pair.mask)]


class Decoding:
    """Dataset that decodes and resizes images and masks per batch, in the process that asks for them."""

    def __init__(
        self, pairs: list[Pair], size: int, class_of: Pixels, max_unreadable: float, replace: bool = True
    ) -> None:
        """Unreadable pairs are replaced by others, or, without `replace`, left out of the batch."""
        self.pairs, self.size, self.class_of = pairs, size, class_of
        self.files = [pair.image for pair in pairs]
        self.read = ReplacingReader(self.files, self.decode, max_unreadable, replace)
        self.unreadable = self.read.unreadable

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        samples = self.read(indices)
        pixels = torch.from_numpy(np.stack([image for image, _ in samples])).permute(0, 3, 1, 2)
        return pixels.contiguous(), torch.from_numpy(np.stack([mask for _, mask in samples]))

    def decode(self, index: int) -> tuple[Pixels, Pixels]:
        """Return the image (size, size, channels), bilinearly resized, and the mask of class indices, nearest.

        Raises:
            UnreadableError: one of the two cannot be read.
        """
        pair = self.pairs[index]
        image = decode(pair.image, self.size, CHANNELS)
        mask = Image.fromarray(self.class_of[read_mask(pair.mask)])
        return image, np.asarray(mask.resize((self.size, self.size), Image.Resampling.NEAREST))


class MemoryMapped:
    """Dataset of decoded images and masks in one memory-mapped file; the mask is one more channel."""

    def __init__(self, file: Path, rows: int, size: int) -> None:
        self.file, self.rows, self.size = file, rows, size

    def __len__(self) -> int:
        return self.rows

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        # Opened per batch, which takes microseconds: an open memmap would be pickled whole to spawned workers.
        shape = (self.rows, CHANNELS + 1, self.size, self.size)
        rows = images.open_mapped(self.file, shape)
        pixels, masks = np.asarray(rows[indices, :CHANNELS]), np.asarray(rows[indices, CHANNELS])
        return torch.from_numpy(pixels), torch.from_numpy(masks)


def _memory_mapped(
    cfg: MaskConfig, path: Path, train: list[Pair], val: list[Pair], class_of: Pixels
) -> tuple[list[MemoryMapped], list[str]]:
    """Decode both splits into one file each, unless cached; return their datasets, and what was skipped."""
    names = ("train", "val")

    def build(folder: Path) -> dict[str, Any]:
        skipped = Skipped(len(train) + len(val), cfg.max_unreadable)
        rows = []
        for name, part in zip(names, (train, val), strict=True):
            decode_pair = Decoding(part, cfg.size, class_of, cfg.max_unreadable).decode
            with (folder / name).open("wb") as target:
                for index, sample in enumerate(read_all(decode_pair, range(len(part)), f"decoding {name}")):
                    if isinstance(sample, UnreadableError):
                        skipped.add(part[index].image, str(sample))
                    else:
                        target.write(sample[0].transpose(2, 0, 1).tobytes() + sample[1].tobytes())
                rows.append(target.tell() // ((CHANNELS + 1) * cfg.size**2))
        return {"rows": rows, "problems": skipped.problems}

    settings = {"of": str(path.absolute()), "size": cfg.size, "index": class_of.tolist(), "most": cfg.max_unreadable}
    counts = {name: len(part) for name, part in zip(names, (train, val), strict=True)}
    folder, manifest = build_once(cfg.cache_dir, "masks", {**settings, **counts}, _files([*train, *val]), build)
    for name, rows in zip(names, manifest["rows"], strict=True):
        if not rows:
            raise UserError(f"no image of {name} can be read ({abbreviate(manifest['problems'], 2)}): fix them")
    datasets = [MemoryMapped(folder / name, rows, cfg.size) for name, rows in zip(names, manifest["rows"], strict=True)]
    return datasets, manifest["problems"]
