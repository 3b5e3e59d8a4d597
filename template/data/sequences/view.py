"""What `python -m <package>.data --show` says and draws of text and of series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data import Batch, Data, Rows, Spec
from ..readers.windows import Windows
from . import text_generation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summary(samples: Data) -> dict[str, str]:
    """Short names, and what is to be said of each."""
    spec, train, val = samples.spec, samples.train, samples.val
    if not isinstance(train, Rows) or not isinstance(val, Rows):
        assert isinstance(train, Windows)
        assert isinstance(val, Windows)
        return text_generation.summary(train, val, spec.vocabulary, spec.bytes_per_token)
    columns = zip(spec.columns, spec.mean, spec.std, strict=True)
    return {
        "rows": f"{len(train.values):,} in train, {len(val.values) - spec.context:,} held out after them",
        "columns": ", ".join(f"{name} ({mean:.4g} +- {std:.3g})" for name, mean, std in columns),
        "window": f"{spec.context} rows, to forecast {spec.horizon}",
    }


def picture(batch: Batch, spec: Spec) -> Figure:
    """Lines of text; or of a series what is seen, and what is to be forecast."""
    if spec.vocabulary:
        return text_generation.draw(
            batch[0], text_generation.rarity(batch[0]), spec.tokenizer, "Samples; the darker, the rarer the token"
        )
    return panels(batch[0], {"to be forecast": batch[1]}, spec)


def panels(rows: Tensor, following: dict[str, Tensor], spec: Spec, most: int = 12) -> Figure:
    """Draw the first column of normalised windows, and by name what follows them."""
    from matplotlib.figure import Figure

    count = min(most, len(rows))
    figure = Figure(figsize=(14, 1 + 2.2 * -(-count // 3)), layout="constrained")
    grid = figure.subplots(-(-count // 3), 3, squeeze=False, sharex=True)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    own = spec.std[0], spec.mean[0]
    chosen = torch.linspace(0, len(rows) - 1, count).long().tolist()  # neighbours look alike
    for number, axes in zip(chosen, grid.flat, strict=False):
        seen = rows[number, :, 0] * own[0] + own[1]
        axes.plot(range(1 - spec.context, 1), seen.numpy(), color="tab:grey", label="seen")
        for name, values in following.items():
            drawn = values[number, :, 0] * own[0] + own[1]
            axes.plot(range(1, spec.horizon + 1), drawn.numpy(), label=name)
    grid[0, 0].legend(fontsize=8)
    figure.suptitle(f"{spec.columns[0]}, by row from the last one seen")
    return figure
