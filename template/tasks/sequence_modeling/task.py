"""Sequences after training: of text continuations of a prompt, of a series the forecast of its next rows."""

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
from .atomic_file import whole
from .trained_model import Trained
from .view import panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..readers.series import Series

ABOUT = "Continue a text; or, where the model was trained on a series, forecast the rows after a file's last."


class Details:
    """What `evaluate` adds: perplexity and accuracy of the next token; or errors for each step of the forecast."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.sums: text_generation.NextToken | Steps = (
            text_generation.NextToken(device) if spec.vocabulary else Steps(spec, device)
        )

    def add(self, net: Any, batch: Batch) -> None:
        """Take in a prepared batch."""
        self.sums.add(net, batch)

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """What was found over all ranks, and a table of it."""
        return self.sums.result(world)


class Steps:
    """Errors of a forecast by its steps ahead, and by column, beside those of repeating the last value."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self.spec = spec
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        self.sums = torch.zeros(4, spec.horizon, len(spec.columns), dtype=dtype, device=device)

    def add(self, net: Any, batch: Batch) -> None:
        """Take in a prepared batch."""
        rows, targets = batch
        error, naive = net.predict(rows).float() - targets, rows[:, -1:] - targets
        parts = [error.square(), error.abs(), naive.square(), torch.ones_like(error)]
        self.sums += torch.stack([part.sum(0) for part in parts])

    def result(self, world: World) -> tuple[dict[str, Any], str]:
        """Of the normalised values for each step; of the values themselves for each column."""
        squared, absolute, naive, count = world.all_reduce(self.sums).cpu()
        steps = {
            "mse_by_step": (squared.sum(1) / count.sum(1)).tolist(),
            "mae_by_step": (absolute.sum(1) / count.sum(1)).tolist(),
            "skill_by_step": (1 - squared.sum(1) / naive.sum(1)).tolist(),
        }
        rmse = (squared.sum(0) / count.sum(0)).sqrt().tolist()
        columns = {name: one * std for name, one, std in zip(self.spec.columns, rmse, self.spec.std, strict=True)}
        lines = [f"{'step':>8}{'mse':>10}{'mae':>10}{'skill':>10}"]
        for number, row in enumerate(zip(*steps.values(), strict=True), 1):
            lines.append(f"{number:8}" + "".join(f"{value:10.4f}" for value in row))
        lines += [f"{'rmse of ' + name:24}{value:.6g}" for name, value in columns.items()]
        return {**steps, "rmse_by_column": columns}, "\n".join(lines) + "\n"


def picture(trained: Trained, batch: Batch) -> Figure:
    """Held-out text with what each token costs the model; or forecasts beside what came."""
    inputs, targets = (part[:16] for part in batch)
    with trained.precision.autocast():
        if trained.spec.vocabulary:
            bits = text_generation.surprise(trained.net, inputs, targets).cpu()
            title = "Held-out text; the darker, the less foreseen"
            return text_generation.draw(targets, bits, trained.spec.tokenizer, title)
        forecast = trained.net.predict(inputs).float().cpu()
    return panels(inputs.cpu(), {"came": targets.cpu(), "forecast": forecast}, trained.spec)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Files or a prompt, how a continuation is drawn, and where it goes."""
    parser.add_argument("inputs", nargs="*", type=Path, help="text files; or one CSV or Parquet file with the columns")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="text: .txt or .json; series: .csv, .json or .png; else on stdout"
    )
    text_generation.add_options(parser)


def predict(trained: Trained, args: argparse.Namespace) -> None:
    """Continue each prompt; or forecast the rows after the file's last.

    Raises:
        UserError: an option or a file is not fit for it, or the result cannot be written.
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
        raise UserError(f"{args.inputs[0]} has {len(found.values)} rows, and the model sees {spec.context}: give more")
    rows = torch.from_numpy(found.values[-spec.context :]).float().unsqueeze(0).to(trained.device)
    with trained.precision.autocast():
        forecast = Forecast(trained)(rows)[0].cpu()
    if target and target.suffix == ".png":
        with whole(target) as file:
            _drawn(found, forecast, spec).savefig(file, dpi=120)
        return
    values = [[float(f"{value:.7g}") for value in row] for row in forecast.tolist()]
    if target is None:
        print("".join(f"{name:>14}" for name in ("step", *spec.columns)))
        for number, row in enumerate(values, 1):
            print(f"{number:14}" + "".join(f"{value:14.6g}" for value in row))
        return
    with whole(target) as file, file.open("w", encoding="utf-8", newline="") as stream:
        if target.suffix == ".json":
            json.dump({"columns": spec.columns, "forecast": values}, stream, indent=1)
        else:
            csv.writer(stream, lineterminator="\n").writerows([spec.columns, *values])


def _drawn(found: Series, forecast: Tensor, spec: Spec) -> Figure:
    """The last rows that were seen, and the forecast."""
    from matplotlib.figure import Figure

    seen = torch.from_numpy(found.values[-2 * spec.context :])
    figure = Figure(figsize=(10, 1 + 2 * len(spec.columns)), layout="constrained")
    for number, axes in enumerate(figure.subplots(len(spec.columns), squeeze=False)[:, 0]):
        axes.plot(range(1 - len(seen), 1), seen[:, number].numpy(), color="tab:grey", label="seen")
        axes.plot(range(1, spec.horizon + 1), forecast[:, number].numpy(), label="forecast")
        axes.set_ylabel(spec.columns[number])
    axes.set_xlabel("rows from the last one seen")
    axes.legend()
    return figure


class Forecast(nn.Module):
    """Rows as measured (n, window, columns) to the next ones (n, horizon, columns)."""

    mean: Tensor
    std: Tensor

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.net = trained.net
        self.register_buffer("mean", torch.tensor(trained.spec.mean, device=trained.device))
        self.register_buffer("std", torch.tensor(trained.spec.std, device=trained.device))

    def forward(self, rows: Tensor) -> Tensor:
        forecast: Tensor = self.net.predict((rows - self.mean) / self.std)
        return forecast.float() * self.std + self.mean


def exported(trained: Trained) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network from tokens to scores, or from rows to the next ones, and inputs to try it on."""
    spec, generator = trained.spec, torch.Generator().manual_seed(0)
    if spec.vocabulary:
        return text_generation.Scores(trained.net), (
            torch.randint(0, spec.vocabulary, (2, spec.context), generator=generator),
        )
    rows = torch.randn(2, spec.context, len(spec.columns), generator=generator)
    return Forecast(trained), (rows * torch.tensor(spec.std) + torch.tensor(spec.mean),)
