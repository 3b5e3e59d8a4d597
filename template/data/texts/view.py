"""Summary and plot of texts with labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..data import Batch, Data, Spec, Texts
from ..readers.common import abbreviate
from ..readers.subwords import decoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CLASSES = 30
"""Maximum number of classes in the summary."""


def summary(samples: Data) -> dict[str, str]:
    """A summary of the data, by name."""
    spec, lengths = samples.spec, samples.train.lengths().sort().values
    middle, most = (int(lengths[int(fraction * (len(lengths) - 1))]) for fraction in (0.5, 0.95))
    return {
        "classes": str(len(spec.classes)),
        "train classes": _class_counts(samples.train, spec),
        "val classes": _class_counts(samples.val, spec),
        "vocabulary": f"{spec.vocabulary:,} tokens",
        "tokens per text": f"median {middle}, 95% have at most {most}, cut to data.length={spec.length}",
    }


def _class_counts(split: Texts, spec: Spec) -> str:
    counts = torch.bincount(split.labels, minlength=len(spec.classes)).tolist()
    return abbreviate([f"{name}: {count}" for name, count in zip(spec.classes, counts, strict=True)], MAX_CLASSES)


def plot(batch: Batch, spec: Spec) -> Figure:
    """The texts of a prepared batch, a line each, with their classes; `|` separates tokens."""
    from matplotlib.figure import Figure  # imported here because it takes a second

    decode = decoder(spec.tokenizer)
    figure = Figure(figsize=(14, 0.5 + 0.3 * len(batch[2])), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(batch[2]), -1))
    for row, (tokens, mask, label) in enumerate(zip(*batch, strict=True)):
        pieces = [decode([token]) for token in tokens[mask].tolist()]
        text = " ".join("|".join(piece for piece in pieces if piece).split())
        axes.text(0, row, spec.classes[label], size=10)
        axes.text(0.15, row, text[:130].replace("$", r"\$"), family="DejaVu Sans Mono", size=9)
    return figure
