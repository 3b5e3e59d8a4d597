"""How images and their masks are told of and drawn."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import Batch, Data, Spec
from ..readers.common import some

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 30
"""Classes that are named; of more, the first."""


def summary(samples: Data) -> dict[str, str]:
    """What was found, by a short name."""
    spec = samples.spec
    total = sum(spec.pixels)
    named = [f"{name}: {100 * count / total:.2f} %" for name, count in zip(spec.classes, spec.pixels, strict=True)]
    return {
        "shape": f"{spec.channels} x {spec.size} x {spec.size}",
        "classes": str(len(spec.classes)),
        "pixels of train": some(named, MOST),
        "mean": ", ".join(f"{value:.4f}" for value in spec.mean),
        "std": ", ".join(f"{value:.4f}" for value in spec.std),
    }


def picture(batch: Batch, spec: Spec) -> "Figure":
    """The images of a prepared batch, as the model sees them but for the normalisation, each beside its mask."""
    return strips(batch[0], {"mask": batch[1]}, spec)


def palette() -> NDArray[np.uint8]:
    """Colours of 256 classes, (256, 3), as PASCAL VOC has them: each bit of the class is a bit of one colour."""
    values = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colours[:, bit % 3] |= ((values >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


def strips(images: Tensor, masks: dict[str, Tensor], spec: Spec) -> "Figure":
    """Each image with its masks to its right, and below all the colours of the classes."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    names = list(spec.classes)
    colours = torch.from_numpy(palette()[list(spec.values)] / 255)
    if spec.ignore is not None:  # its index is the last there is
        names += ["ignored"] * (spec.ignore + 1 - len(names))
        colours = torch.cat([colours, torch.full((len(names) - len(colours), 3), 0.9)])
    columns = max(round(math.sqrt(len(images) * 2 / (1 + len(masks)))), 1)
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.4 * columns * (1 + len(masks)), 1.5 * rows + 0.6), layout="constrained")
    for place, image in enumerate(images.float()):
        pixels = (image * std + mean).clamp(0, 1).permute(1, 2, 0).expand(-1, -1, 3)
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set_axis_off()
        gap = torch.ones(spec.size, max(spec.size // 32, 1), 3)
        parts = [part for mask in masks.values() for part in (gap, colours[mask[place]])]
        axes.imshow(torch.cat([pixels, *parts], dim=1).numpy())
    there = torch.stack(list(masks.values())).unique().tolist()[:MOST]
    patches = [Patch(facecolor=tuple(colours[i].tolist()), edgecolor="grey", label=names[i]) for i in there]
    figure.suptitle(", ".join(["image", *masks]), fontsize=10)
    figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False)
    return figure
