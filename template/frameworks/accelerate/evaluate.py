"""Evaluate a run with its best weights: `python -m <package>.evaluate runs/first`."""

import argparse
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from safetensors.torch import load_model
from torch import Tensor, nn

from . import data, loader, record
from .accelerator import create, join
from .checkpoint import about_best, spec_of
from .config import Config, Device
from .config_files import from_saved
from .contracts import Metrics, Prepare, load_data, load_test_split
from .errors import UserError, one_line
from .loss import Count, check_names, compute_loss
from .model import build
from .workers import limit_time


class Means:
    """Adds up the metrics of batches on the device; only `read` waits for it."""

    def __init__(self, accelerator: Accelerator, loss_of_none: float = math.nan) -> None:
        self.accelerator = accelerator
        self.loss_of_none = loss_of_none  # with NaN, a validation is never the best
        self.totals: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, metrics: Metrics) -> None:
        """Add the sums and counts of a batch."""
        device = self.accelerator.device
        # some devices have no float64
        dtype = torch.float32 if device.type in ("mps", "xpu") else torch.float64
        for name, (total, count) in metrics.items():
            if name not in self.totals:
                shape = torch.as_tensor(total).shape
                self.totals[name] = torch.zeros(2, *shape, dtype=dtype, device=device)
            sums, counts = self.totals[name]
            sums += total
            counts += count

    def read(self) -> dict[str, float]:
        """Return the means over all processes since the last call."""
        means = {}
        names = sorted(self.totals)  # in one order on all processes
        check_names(names, partial(mean_over_processes, self.accelerator))
        for name in names:
            sums, counts = self.accelerator.reduce(self.totals[name])
            has_count = counts != 0
            mean = (sums[has_count] / counts[has_count]).mean().item()
            none = self.loss_of_none if name == "loss" else math.nan
            means[name] = mean if has_count.any() else none
        self.totals = {}
        return means


@torch.no_grad()  # and not inference mode: the loss may have derivatives in it
def evaluate(
    accelerator: Accelerator,
    net: nn.Module,
    batches: Iterable[Any],
    prepare: Prepare,
) -> dict[str, float]:
    """Return the metrics of all samples in the prepared batches."""
    means = Means(accelerator)
    generator = seed_batch(accelerator.process_index, accelerator.device)
    net.eval()
    for loaded in batches:
        _, metrics = compute_loss(net, prepare(loaded, False, generator))
        means.add(metrics)
    net.train()
    return means.read()


def mean_over_processes(accelerator: Accelerator, count: Count) -> Count:
    """Return the mean of a count, on the device; with one process, the count itself."""
    if accelerator.num_processes == 1:
        return count
    own = torch.zeros((), device=accelerator.device, dtype=torch.float32)
    own += count
    mean: torch.Tensor = accelerator.reduce(own, "mean")
    return mean


def seed_batch(number: int, device: torch.device) -> torch.Generator:
    """Seed the random numbers of a micro-batch: dropout, and the returned one for augmentation."""
    number %= 2**63
    default = torch.manual_seed(number)
    return default if device.type == "cpu" else torch.Generator(device).manual_seed(number)


def load_run(
    folder: Path,
    device: torch.device,
    needs_samples: bool = True,
) -> tuple[Config, torch.nn.Module, Any, Any]:
    """Return a run's config, its model with the best weights, its validation set, and the spec.

    Without `needs_samples`, the validation set is empty, and the data need not be there.
    """
    saved = record.read(folder).get("config")
    if saved is None:
        missing = "it has no config.json that can be read"
        raise UserError(f"{folder} is not the folder of a run: {missing}")
    cfg = from_saved(Config, saved)
    weights = folder / "best/model.safetensors"
    if not weights.exists():
        why = f"no validation recorded a finite {cfg.train.monitor}"
        raise UserError(f"{folder} has no best weights: {why}")
    saved_spec = spec_of(folder)
    train_set, val_set, spec = load_data(data, cfg.data, saved_spec, needs_samples)
    if needs_samples:
        record.note_changes(folder, train_set, val_set)
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
    limited = limit_time(accelerator.prepare(batches), cfg.loader.timeout)
    net = accelerator.prepare_model(net, evaluation_mode=True)
    prepare = data.Prepare(spec, cfg.data).to(accelerator.device)
    return evaluate(accelerator, net, limited, prepare)


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a run with its best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument("--split", choices=["val", "test"], default="val", help="val or test")
    devices = ["auto", "accelerator", "cpu"]
    parser.add_argument("--device", choices=devices, default="auto", help="where to run")
    parser.add_argument("--json", action="store_true", help="the default: one line of JSON")
    options = parser.parse_args()
    with one_line():
        results = evaluate_run(options.run, options.device, options.split)
    state = PartialState()
    if state.is_main_process:
        print(f"checkpoint: {about_best(options.run)}", file=sys.stderr)
        print(json.dumps(results))
    state.destroy_process_group()


if __name__ == "__main__":
    main()
