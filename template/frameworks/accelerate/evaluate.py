"""Evaluate a run with its best weights: `python -m <package>.evaluate runs/first`."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model

from . import checkpoint, data, distributed, errors, loader, precision
from .accelerator import Config
from .config import parse
from .distributed import World
from .metrics import evaluate
from .model import build


def load_run(folder: Path, device: torch.device) -> tuple[Config, torch.nn.Module, Any, Any]:
    """Return a run's config, its model with the best weights, its validation set, and the spec of its data."""
    try:
        saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))["config"]
    except (FileNotFoundError, ValueError, KeyError):
        raise errors.UserError(
            f"{folder} is not the folder of a run: it has no config.json"
        ) from None
    cfg = parse(Config, saved=saved)
    _, val_set, spec = data.load(cfg.data)
    net: torch.nn.Module = build(cfg.model, spec)
    if (found := checkpoint.newest(folder / "checkpoints", best_first=True)) is None:
        raise errors.UserError(
            f"{folder} has no checkpoint: give the folder of a run, such as runs/first"
        )
    missing, extra = load_model(net, found / "model.safetensors", strict=False)
    if (
        missing or {*extra} - net.state_dict().keys()
    ):  # `extra` has the second names of shared weights, too
        raise errors.UserError(f"{found} has other weights than model.py")
    return cfg, net.to(device), val_set, spec


def load_test(cfg: data.DataConfig) -> Any:
    """Return the test split, which `load` of data.py leaves out."""
    own = getattr(data, "load_test", None)  # your own data.py may have none
    test_set = own(cfg) if own else None
    if test_set is None:
        raise errors.UserError(
            "there is no test split: train with data.test_fraction, or see load_test in data.py"
        )
    return test_set


def evaluate_run(folder: Path, world: World, split: str = "val") -> dict[str, float]:
    """Return the metrics of a run's best weights on the validation or the test split."""
    cfg, net, samples, spec = load_run(folder, world.device)
    if split == "test":
        samples = load_test(cfg.data)
    _, autocast, _ = precision.setup(cfg.speed, world.device)
    order, counted = loader.val_batches(len(samples), cfg.train.micro_batch, world)
    batches = loader.Loader(samples, order, cfg.loader, world)
    return evaluate(
        net, batches, counted, data.Prepare(spec, cfg.data).to(world.device), autocast, world
    )


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a run with its best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument("--split", choices=["val", "test"], default="val", help="val or test")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps or xpu")
    options = parser.parse_args()
    with errors.one_line(), distributed.init(options.device) as world:
        results = evaluate_run(options.run, world, options.split)
        if world.rank == 0:
            print(json.dumps(results))


if __name__ == "__main__":
    main()
