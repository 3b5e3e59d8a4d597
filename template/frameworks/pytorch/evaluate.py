"""Evaluate a run with its best weights: `python -m <package>.evaluate runs/first`."""

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, data, distributed, errors, loader, precision, record
from .components import Config, build_components
from .config_files import from_saved
from .contracts import load_data, load_test_split
from .distributed import World
from .metrics import evaluate
from .model import build


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
        raise errors.UserError(f"{folder} is not the folder of a run: {missing}")
    cfg = from_saved(Config, saved)
    best = checkpoint.best(folder)
    saved_spec = checkpoint.spec_of(best)
    train_set, val_set, spec = load_data(data, cfg.data, saved_spec, needs_samples)
    if needs_samples:
        record.note_changes(folder, train_set, val_set)
    components = build_components(cfg, World(0, 1, device))
    net = components.convert_model(build(cfg.model, spec))
    checkpoint.restore(net, checkpoint.weights_of(best), best)
    return cfg, net.to(device), val_set, spec


def evaluate_run(
    folder: Path,
    world: World,
    split: str = "val",
) -> dict[str, float]:
    """Return the metrics of a run's best weights on the validation or the test split."""
    cfg, net, samples, spec = load_run(folder, world.device)
    if split == "test":
        samples = load_test_split(data, cfg.data, spec=spec)
    _, autocast, _ = precision.setup(cfg.speed, world.device)
    prepare = data.Prepare(spec, cfg.data).to(world.device)
    indices, num_batches = loader.val_batches(len(samples), cfg.train.batch_size, world)
    with closing(loader.Loader(samples, indices, cfg.loader, world)) as batches:
        return evaluate(
            net,
            batches,
            num_batches,
            prepare,
            autocast,
            world,
        )


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a run with its best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument("--split", choices=["val", "test"], default="val", help="val or test")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps or xpu")
    parser.add_argument("--json", action="store_true", help="the default: one line of JSON")
    options = parser.parse_args()
    with errors.one_line(), distributed.init(options.device) as world:
        results = evaluate_run(options.run, world, options.split)
        if world.rank == 0:
            print(f"checkpoint: {checkpoint.about_best(options.run)}", file=sys.stderr)
            print(json.dumps(results))


if __name__ == "__main__":
    main()
