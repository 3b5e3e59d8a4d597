"""Load a trained network: `_, net, _, _ = load_run(Path("runs/first"), torch.device("cpu"))`."""

from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace

from . import data
from .errors import UserError
from .model import ModelConfig, build


def load_run(folder: Path, device: torch.device) -> tuple[Namespace, torch.nn.Module, Any, Any]:
    """Return a run's options, its network with the best weights, its validation set, and the spec.

    The options are those of `data` and of `model`.
    """
    try:
        saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        weights = torch.load(
            folder / "checkpoints/best.ckpt",
            map_location="cpu",
            weights_only=True,
        )["state_dict"]
    except FileNotFoundError as error:
        missing = f"it has no {error.filename}"
        raise UserError(f"{folder} is not the folder of a run: {missing}") from None
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(data.DataConfig, "data")
    parser.add_class_arguments(ModelConfig, "model")
    options = {
        "data": saved["data"]["source"],
        "model": saved["model"]["net"],
    }
    cfg = parser.instantiate(parser.parse_object(options))

    _, val_set, spec = data.load(cfg.data)
    net: torch.nn.Module = build(cfg.model, spec)
    module = torch.nn.ModuleDict({"net": net, "prepare": data.Prepare(spec, cfg.data)})
    module.load_state_dict(weights)
    return cfg, net.to(device), val_set, spec
