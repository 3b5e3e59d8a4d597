"""Opens a trained model: a checkpoint, with everything needed to run the model on new inputs."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint, data, model, speed
from ..config import Config, SpeedConfig, from_dict
from ..contracts import can_predict
from ..data import Prepare, Spec
from ..errors import UserError
from ..readers.common import lists_to_tuples
from ..speed import Precision


@dataclass(frozen=True)
class TrainedModel:
    """A model on its device, in evaluation mode, and what it was built from."""

    checkpoint: Path
    cfg: Config
    spec: Spec
    """Spec of the training data, which need not exist any more."""
    net: Any
    prepare: Prepare
    precision: Precision
    device: torch.device


def open_trained(path: Path, device: torch.device, precision: Any = None) -> TrainedModel:
    """Open the folder of a run or of one checkpoint, with the averaged weights if the run kept some.

    Raises:
        UserError: there is no valid checkpoint, or it belongs to another model.
    """
    found = checkpoint.find(path)
    if found is None:
        raise UserError(f"{path} contains no valid checkpoint: give the folder of a run, or of a checkpoint")
    manifest = checkpoint.read_manifest(found)
    cfg = from_dict(manifest["config"])
    # Only these options of the run matter here, whatever its device and number of ranks were.
    plain = replace(SpeedConfig(channels_last=cfg.speed.channels_last), precision=precision or cfg.speed.precision)
    chosen_precision = speed.setup(replace(cfg, speed=plain), device)
    try:
        spec = Spec(**{key: lists_to_tuples(value) for key, value in manifest["fixed"]["data"].items()})
    except (KeyError, TypeError) as error:
        raise UserError(f"{found} belongs to another data.py ({error}): restore that file, or train again") from error
    net: nn.Module = speed.place(model.build(cfg.model, spec), plain, device)
    state = checkpoint.read_state(found)
    checkpoint.load_weights(net, {**state["model"], **state.get("ema", {})}, found)
    return TrainedModel(found, cfg, spec, net.eval(), data.Prepare(spec, cfg.data).to(device), chosen_precision, device)


def require_predict(trained: TrainedModel) -> TrainedModel:
    """Return the model, after a check that it has `predict`.

    Raises:
        UserError: it has no `predict`.
    """
    if not can_predict(trained.net):
        raise UserError("the model has no `predict` method for new inputs: add one in model.py")
    return trained


def parser(tool: str, description: str) -> argparse.ArgumentParser:
    """An argument parser with the options that all tools for trained models share."""
    options = argparse.ArgumentParser(prog=f"python -m {__package__}.{tool}", description=description)
    options.add_argument("path", type=Path, help="folder of a run, or of one checkpoint")
    options.add_argument(
        "--device", default="auto", choices=["auto", "cpu", "cuda", "mps", "xpu"], help="device to run on"
    )
    formats = ["auto", "bf16", "fp16", "tf32", "fp32", "fp8"]
    options.add_argument("--precision", choices=formats, help="precision, instead of that of the run")
    return options
