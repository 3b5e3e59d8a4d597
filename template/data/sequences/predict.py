"""What `predict` writes for a series: its forecast. For text, it prints a continuation."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import data
from ..errors import UserError

Row = dict[str, Any]


def predict(
    options: Namespace,
    cfg: data.DataConfig,
    spec: data.Spec,
    model: Any,
    val_set: Any,
    outputs: Callable[[Any], Iterator[tuple[Tensor, Tensor]]],
) -> list[Row]:
    """Return a row per step of each forecast; or print a text that begins with the prompt."""
    rows: list[Row] = []
    if cfg.kind == "text":
        if options.files:
            file = options.files[0]
            raise UserError(f"a model of text reads no files, but {file} is given: leave it out")
        print(options.prompt + continue_prompt(options, spec, model))
    elif options.files:
        samples = [last_rows(file, cfg, spec) for file in options.files]
        for file, (output, _) in zip(options.files, outputs(samples), strict=True):
            rows += step_rows(str(file), in_units(output, spec), spec.columns)
    else:
        names = [*spec.columns, *(f"{name} (true)" for name in spec.columns)]
        for number, (output, target) in enumerate(outputs(val_set)):
            values = torch.cat([in_units(output, spec), in_units(target, spec)], dim=1)
            rows += step_rows(f"{number:05}", values, names)
    return rows


def continue_prompt(options: Namespace, spec: data.Spec, model: Any) -> str:
    """Return new text, one byte at a time; the oldest ones leave a full context."""
    generator = torch.Generator().manual_seed(options.seed)
    prompt = options.prompt.encode()
    tokens = list(prompt)
    for _ in range(options.tokens):
        context = torch.tensor([tokens[-spec.context :]], device=options.device)
        logits: Tensor = model.predict(context)[0, -1].float().cpu()
        logits = logits / max(options.temperature, 1e-6)  # 0: the most likely byte
        token = torch.multinomial(logits.softmax(0), 1, generator=generator)
        tokens.append(int(token))
    return bytes(tokens[len(prompt) :]).decode(errors="replace")


def last_rows(
    file: Path,
    cfg: data.DataConfig,
    spec: data.Spec,
) -> tuple[Tensor]:
    """Return the last rows of a series, standardized, with zeros for those of the forecast."""
    frame, _ = data.read_series(file, cfg, "the series", spec.columns)
    end = frame.ffill().tail(spec.context)
    if len(end) < spec.context:
        raise UserError(
            f"{file} has {len(frame)} rows, and the model forecasts from {spec.context}: "
            "give files with more"
        )
    mean, std = statistics(spec)
    values = (torch.tensor(end.to_numpy()) - mean) / std
    return (F.pad(values.float(), (0, 0, 0, spec.horizon)),)


def in_units(values: Tensor, spec: data.Spec) -> Tensor:
    """Return standardized values (steps, columns) in the units of the columns."""
    mean, std = statistics(spec)
    return values * std + mean


def statistics(spec: data.Spec) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column, float64."""
    return (
        torch.tensor(spec.mean, dtype=torch.float64),
        torch.tensor(spec.std, dtype=torch.float64),
    )


def step_rows(name: str, values: Tensor, columns: Any) -> list[Row]:
    """Return a row for each step of a forecast."""
    rows = []
    for step, numbers in enumerate(values.tolist(), 1):
        row: Row = {"sample": name, "step": step}
        rows.append(row | dict(zip(columns, numbers, strict=True)))
    return rows
