"""Evaluate a run with its best weights: `python -m <package>.evaluate runs/first`."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors.torch import load_model

from . import data, loader, record
from .accelerator import create, join
from .config import Config, Device, parse
from .contracts import load_data, load_test_split
from .errors import UserError, one_line
from .metrics import evaluate
from .model import build


def load_run(folder: Path, device: torch.device) -> tuple[Config, torch.nn.Module, Any, Any]:
    """Return a run's config, its model with the best weights, its validation set, and the spec."""
    saved = record.read(folder).get("config")
    if saved is None:
        missing = "it has no config.json"
        raise UserError(f"{folder} is not the folder of a run: {missing}")
    weights = folder / "best/model.safetensors"
    if not weights.exists():
        raise UserError(f"{folder} has no validation yet: train for longer")
    cfg = parse(saved=saved)
    _, val_set, spec = load_data(data, cfg.data, record.read_spec(folder))
    net: torch.nn.Module = build(cfg.model, spec)
    try:
        load_model(net, weights)
    except RuntimeError:
        raise UserError(f"{weights} has other weights than model.py") from None
    return cfg, net.to(device), val_set, spec


def evaluate_run(
    folder: Path,
    device: Device,
    split: str = "val",
) -> dict[str, float]:
    """Return the metrics of a run's best weights on the validation or the test split."""
    join(device)
    cfg, net, samples, spec = load_run(folder, torch.device("cpu"))
    if split == "test":
        samples = load_test_split(data, cfg.data, spec=spec)
    cfg = replace(cfg, run=replace(cfg.run, device=device))
    accelerator = create(cfg)
    batches = loader.val_loader(samples, cfg, accelerator.num_processes)
    batches = accelerator.prepare(batches)
    net = accelerator.prepare_model(net, evaluation_mode=True)
    prepare = data.Prepare(spec, cfg.data).to(accelerator.device)
    return evaluate(
        accelerator,
        net,
        batches,
        prepare,
    )


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a run with its best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument(
        "--split",
        choices=["val", "test"],
        default="val",
        help="val or test",
    )
    devices = ["auto", "accelerator", "cpu"]
    parser.add_argument(
        "--device",
        choices=devices,
        default="auto",
        help="where to run",
    )
    options = parser.parse_args()
    with one_line():
        results = evaluate_run(options.run, options.device, options.split)
    state = PartialState()
    if state.is_main_process:
        print(json.dumps(results))
    state.destroy_process_group()


if __name__ == "__main__":
    main()
