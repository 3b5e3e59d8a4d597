"""A trained model, opened for use: its newest or a certain checkpoint, with what it needs to take in new samples."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint, data, model, speed
from ..config import Config, SpeedConfig, from_dict
from ..data import Prepare, Spec
from ..errors import UserError
from ..readers.common import frozen
from ..speed import Precision


@dataclass(frozen=True)
class Trained:
    """A model on its device, in evaluation mode, and what it was made from."""

    checkpoint: Path
    cfg: Config
    spec: Spec
    """Of the data that it was trained on, which need not be here any more."""
    net: Any
    prepare: Prepare
    precision: Precision
    device: torch.device


def open_trained(path: Path, device: torch.device, precision: Any = None) -> Trained:
    """Open a run's folder or one checkpoint, with the averaged weights where the run kept some.

    Raises:
        UserError: there is no good checkpoint, or it is of another model.
    """
    found = checkpoint.find(path)
    if found is None:
        raise UserError(f"{path} has no good checkpoint: give a run's folder, or a checkpoint's")
    manifest = checkpoint.read_manifest(found)
    cfg = from_dict(manifest["config"])
    # On any number of ranks and any device, whatever the run had; what comes out does not depend on the rest.
    plain = replace(SpeedConfig(channels_last=cfg.speed.channels_last), precision=precision or cfg.speed.precision)
    number_format = speed.setup(replace(cfg, speed=plain), device)
    try:
        spec = Spec(**{key: frozen(value) for key, value in manifest["fixed"]["data"].items()})
    except (KeyError, TypeError) as error:
        raise UserError(f"{found} is of another data.py ({error}): restore that file, or train anew") from error
    net: nn.Module = speed.place(model.build(cfg.model, spec), plain, device)
    state = checkpoint.read_state(found, torch.device("cpu"))
    checkpoint.load_weights(net, {**state["model"], **state.get("ema", {})}, found)
    return Trained(found, cfg, spec, net.eval(), data.Prepare(spec, cfg.data).to(device), number_format, device)


def for_use(trained: Trained) -> Trained:
    """Make sure that the model can be used on new inputs.

    Raises:
        UserError: it has no `predict`.
    """
    if not hasattr(trained.net, "predict"):
        raise UserError("the model has no `predict`, which new inputs are given to: add it to model.py")
    return trained


def parser(tool: str, description: str) -> argparse.ArgumentParser:
    """The options that all tools on a trained model have."""
    found = argparse.ArgumentParser(prog=f"python -m {__package__}.{tool}", description=description)
    found.add_argument("path", type=Path, help="a run's folder, or one checkpoint")
    found.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    formats = ["auto", "bf16", "fp16", "tf32", "fp32", "fp8"]
    found.add_argument("--precision", choices=formats, help="instead of the run's, on a device that lacks it")
    return found
