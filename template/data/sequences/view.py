"""Summary and plots of text and time series."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..data import Batch, Data, Rows, Spec
from ..readers.windows import Windows
from . import text_generation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summary(samples: Data) -> dict[str, str]:
    """A summary of the data, by name."""
    spec, train, val = samples.spec, samples.train, samples.val
    if not isinstance(train, Rows) or not isinstance(val, Rows):
        windows = cast(Windows, train), cast(Windows, val)
        return text_generation.summary(*windows, spec.vocabulary, spec.bytes_per_token)
    columns = zip(spec.columns, spec.mean, spec.std, strict=True)
    return {
        "rows": f"{len(train.values):,} in train, {len(val.values) - spec.context:,} in val",
        "columns": ", ".join(f"{name} ({mean:.4g} +- {std:.3g})" for name, mean, std in columns),
        "window": f"{spec.context} input rows, {spec.horizon} to forecast",
    }


def plot(batch: Batch, spec: Spec) -> Figure:
    """Lines of text; or windows of a series, with inputs and targets."""
    if spec.vocabulary:
        return text_generation.plot_tokens(
            batch[0], text_generation.frequency_bits(batch[0]), spec.tokenizer, "Samples; darker: rarer token"
        )
    return plot_windows(batch[0], {"target": batch[1]}, spec)


def plot_windows(rows: Tensor, following: dict[str, Tensor], spec: Spec, limit: int = 12) -> Figure:
    """Plot the first column of normalized windows, and what follows them, by name."""
    from matplotlib.figure import Figure

    count = min(limit, len(rows))
    figure = Figure(figsize=(14, 1 + 2.2 * -(-count // 3)), layout="constrained")
    grid = figure.subplots(-(-count // 3), 3, squeeze=False, sharex=True)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    std, mean = spec.std[0], spec.mean[0]
    chosen = torch.linspace(0, len(rows) - 1, count).long().tolist()  # neighboring windows look alike
    for number, axes in zip(chosen, grid.flat, strict=False):
        inputs = rows[number, :, 0] * std + mean
        axes.plot(range(1 - spec.context, 1), inputs.numpy(), color="tab:grey", label="input")
        for name, values in following.items():
            following_rows = values[number, :, 0] * std + mean
            axes.plot(range(1, spec.horizon + 1), following_rows.numpy(), label=name)
    grid[0, 0].legend(fontsize=8)
    figure.suptitle(f"{spec.columns[0]}, by row relative to the last input")
    return figure
