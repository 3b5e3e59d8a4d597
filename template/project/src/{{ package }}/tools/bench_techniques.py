"""The techniques that `bench` switches off and on, and whether this project and this machine can use them.

Add a row to TECHNIQUES for one of yours: an option with its value without and with it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from .. import speed, techniques
from ..config import as_dict, from_dict
from ..contracts import blocks_of
from ..distributed import World, has_streams
from ..loaders import Plan
from ..model import build
from .bench_run import PerSample, is_convolution, unbiased


@dataclass(frozen=True)
class Technique:
    """What a run has without a technique, and with it."""

    name: str
    page: str
    """Its page in fastproj's documentation, under techniques/."""
    off: Mapping[str, str] = field(default_factory=dict)
    """Options of a run without it."""
    on: Mapping[str, str] = field(default_factory=dict)
    """Options of a run with it, unless the config has others."""
    needs: Sequence[str] = ()
    """Names of what `lacking` looks at."""
    change: str = ""
    """What `bench_run` changes for a run without it, as no option does."""


def switch(name: str, page: str, option: str, off: str, on: str, *needs: str) -> Technique:
    """Return a technique of one option."""
    return Technique(name, page, {option: off}, {option: on}, needs)


LOG_EVERY = "log.every"
TECHNIQUES = (
    switch("precision", "mixed-precision", "speed.precision", "fp32", "auto"),
    switch("compile", "compile", "speed.compile", "off", "model"),
    switch("channels_last", "channels-last", "speed.channels_last", "false", "true", "convolutions"),
    switch("cudnn_benchmark", "cudnn-autotuner", "speed.cudnn_benchmark", "false", "true", "cuda", "convolutions"),
    switch("step_graph", "cuda-graphs", "speed.step_graph", "false", "true", "cuda"),
    switch("workers", "loader-workers", "loader.workers", "0", "1"),
    switch("pin_memory", "pinned-memory", "loader.pin_memory", "false", "true", "streams"),
    switch("side_stream", "pinned-memory", "loader.side_stream", "false", "true", "streams"),
    switch("cache", "pinned-memory", "data.cache", "none", "device"),
    Technique("whole_batches", "loader-workers", needs=["whole batches"], change="per_sample"),
    switch("log_every", "synchronization", LOG_EVERY, "1", "10"),
    switch("fused", "optimizers", "optim.fused", "false", "true"),
    switch("set_to_none", "gradients-to-none", "optim.set_to_none", "false", "true"),
    Technique("no_bias", "no-bias-before-batchnorm", needs=["BatchNorm"], change="bias"),
    switch("checkpointing", "activation-checkpointing", "speed.activation_checkpointing", "none", "blocks", "blocks"),
    switch("static_graph", "distributed", "dist.static_graph", "false", "true", "ranks"),
    switch("bf16_gradients", "distributed", "dist.bf16_gradients", "false", "true", "ranks"),
)
"""In this order in the tables."""


class Facts:
    """What is known of a run: its options, and what decides whether a technique can be used.

    Raises:
        UserError: the data cannot be loaded, or the model cannot be built.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        """`values` are the options of a run, as in its config.json."""
        cfg = from_dict(values)
        self.options = {
            f"{section}.{key}": _text(value) for section, keys in as_dict(cfg).items() for key, value in keys.items()
        }
        found = torch.accelerator.current_accelerator(check_available=True)
        self.device = found if found is not None and cfg.run.device != "cpu" else torch.device("cpu")
        self.ranks = techniques.processes_to_start(cfg.run)
        loaded = techniques.load(cfg.data)
        self.global_batch = Plan.make(cfg.train, len(loaded.train), self.ranks).global_batch
        model = _model(cfg.model, loaded.spec)
        parts = list(model.modules())
        normalized = any(isinstance(it, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for it in parts)
        self.has = {
            "cuda": self.device.type == "cuda",
            "streams": has_streams(self.device),
            "ranks": self.ranks > 1,
            "convolutions": any(map(is_convolution, parts)),
            "BatchNorm": normalized and bool(unbiased(model)),
            "blocks": len(blocks_of(model)) > 0,
            "whole batches": _collates(loaded.train),
        }
        if cfg.speed.precision == "auto":
            self.options["speed.precision"] = speed.best_format(self.device)
        if cfg.loader.workers == "auto":
            world = World(0, self.ranks, self.device)
            workers = techniques.worker_count(cfg.loader, loaded, world)
            self.options["loader.workers"] = "auto" if workers else "0"  # each rank counts its own
        if cfg.speed.channels_last == "auto":
            self.options["speed.channels_last"] = str(self.device.type == "cuda").lower()

    def lacking(self, technique: Technique) -> str:
        """Return why a technique cannot be used here; empty if it can."""
        unknown = [key for key in technique.off if key not in self.options]
        if unknown:
            return f"the project has no option {unknown[0]}"
        if technique.name == "precision" and speed.best_format(self.device) == "fp32":
            return f"this device ({self.device.type}) computes in no smaller format than fp32"
        return next((LACKING[need] for need in technique.needs if not self.has[need]), "")

    def uses(self, technique: Technique) -> bool:
        """Whether the config has a technique on."""
        own = {key: self.options[key] for key in technique.off if key != LOG_EVERY}  # a trial sets that itself
        return not own or own != dict(technique.off)

    def switched_on(self, technique: Technique) -> dict[str, str]:
        """Return the options with which the config uses a technique, or else those of the table."""
        own = {key: self.options[key] for key in technique.off if key != LOG_EVERY}
        return own if own and own != dict(technique.off) else dict(technique.on)


LACKING = {
    "cuda": "it needs a CUDA device",
    "streams": "it needs a GPU, and not one of Apple's",
    "ranks": "it needs several ranks, such as --run.processes 2",
    "convolutions": "the model has no convolutions",
    "BatchNorm": "the model has no convolutions without a bias before BatchNorm",
    "blocks": "the model has no blocks",
    "whole batches": "the samples of the training set do not come as whole batches, or have different shapes",
}


def _text(value: Any) -> str:
    """Return a value of config.json as an option has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _model(cfg: Any, spec: Any) -> nn.Module:
    """Build the model without memory for its weights, where it can."""
    try:
        with torch.device("meta"):
            built: nn.Module = build(cfg, spec)
    except Exception:  # whatever your model raises
        built = build(cfg, spec)
    return built


def _collates(split: Any) -> bool:
    """Whether a dataset returns whole batches, which single samples could replace."""
    if type(split).__name__ in ("Collated", "Stream") or len(split) < 2:
        return False
    try:
        samples = [PerSample(split)[index] for index in range(2)]
        (getattr(split, "collate_fn", None) or default_collate)(samples)
    except Exception:  # whatever your dataset raises
        return False
    return True
