"""Evaluate a run with its best weights: `python -m <package>.evaluate runs/first`."""

import argparse
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Trainer

from . import data
from .datamodule import Data
from .errors import UserError, one_line
from .model import ModelConfig, build
from .module import Model


def load_run(folder: Path, device: torch.device) -> tuple[Namespace, torch.nn.Module, Any, Any]:
    """Return a run's options `data` and `model`, its network with the best weights, its validation set, and the spec.

    The weights are loaded with weights_only=True: a checkpoint cannot execute code.
    """
    saved, weights = _config(folder), folder / "checkpoints/best.ckpt"
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(data.DataConfig, "data")
    parser.add_class_arguments(ModelConfig, "model")
    cfg = parser.instantiate(parser.parse_object({"data": saved["data"]["source"], "model": saved["model"]["net"]}))
    _, val_set, spec = data.load(cfg.data)
    net: torch.nn.Module = build(cfg.model, spec)
    if not weights.exists():
        raise UserError(f"{folder} has no checkpoints/best.ckpt: give the folder of a run that has validated")
    found = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    net.load_state_dict({name.removeprefix("net."): found[name] for name in found if name.startswith("net.")})
    return cfg, net.to(device), val_set, spec


def evaluate_run(folder: Path, accelerator: str = "auto") -> dict[str, float]:
    """Return the validation metrics of a run's best weights, in the precision of the run."""
    cfg, net, _, _ = load_run(folder, torch.device("cpu"))
    saved = _config(folder)
    module = Data(cfg.data, saved["data"]["batch_size"], saved["data"]["workers"])
    model = Model(cfg.model, module.spec, module.prepare)
    model.net.load_state_dict(net.state_dict())
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator=accelerator, devices=1, precision=saved["trainer"]["precision"], **quiet)
    (results,) = trainer.validate(model, module, verbose=False)
    return {name.removeprefix("val/"): value for name, value in results.items()}


def _config(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        raise UserError(f"{folder} is not the folder of a run: it has no config.yaml") from None


def main() -> None:
    """Print the metrics as one line of JSON."""
    parser = argparse.ArgumentParser(description="Evaluate a run with its best weights.")
    parser.add_argument("run", type=Path, help="folder of the run, such as runs/first")
    parser.add_argument("--device", default="auto", help="accelerator of Lightning: auto, cpu, gpu, ...")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers")
    with one_line():
        print(json.dumps(evaluate_run(options.run, options.device)))


if __name__ == "__main__":
    main()
