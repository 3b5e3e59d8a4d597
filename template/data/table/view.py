"""Summary of a table, and a heat map of one batch."""

from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from ..data import Batch, Data, Spec
from ..readers.common import abbreviate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMES = 8
"""Maximum number of classes or columns in the summary."""


def summary(samples: Data) -> dict[str, str]:
    """The task, the classes or the statistics of the target, and the columns."""
    spec, targets = samples.spec, samples.train.targets
    if spec.classes:
        counts = torch.bincount(targets, minlength=len(spec.classes)).tolist()
        counted = [f"{name}: {count}" for name, count in zip(spec.classes, counts, strict=True)]
        about = {"task": f"classification by {spec.target}", "classes": abbreviate(counted, MAX_NAMES)}
    else:
        mean_std = f"{spec.target_mean:.4g}, standard deviation {spec.target_std:.4g}"
        about = {"task": f"regression of {spec.target}", "target": f"mean {mean_std}"}
    moments = zip(spec.numeric, spec.mean, spec.std, strict=True)
    known = zip(spec.categorical, spec.categories, strict=True)
    about["numeric"] = (
        abbreviate([f"{name} ({mean:.4g} +- {std:.2g})" for name, mean, std in moments], MAX_NAMES) or "none"
    )
    about["categorical"] = abbreviate([f"{name} ({len(names)})" for name, names in known], MAX_NAMES) or "none"
    if spec.indicated:
        about["with missing"] = abbreviate(spec.indicated, MAX_NAMES)
    return about


def plot(batch: Batch, spec: Spec) -> "Figure":
    """One row per sample, sorted by target: standardized numbers as colors, and categories by name."""
    from matplotlib.figure import Figure

    numbers, codes, targets = batch
    order = targets.argsort(stable=True)
    if spec.classes:
        labels = [spec.classes[index] for index in targets[order].tolist()]
    else:
        labels = [f"{value * spec.target_std + spec.target_mean:.4g}" for value in targets[order].tolist()]
    names = [*spec.numeric, *(f"{name} missing" for name in spec.indicated)]
    widths = {"numbers": 0.3 * len(names), "categories": 1.0 * len(spec.categorical)}
    panels = [name for name, width in widths.items() if width]
    figure = Figure(figsize=(3 + sum(widths.values()), 2 + 0.25 * len(order)), layout="constrained")
    mosaic: dict[str, Any] = figure.subplot_mosaic([[*panels]], width_ratios=[widths[name] for name in panels])
    if names:
        shown = mosaic["numbers"].imshow(numbers[order].numpy(), cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto")
        mosaic["numbers"].set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        figure.colorbar(shown, ax=list(mosaic.values()), label="standard deviations from the mean")
    if spec.categorical:
        axes, cells = mosaic["categories"], codes[order].tolist()
        axes.imshow(codes[order].numpy() % 9, cmap="Pastel1", vmin=0, vmax=8, aspect="auto")
        axes.set_xticks(range(len(spec.categorical)), spec.categorical, rotation=90, fontsize=8)
        for row, column in product(range(len(cells)), range(len(spec.categorical))):
            name = ("unknown", *spec.categories[column])[cells[row][column]]
            axes.text(column, row, str(name or "missing")[:14], ha="center", va="center", fontsize=7)
    for axes in mosaic.values():
        axes.set_yticks([])
    mosaic[panels[0]].set_yticks(range(len(labels)), labels, fontsize=8)
    mosaic[panels[0]].set_ylabel(spec.target)
    return figure
