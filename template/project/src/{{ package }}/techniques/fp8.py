"""Matrix products in 8-bit floats with torchao: `speed.precision=fp8`.

Micikevicius et al. 2022 (arXiv:2209.05433). Weights stay in fp32, the rest of the forward pass runs in bf16.
"""

from torch import nn

from ..errors import UserError
from .blocks import blocks_of


def convert(model: nn.Module, emulate: bool = False) -> None:
    """Let the linear layers of `blocks` whose sizes are multiples of 16 multiply in fp8; weights keep their names.

    `emulate` computes what the hardware would, in ordinary floats, for tests.

    Raises:
        UserError: torchao is not installed, or no layer is fit.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise UserError("speed.precision=fp8 needs a package: pip install torchao, or use bf16") from error
    blocks = blocks_of(model)
    if not any(fits(layer, "") for layer in blocks.modules()):
        raise UserError(
            "speed.precision=fp8 has no work: `blocks` has no linear layer with sizes in multiples of 16; use bf16"
        )
    settings = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)  # a batch's tokens may be any number
    convert_to_float8_training(blocks, config=settings, module_filter_fn=fits)


def fits(layer: nn.Module, name: str) -> bool:
    """Whether the hardware takes the layer's sizes."""
    return isinstance(layer, nn.Linear) and layer.in_features % 16 == 0 and layer.out_features % 16 == 0
