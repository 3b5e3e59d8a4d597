"""What `predict` writes for images: their classes, or samples of a generative model."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from .. import data
from ..errors import UserError
from ..image_files import FORMATS, find_files, read_image


def predict(
    options: Namespace,
    cfg: data.DataConfig,
    spec: data.Spec,
    model: Any,
    val_set: Any,
    outputs: Callable[[Any], Iterator[tuple[Tensor, Tensor]]],
) -> list[dict[str, Any]]:
    """Return a row per image; or write samples, and return none."""
    sample = getattr(model, "sample", None)
    if sample:
        if options.files:
            name = type(model).__name__
            raise UserError(f"{name} reads no files, but {options.files[0]} is given: leave it out")
        generator = torch.Generator(options.device).manual_seed(options.seed)
        save_grid(sample(options.count, generator), options.output / "samples.png")
        return []
    samples = val_set
    names = [f"{number:05}" for number in range(len(val_set))]
    if options.files:
        files = find_images(options.files)
        samples = [(read_image(file, spec), 0) for file in files]
        names = [str(file) for file in files]
    rows = []
    for name, (output, target) in zip(names, outputs(samples), strict=True):
        row = {"sample": name, "predicted": spec.classes[int(output.argmax())]}
        if not options.files:
            row["label"] = spec.classes[int(target)]
        for label, probability in zip(spec.classes, output.softmax(0).tolist(), strict=True):
            row[f"p({label})"] = f"{probability:.6g}"
        rows.append(row)
    return rows


def find_images(paths: list[Path]) -> list[Path]:
    """Return the images among files and below folders."""
    files = []
    for path in paths:
        if path.is_dir():
            inside = find_files(path)
            files += [file for file in inside if file.suffix.lower() in FORMATS]
        else:
            files.append(path)
    if not files:
        raise UserError(f"{paths[0]} has no images: give images, or folders of them")
    return files


def save_grid(images: Tensor, file: Path) -> None:
    """Write images (n, channels, height, width), from 0 to 1, as one PNG; enlarge small ones."""
    factor = max(1, 64 // images.shape[-1])
    images = F.interpolate(images.float().cpu(), scale_factor=factor)
    side = int((len(images) - 1) ** 0.5) + 1  # images in a row
    missing = -len(images) % side
    images = F.pad(images, (1, 1, 1, 1, 0, 0, 0, missing))
    tiles = images.unflatten(0, (-1, side))
    tiles = tiles.permute(0, 3, 1, 4, 2)  # rows, height, columns, width, channels
    pixels = tiles.flatten(0, 1).flatten(1, 2)
    pixels = (255 * pixels).round().byte().squeeze(2)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.numpy()).save(file)
    print(f"wrote {file}")
