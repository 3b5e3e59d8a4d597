"""Images side by side: in a file, as `predict` writes them, and in a figure, as `evaluate` plots them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import UserError
from .atomic_file import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_output(output: Path, count: int) -> None:
    """Check the options of `predict`, before it computes anything.

    Raises:
        UserError: the file's name does not end with .png, or there are no images to write.
    """
    if output.suffix.lower() != ".png":
        raise UserError(f"--output {output}: its name must end with .png")
    if count < 1:
        raise UserError(f"--count {count}: it must be 1 or above")


def write_new(images: Tensor, output: Path) -> None:
    """Write new images (n, c, size, size) as a square grid, and say so.

    Raises:
        UserError: the file cannot be written.
    """
    with atomic_write(output) as target:
        grid(images, math.ceil(math.sqrt(len(images)))).save(target)
    print(f"{len(images)} new images in {output}")


def grid(images: Tensor, columns: int, minimum: int = 64) -> Image.Image:
    """Arrange (n, c, size, size) images in a grid with gray lines, each enlarged to at least `minimum` pixels."""
    scale = math.ceil(minimum / images.shape[-1])
    levels = (images.float().clamp(0, 1) * 255).round().byte().cpu().expand(-1, 3, -1, -1)
    large = levels.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    side = large.shape[-1] + 2
    rows = math.ceil(len(large) / columns)
    sheet = np.full((rows * side + 2, min(columns, len(large)) * side + 2, 3), 128, np.uint8)
    for number, image in enumerate(large.permute(0, 2, 3, 1).numpy()):
        top, left = number // columns * side + 2, number % columns * side + 2
        sheet[top : top + side - 2, left : left + side - 2] = image
    return Image.fromarray(sheet)


def plot_rows(rows: Mapping[str, Tensor], columns: int) -> "Figure":
    """Rows of images (n, c, size, size) with values from 0 to 1, by title."""
    from matplotlib.figure import Figure  # imported here because it takes a second

    figure = Figure(figsize=(columns, len(rows) + 0.4), layout="constrained")
    for row, (name, shown) in enumerate(rows.items()):
        for column, image in enumerate(shown.float().cpu()):
            axes = figure.add_subplot(len(rows), columns, row * columns + column + 1)
            axes.set_axis_off()
            axes.imshow(image.permute(1, 2, 0).expand(-1, -1, 3).numpy())
            if column == 0:
                axes.set_title(name, fontsize=10, loc="left")
    return figure
