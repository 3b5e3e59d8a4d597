"""The config section `trainer`: arguments of Lightning's Trainer, by their names there."""

import inspect
import pickle  # only for its error
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import lightning.pytorch as lightning
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import Precision

from .config import Config
from .errors import UserError
from .framework import listed, nearest


@dataclass(frozen=True)
class LightningConfig(Config):
    """All sections of a run, and the arguments of the Trainer."""

    trainer: dict[str, Any] = field(default_factory=dict)
    """Any argument of Lightning's Trainer that no other option decides, such as `profiler: simple`,
    `limit_val_batches: 10` or `enable_progress_bar: true`; and `ckpt_path` of `fit`, a checkpoint of Lightning to
    continue from. Callbacks and other objects are set in extras.py."""


DECIDED = {
    "accelerator": "run.device",
    "strategy": "dist.strategy",
    "devices": "run.processes",
    "num_nodes": "torchrun's --nnodes",
    "precision": "speed.precision",
    "fast_dev_run": "train.steps, as in configs/smoke.yaml",
    "max_epochs": "train.epochs",
    "min_epochs": "train.epochs",
    "max_steps": "train.steps",
    "min_steps": "train.steps",
    "limit_train_batches": "train.steps and train.eval_every",
    "overfit_batches": "train.steps",
    "val_check_interval": "train.eval_every",
    "check_val_every_n_epoch": "train.eval_every",
    "log_every_n_steps": "log.every",
    "accumulate_grad_batches": "train.accumulate",
    "gradient_clip_val": "optim.clip",
    "gradient_clip_algorithm": "optim.clip, or optim.clip_value",
    "deterministic": "debug.deterministic",
    "benchmark": "speed.cudnn_benchmark",
    "use_distributed_sampler": "run.seed, as the sample order is the run's",
    "detect_anomaly": "debug.anomaly",
    "barebones": "log.every and checkpoint.every, as the Trainer has nothing else on",
    "sync_batchnorm": "dist.sync_batchnorm",
    "reload_dataloaders_every_n_epochs": "run.seed, as the sample order is the run's",
}
"""The Trainer's arguments that follow from the config, and the options to use instead."""

REFUSED_CALLBACKS = {
    "StochasticWeightAveraging": "it sets the learning rate, as optim.schedule does; use train.ema, or WeightAveraging",
    "GradientAccumulationScheduler": "it changes the global batch; use train.accumulate",
}
"""Callbacks that would change what the config decides, and what to use instead."""

NEED_WHOLE_WEIGHTS = {
    "ModelCheckpoint": "with dist.strategy=fsdp, only the run's own checkpoints can hold sharded weights",
    "WeightAveraging": "with dist.strategy=fsdp, use train.ema",
}
"""Callbacks that FSDP2 has no place for."""


def trainer_options(cfg: Config) -> dict[str, Any]:
    """Return the arguments of the Trainer among the options.

    Raises:
        UserError: one is unknown, is decided by the config, or has a value that the Trainer does not take.
    """
    found = dict(cfg.trainer) if isinstance(cfg, LightningConfig) else {}
    found.pop("ckpt_path", None)
    check_arguments(found)
    hints = get_type_hints(inspect.unwrap(lightning.Trainer.__init__)) if found else {}
    for name, value in found.items():
        if name in ("callbacks", "plugins"):
            raise UserError(f"trainer.{name} is {value}: set it in extras.py, as it takes objects")
        kinds = {get_origin(kind) or kind for kind in get_args(hints[name]) or (hints[name],)}
        if type(value) not in (kinds | {int} if float in kinds else kinds):
            plain = " or ".join(kind.__name__ for kind in (bool, int, float, str, dict) if kind in kinds)
            raise UserError(f"trainer.{name} is {value}: it must be {plain}; set objects in extras.py")
    return found


def checkpoint_to_load(cfg: Config) -> Path | None:
    """Return `trainer.ckpt_path`, the checkpoint of Lightning to continue from.

    Raises:
        UserError: it cannot be read.
    """
    path = cfg.trainer.get("ckpt_path") if isinstance(cfg, LightningConfig) else None
    if path is None:
        return None
    try:
        loaded = torch.load(str(path), map_location="cpu", mmap=True, weights_only=True)
    except OSError as error:
        raise UserError(f"trainer.ckpt_path is {path}: {error.strerror or error}") from error
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"trainer.ckpt_path is {path}: this is not a checkpoint of Lightning") from error
    if not isinstance(loaded, dict) or not {"run", "optimizer_states"} <= loaded.keys():
        raise UserError(f"trainer.ckpt_path is {path}: it has no state of a run, or only weights")
    return Path(path)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of the Trainer that are unknown, or that the config decides.

    Raises:
        UserError: says what to use instead.
    """
    known = inspect.signature(lightning.Trainer).parameters
    for name, value in arguments.items():
        if name in DECIDED:
            raise UserError(f"trainer.{name} is {value}: the config decides it; use {DECIDED[name]}")
        if name not in known:
            near = nearest(name, known)
            raise UserError(f"trainer.{name} is {value}: Lightning's Trainer has no such argument{near}")


def check_extras(returned: object) -> dict[str, Any]:
    """Return what `extras` in extras.py returned, unless it has objects of a wrong type, or changes the precision.

    Raises:
        UserError: says what to use instead.
    """
    if not isinstance(returned, dict):
        raise UserError(f"extras.py: extras returns {returned!r}: return a dict of arguments")
    for plugin in listed(returned.get("plugins")):
        if isinstance(plugin, Precision):
            raise UserError(f"extras.py sets the plugin {type(plugin).__name__}: use speed.precision")
    for name, kind in (("callbacks", lightning.Callback), ("logger", Logger)):
        for given in listed(returned.get(name)):
            if not isinstance(given, kind) and not (name == "logger" and isinstance(given, bool)):
                raise UserError(f"extras.py: {name} has {given!r}, which is no {kind.__name__} of Lightning")
    return returned


def check_trainer(trainer: Any, cfg: Config, accumulate: int) -> None:
    """Refuse a Trainer that differs from the config in what would be ignored, or change the losses.

    Raises:
        UserError: says what to use instead.
    """
    if trainer.gradient_clip_val is not None:
        raise UserError(f"trainer.gradient_clip_val is {trainer.gradient_clip_val}: use optim.clip")
    if trainer.accumulate_grad_batches != accumulate:
        raise UserError(f"trainer.accumulate_grad_batches is {trainer.accumulate_grad_batches}: use train.accumulate")
    refused = REFUSED_CALLBACKS | (NEED_WHOLE_WEIGHTS if cfg.dist.strategy == "fsdp" else {})
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in refused and kind.__module__.startswith("lightning."):
                raise UserError(f"the callback {kind.__name__} is not supported: {refused[kind.__name__]}")
