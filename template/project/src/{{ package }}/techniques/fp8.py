"""fp8 matrix products with torchao: `speed.precision=fp8`.

Micikevicius et al. 2022 (arXiv:2209.05433). Weights stay in fp32, the rest of the forward pass runs in bf16.
"""

from torch import nn

from ..contracts import blocks_of
from ..errors import UserError


def convert(model: nn.Module, emulate: bool = False) -> None:
    """Convert the linear layers in `blocks` whose sizes are multiples of 16, in place; parameter names stay the same.

    `emulate` is for tests: it computes in fp32 what the hardware would compute.

    Raises:
        UserError: torchao is not installed, or no layer has suitable sizes.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise UserError("speed.precision=fp8 needs a package: pip install torchao, or use bf16") from error
    blocks = blocks_of(model)
    if not any(fits(layer, "") for layer in blocks.modules()):
        raise UserError(
            "speed.precision=fp8 needs linear layers in `blocks` with sizes in multiples of 16, and there "
            "are none: use bf16"
        )
    settings = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)  # for any number of tokens
    convert_to_float8_training(blocks, config=settings, module_filter_fn=fits)


def fits(layer: nn.Module, name: str) -> bool:
    """Whether the hardware supports the layer's sizes."""
    return isinstance(layer, nn.Linear) and layer.in_features % 16 == 0 and layer.out_features % 16 == 0
