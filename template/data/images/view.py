"""Summary and plot of labeled images."""

import math
from typing import TYPE_CHECKING

import torch

from ..data import Batch, Data, Samples, Spec
from ..readers.common import abbreviate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CLASSES = 30
"""Maximum number of classes in the summary."""


def summary(samples: Data) -> dict[str, str]:
    """A summary of the data, by name."""
    spec = samples.spec
    return {
        "shape": f"{spec.channels} x {spec.size} x {spec.size}",
        "classes": str(len(spec.classes)),
        "train classes": _class_counts(samples.train, spec),
        "val classes": _class_counts(samples.val, spec),
        "mean": ", ".join(f"{value:.4f}" for value in spec.mean),
        "std": ", ".join(f"{value:.4f}" for value in spec.std),
    }


def _class_counts(split: Samples, spec: Spec) -> str:
    counts = torch.bincount(split.labels, minlength=len(spec.classes)).tolist()
    counted = [f"{name}: {count}" for name, count in zip(spec.classes, counts, strict=True)]
    return abbreviate(counted, MAX_CLASSES)


def plot(batch: Batch, spec: Spec) -> "Figure":
    """The images of a prepared batch, denormalized, with their classes."""
    from matplotlib.figure import Figure  # imported here because it takes a second

    images, labels = batch
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (spec.mean, spec.std))
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.5 * columns, 1.7 * rows), layout="constrained")
    for number, (image, label) in enumerate(zip(images.float(), labels.tolist(), strict=True), start=1):
        axes = figure.add_subplot(rows, columns, number)
        axes.set_axis_off()
        axes.set_title(spec.classes[label], fontsize=9)
        pixels = (image * std + mean).clamp(0, 1).permute(1, 2, 0)
        axes.imshow(pixels.expand(-1, -1, 3).numpy())
    return figure
