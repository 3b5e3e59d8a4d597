"""Summary and plots of images with masks."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import Batch, Data, Spec
from ..readers.common import abbreviate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CLASSES = 30
"""Maximum number of classes in the summary and the legend."""


def summary(samples: Data) -> dict[str, str]:
    """A summary of the data, by name."""
    spec = samples.spec
    total = sum(spec.pixels)
    fractions = [f"{name}: {100 * count / total:.2f} %" for name, count in zip(spec.classes, spec.pixels, strict=True)]
    return {
        "shape": f"{spec.channels} x {spec.size} x {spec.size}",
        "classes": str(len(spec.classes)),
        "train pixels": abbreviate(fractions, MAX_CLASSES),
        "mean": ", ".join(f"{value:.4f}" for value in spec.mean),
        "std": ", ".join(f"{value:.4f}" for value in spec.std),
    }


def plot(batch: Batch, spec: Spec) -> "Figure":
    """The images of a prepared batch, denormalized, next to their masks."""
    return plot_masks(batch[0], {"mask": batch[1]}, spec)


def palette() -> NDArray[np.uint8]:
    """The PASCAL VOC colormap, (256, 3): each bit of the class is a bit of one color channel."""
    values = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colors[:, bit % 3] |= ((values >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colors


def plot_masks(images: Tensor, masks: dict[str, Tensor], spec: Spec) -> "Figure":
    """Each image with its masks to the right, and a legend of the classes."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    names = list(spec.classes)
    colors = torch.from_numpy(palette()[list(spec.values)] / 255)
    if spec.ignore is not None:  # the largest value in masks
        names += ["ignored"] * (spec.ignore + 1 - len(names))
        colors = torch.cat([colors, torch.full((len(names) - len(colors), 3), 0.9)])
    columns = max(round(math.sqrt(len(images) * 2 / (1 + len(masks)))), 1)
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.4 * columns * (1 + len(masks)), 1.5 * rows + 0.6), layout="constrained")
    for index, image in enumerate(images.float()):
        pixels = (image * std + mean).clamp(0, 1).permute(1, 2, 0).expand(-1, -1, 3)
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_axis_off()
        gap = torch.ones(spec.size, max(spec.size // 32, 1), 3)
        parts = [part for mask in masks.values() for part in (gap, colors[mask[index]])]
        axes.imshow(torch.cat([pixels, *parts], dim=1).numpy())
    present = torch.stack(list(masks.values())).unique().tolist()[:MAX_CLASSES]
    patches = [Patch(facecolor=tuple(colors[i].tolist()), edgecolor="grey", label=names[i]) for i in present]
    figure.suptitle(", ".join(["image", *masks]), fontsize=10)
    figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False)
    return figure
