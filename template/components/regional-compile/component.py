"""torch.compile of each of the model's `blocks`: equal blocks share compiled code, so the start is short."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..contracts import blocks, no_compile_reason
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
        speed = cfg.speed
        if speed.compile != "off":
            speed.refuse(
                "compile",
                "regional_compile.enabled compiles the blocks already; set one of them to off",
            )
        if speed.compile_mode in ("reduce-overhead", "max-autotune"):
            other = "use default or max-autotune-no-cudagraphs"
            speed.refuse(
                "compile_mode", f"the CUDA graphs of the blocks would share their memory; {other}"
            )

    def on_train_start(self, run: Run) -> None:
        layers = _layers(run.model)
        for caused_by_the_compiler in (
            "`torch.jit.script_method` is deprecated",
            "The .grad attribute of a Tensor",
        ):
            warnings.filterwarnings("ignore", caused_by_the_compiler)
        # One kind of block is compiled for training, for validation, and for the last batch of a
        # validation.
        torch.compiler.config.recompile_limit = max(
            torch.compiler.config.recompile_limit, 4 * len(layers)
        )
        for layer in layers:
            layer.compile(dynamic=False, mode=run.cfg.speed.compile_mode)


def _layers(model: nn.Module) -> nn.ModuleList:
    name = type(model).__name__
    reason = no_compile_reason(model)
    if reason:
        raise UserError(
            f"regional_compile.enabled is true, but {name} cannot be compiled: {reason}"
        )
    layers = blocks(model)
    if not layers:
        missing = f"regional_compile.enabled is true, but {name} has no `blocks`"
        raise UserError(
            f"{missing}: put its repeated layers into self.blocks = nn.ModuleList(...) in model.py"
        )
    return layers
