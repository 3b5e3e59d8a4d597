"""torch.compile of each of the model's `blocks`: equal ones share code, so the start is short."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..contracts import blocks
from ..distributed import World
from ..errors import UserError
from ..run import Run


@dataclass(frozen=True)
class RegionalCompileConfig(Section):
    """torch.compile of each block; the mode is `speed.compile_mode`."""

    enabled: bool = False
    """Compile each of the model's `blocks`, instead of the whole model by `speed.compile`."""


class RegionalCompile(Component):
    """Compiles the blocks in place, when the training starts: `evaluate` runs without it.

    Names stay the same.
    """

    name = "regional_compile"

    def __init__(self, cfg: RegionalCompileConfig, world: World) -> None: ...

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        if cfg.speed.compile != "off":
            why = "regional_compile.enabled compiles the blocks already"
            cfg.speed.refuse("compile", f"{why}; set one of them to off")
        if cfg.speed.compile_mode in ("reduce-overhead", "max-autotune"):
            why = "the CUDA graphs of the blocks would share their memory"
            other = "use default or max-autotune-no-cudagraphs"
            cfg.speed.refuse("compile_mode", f"{why}; {other}")

    def convert_model(self, model: nn.Module) -> nn.Module:
        enabled = f"regional_compile.enabled is true, but {type(model).__name__}"
        reason = getattr(model, "no_compile_reason", "")
        if reason:
            raise UserError(f"{enabled} cannot be compiled: {reason}")
        if not blocks(model):
            repeated = "put its repeated layers into self.blocks = nn.ModuleList(...) in model.py"
            raise UserError(f"{enabled} has no `blocks`: {repeated}")
        for layer in blocks(model):
            if type(layer).forward.__module__.startswith("torch."):
                skipped = f"has blocks of {type(layer).__name__}, which torch.compile skips"
                raise UserError(f"{enabled} {skipped}: give them a class with a `forward`")
        return model

    def on_train_start(self, run: Run) -> None:
        # caused by the compiler
        warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        # One kind of block is compiled for training, for validation, and for the last batch of a
        # validation.
        layers = blocks(run.model)
        limit = torch.compiler.config.recompile_limit
        torch.compiler.config.recompile_limit = max(limit, 4 * len(layers))
        for layer in layers:
            layer.compile(dynamic=False, mode=run.cfg.speed.compile_mode)
