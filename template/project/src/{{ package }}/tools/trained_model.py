"""Opens a trained model: a checkpoint, with everything needed to run the model on new inputs."""

import argparse
import pickle  # only for its error
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import checkpoint, data, model, speed, techniques
from ..config import Config, SpeedConfig, from_dict
from ..contracts import can_predict
from ..data import Prepare, Spec
from ..errors import UserError, short_warnings
from ..readers.common import lists_to_tuples
from ..resume import same_structure
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

    A file `*.ckpt`, which Lightning writes, is opened as well; the tools write into a folder of its name.

    Raises:
        UserError: there is no valid checkpoint, or it belongs to another model.
    """
    if path.suffix == ".ckpt":
        found, manifest, state = _read_lightning(path)
    else:
        folder = checkpoint.find(path)
        if folder is None:
            raise UserError(f"{path} contains no valid checkpoint: give the folder of a run, or of a checkpoint")
        with same_structure(folder):
            found, manifest, state = folder, checkpoint.read_manifest(folder), checkpoint.read_state(folder)
    with same_structure(found):
        cfg = from_dict(manifest["config"])
    # Only these options of the run matter here, whatever its device and number of ranks were.
    plain = replace(SpeedConfig(channels_last=cfg.speed.channels_last), precision=precision or cfg.speed.precision)
    chosen_precision = speed.setup(replace(cfg, speed=plain), device)
    try:
        spec = Spec(**{key: lists_to_tuples(value) for key, value in manifest["fixed"]["data"].items()})
    except (KeyError, TypeError) as error:
        raise UserError(f"{found} belongs to another data.py ({error}): restore that file, or train again") from error
    net: nn.Module = speed.place(model.build(cfg.model, spec), plain, device)
    with same_structure(found):
        weights = techniques.plain_weights({**state["model"], **state.get("ema", {})}, cfg)
        checkpoint.load_weights(net, weights, found)
    return TrainedModel(found, cfg, spec, net.eval(), data.Prepare(spec, cfg.data).to(device), chosen_precision, device)


def _read_lightning(file: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return the folder for results, the manifest and the state of a checkpoint that Lightning has written."""
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
        described, weights = loaded["hyper_parameters"], loaded["state_dict"]
        manifest = {"config": described["config"], "fixed": {"data": described["spec"]}}
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except (RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{file} is not a checkpoint that this project wrote with Lightning") from error
    with suppress(OSError):
        file.with_suffix("").mkdir(exist_ok=True)
    state = {"model": {name.removeprefix("model."): value for name, value in weights.items()}}
    return file.with_suffix(""), manifest, state | {"ema": loaded.get("run", {}).get("ema", {})}


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
    short_warnings()
    options = argparse.ArgumentParser(prog=f"python -m {__package__}.{tool}", description=description)
    options.add_argument("path", type=Path, help="folder of a run or of one checkpoint, or a .ckpt file of Lightning")
    options.add_argument(
        "--device", default="auto", choices=["auto", "cpu", "cuda", "mps", "xpu"], help="device to run on"
    )
    formats = ["auto", "bf16", "fp16", "tf32", "fp32", "fp8"]
    options.add_argument("--precision", choices=formats, help="precision, instead of that of the run")
    return options
