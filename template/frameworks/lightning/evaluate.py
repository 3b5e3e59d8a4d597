"""Load a trained network: `_, net, _, _ = load_run(Path("runs/first"), torch.device("cpu"))`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser, Namespace

from . import data
from .contracts import load_data
from .errors import UserError
from .model import ModelConfig, build


def load_run(
    folder: Path,
    device: torch.device,
    needs_samples: bool = True,
) -> tuple[Namespace, torch.nn.Module, Any, Any]:
    """Return a run's options, its network with the best weights, its validation set, and the spec.

    The options are those of `data` and of `model`. Without `needs_samples`, the validation set is
    empty, and the data need not be there.
    """
    best = folder / "checkpoints/best.ckpt"
    try:
        saved = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        checkpoint = torch.load(best, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        missing = f"it has no {error.filename}"
        raise UserError(f"{folder} is not the folder of a run: {missing}") from None
    parser = ArgumentParser(exit_on_error=False)
    options = {}
    sections: dict[str, Any] = {"data": data.DataConfig, "model": ModelConfig}
    for section, kind in sections.items():
        parser.add_class_arguments(kind, section)
        names = [field.name for field in fields(kind)]
        options[section] = {name: saved[section][name] for name in names if name in saved[section]}
    cfg = parser.instantiate(parser.parse_object(options))

    saved_spec = checkpoint["Data"]["spec"]
    _, val_set, spec = load_data(data, cfg.data, saved_spec, needs_samples)
    net: torch.nn.Module = build(cfg.model, spec)
    module = torch.nn.ModuleDict(
        {
            "net": net,
            "prepare": data.Prepare(spec, cfg.data),
        }
    )
    module.load_state_dict(checkpoint["state_dict"])
    return cfg, net.to(device), val_set, spec
