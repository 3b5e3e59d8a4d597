"""What `predict` writes for images with masks: a mask for each image."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
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
    """Write a mask per image; it has the size of your own image. Return a row for each."""
    options.output.mkdir(parents=True, exist_ok=True)
    samples = val_set
    names = [f"{number:05}" for number in range(len(val_set))]
    if options.files:
        files = find_images(options.files)
        samples = [(read_image(file, spec), 0) for file in files]
        names = [str(file) for file in files]
    rows = []
    for name, (output, _) in zip(names, outputs(samples), strict=True):
        mask = mask_image(output, spec)
        if options.files:
            with Image.open(name) as opened:
                size = ImageOps.exif_transpose(opened).size
            mask = mask.resize(size, Image.Resampling.NEAREST)
        file = name.strip("/").replace("/", "_") + ".png"
        mask.save(options.output / file)
        rows.append({"sample": name, "mask": file})
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


def mask_image(output: Tensor, spec: data.Spec) -> Image.Image:
    """Return the mask of logits (classes, height, width), with the values of the training masks."""
    values = torch.tensor([int(value) for value in spec.classes])
    mask = values[output.argmax(0)].byte()
    image = Image.fromarray(mask.numpy())
    colors = torch.arange(256).outer(torch.tensor([67, 151, 211]))  # 0 is black
    image.putpalette(bytes((colors % 256).flatten().tolist()))
    return image
