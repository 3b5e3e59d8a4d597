"""Sequence modeling with a trained model: continuations of text, or forecasts of a time series."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data import Batch, Spec
from ..distributed import World
from ..errors import UserError
from . import text_generation
from .atomic_file import atomic_write
from .trained_model import TrainedModel
from .view import plot_windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..readers.series import Series

ABOUT = "Continue text prompts; or, with a model trained on a series, forecast the rows that follow those of a file."
overlapping = text_generation.overlapping  # of `evaluate --stride`


class Details:
    """Perplexity and accuracy of the next token; or forecast errors per step."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.sums: text_generation.NextTokenMetrics | ForecastErrors = (
            text_generation.NextTokenMetrics(device) if spec.vocabulary else ForecastErrors(spec, device)
        )

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        self.sums.add(net, batch)

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """The values over all ranks, and a table of them."""
        return self.sums.result(world)


class ForecastErrors:
    """Errors of a forecast per step and per column, compared with repeating the last value."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.spec = spec
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64  # not all of these have float64
        self.sums = torch.zeros(4, spec.horizon, len(spec.columns), dtype=dtype, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Add a prepared batch."""
        rows, targets = batch
        error, naive = net.predict(rows).float() - targets, rows[:, -1:] - targets
        parts = [error.square(), error.abs(), naive.square(), torch.ones_like(error)]
        self.sums += torch.stack([part.sum(0) for part in parts])

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Errors per step, `mse` of normalized values and `mae` in the units of the columns; and per column."""
        squared, absolute, naive, count = world.all_reduce(self.sums).cpu()
        std = torch.tensor(self.spec.std, dtype=absolute.dtype)
        absolute *= std
        steps = {
            "mse_by_step": (squared.sum(1) / count.sum(1)).tolist(),
            "mae_by_step": (absolute.sum(1) / count.sum(1)).tolist(),
            "skill_by_step": (1 - squared.sum(1) / naive.sum(1)).tolist(),
        }
        errors = {"rmse": (squared.sum(0) / count.sum(0)).sqrt() * std, "mae": absolute.sum(0) / count.sum(0)}
        columns = {
            f"{name}_by_column": dict(zip(self.spec.columns, values.tolist(), strict=True))
            for name, values in errors.items()
        }
        lines = [f"{'step':>8}{'mse':>10}{'mae':>10}{'skill':>10}"]
        for number, row in enumerate(zip(*steps.values(), strict=True), 1):
            lines.append(f"{number:8}" + "".join(f"{value:10.4f}" for value in row))
        for error, values in columns.items():
            about = f"{error.removesuffix('_by_column')} of "
            lines += [f"{about + name:24}{value:.6g}" for name, value in values.items()]
        return {**steps, **columns}, "\n".join(lines) + "\n"


def plot(trained: TrainedModel, batch: Batch) -> Figure:
    """Validation text, shaded by the loss of each token; or forecasts and the true values."""
    inputs, targets = (part[:16] for part in batch)
    with trained.precision.autocast():
        if trained.spec.vocabulary:
            bits = text_generation.token_bits(trained.net, inputs, targets).cpu()
            title = "Validation text; darker: higher loss of the token"
            return text_generation.plot_tokens(targets, bits, trained.spec.tokenizer, title)
        forecast = trained.net.predict(inputs).float().cpu()
    return plot_windows(inputs.cpu(), {"true": targets.cpu(), "forecast": forecast}, trained.spec)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the inputs, the sampling options and the output."""
    parser.add_argument(
        "inputs", nargs="*", type=Path, help="text files to continue; or one CSV or Parquet file to forecast"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="text: .txt or .json; series: .csv, .json or .png (default: print)"
    )
    text_generation.add_options(parser)


def predict(trained: TrainedModel, args: argparse.Namespace) -> None:
    """Continue each prompt; or forecast the rows that follow those of the file.

    Raises:
        UserError: an option or a file is invalid, or the result cannot be written.
    """
    if trained.spec.vocabulary:
        text_generation.continue_prompts(trained, args)
        return
    if len(args.inputs) != 1 or args.prompt:
        raise UserError("this model was trained on a series: give one CSV or Parquet file, and no --prompt")
    target = args.output
    if target and target.suffix not in (".csv", ".json", ".png"):
        raise UserError(f"--output {target}: its name must end with .csv, .json or .png")
    from ..readers import series

    spec, found = trained.spec, series.read(args.inputs[0], trained.spec.columns)
    if len(found.values) < spec.context:
        raise UserError(f"{args.inputs[0]} has {len(found.values)} rows, but the model needs {spec.context}: give more")
    rows = torch.from_numpy(found.values[-spec.context :]).float().unsqueeze(0).to(trained.device)
    with trained.precision.autocast():
        forecast = Forecast(trained)(rows)[0].cpu()
    if target and target.suffix == ".png":
        with atomic_write(target) as file:
            _plot_forecast(found, forecast, spec).savefig(file, dpi=120)
        return
    values = [[float(f"{value:.7g}") for value in row] for row in forecast.tolist()]
    if target is None:
        print("".join(f"{name:>14}" for name in ("step", *spec.columns)))
        for number, row in enumerate(values, 1):
            print(f"{number:14}" + "".join(f"{value:14.6g}" for value in row))
        return
    with atomic_write(target) as file, file.open("w", encoding="utf-8", newline="") as stream:
        if target.suffix == ".json":
            json.dump({"columns": spec.columns, "forecast": values}, stream, indent=1)
        else:
            csv.writer(stream, lineterminator="\n").writerows([spec.columns, *values])


def _plot_forecast(found: Series, forecast: Tensor, spec: Spec) -> Figure:
    """The last input rows, and the forecast."""
    from matplotlib.figure import Figure

    inputs = torch.from_numpy(found.values[-2 * spec.context :])
    figure = Figure(figsize=(10, 1 + 2 * len(spec.columns)), layout="constrained")
    for number, axes in enumerate(figure.subplots(len(spec.columns), squeeze=False)[:, 0]):
        axes.plot(range(1 - len(inputs), 1), inputs[:, number].numpy(), color="tab:grey", label="input")
        axes.plot(range(1, spec.horizon + 1), forecast[:, number].numpy(), label="forecast")
        axes.set_ylabel(spec.columns[number])
    axes.set_xlabel("rows relative to the last input")
    axes.legend()
    return figure


class Forecast(nn.Module):
    """Rows in original units (n, window, columns) to a forecast (n, horizon, columns)."""

    mean: Tensor
    std: Tensor

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.net = trained.net
        self.register_buffer("mean", torch.tensor(trained.spec.mean, device=trained.device))
        self.register_buffer("std", torch.tensor(trained.spec.std, device=trained.device))

    def forward(self, rows: Tensor) -> Tensor:
        forecast: Tensor = self.net.predict((rows - self.mean) / self.std)
        return forecast.float() * self.std + self.mean


def export_module(trained: TrainedModel) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module to export, and example inputs."""
    spec, generator = trained.spec, torch.Generator().manual_seed(0)
    if spec.vocabulary:
        return text_generation.NextTokenLogits(trained.net), (
            torch.randint(0, spec.vocabulary, (2, spec.context), generator=generator),
        )
    rows = torch.randn(2, spec.context, len(spec.columns), generator=generator)
    return Forecast(trained), (rows * torch.tensor(spec.std) + torch.tensor(spec.mean),)
