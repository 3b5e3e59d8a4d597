"""fp8 matrix products with torchao, in the linear layers of the model's `blocks`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section
from ..contracts import blocks
from ..distributed import World
from ..errors import UserError


@dataclass(frozen=True)
class Fp8Config(Section):
    """fp8 matrix products: Micikevicius et al. 2022 (arXiv:2209.05433)."""

    is_fixed = True
    enabled: bool = False
    """Compute the linear layers in `blocks` in fp8, the rest in bf16; weights and optimizer state
    stay in fp32."""


class Fp8(Component):
    """Converts the linear layers whose sizes are multiples of 16, which the hardware needs.

    Names stay the same.

    Where a machine has no fp8, `evaluate` computes with the same weights in its own precision.
    """

    name = "fp8"
    emulate: ClassVar[bool] = False
    """For tests: compute without the hardware what it would compute."""

    def __init__(self, cfg: Fp8Config, world: World) -> None:
        self.cfg = cfg
        self.device = world.device

    def convert_model(self, model: nn.Module) -> nn.Module:
        if not self._supported():
            return model
        try:
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        except ImportError as error:
            failed = f"its package fails to load ({error})"
            self.cfg.refuse("enabled", f"{failed}: pip install 'torchao>=0.17'")
        layers = blocks(model)
        if not any(_fits(layer, "") for layer in layers.modules()):
            missing = f"{type(model).__name__} has no linear layers in `blocks`"
            sizes = "whose sizes are multiples of 16"
            raise UserError(f"fp8.enabled is true, but {missing} {sizes}: set it to false")
        # for any number of tokens
        settings = Float8LinearConfig(emulate=self.emulate, pad_inner_dim=True)
        convert_to_float8_training(layers, config=settings, module_filter_fn=_fits)
        return model

    def check(
        self,
        cfg: BaseConfig,
        enabled: Collection[str],
    ) -> None:
        if not self._supported():
            needed = "it needs a GPU with fp8, such as NVIDIA's from Ada (8.9) and Hopper (9.0)"
            raise UserError(f"fp8.enabled is true, but this is the {self.device}, and {needed}")
        if cfg.speed.precision not in ("auto", "bf16"):
            needed = "fp8.enabled needs bf16 for the rest"
            cfg.speed.refuse("precision", f"{needed}: set speed.precision=bf16")

    def _supported(self) -> bool:
        if self.emulate or self.device.type != "cuda":
            return self.emulate
        least = (9, 4) if torch.version.hip else (8, 9)  # MI300, Ada
        return torch.cuda.get_device_capability(self.device) >= least


def _fits(layer: nn.Module, name: str) -> bool:
    return isinstance(layer, nn.Linear) and not any(size % 16 for size in layer.weight.shape)
