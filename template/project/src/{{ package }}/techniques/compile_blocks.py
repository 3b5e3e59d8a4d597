"""Each block compiled by itself: `speed.compile=blocks`. Blocks of one shape share their code, so the wait is short."""

import torch
from torch import nn

from ..config import SpeedConfig
from .blocks import blocks_of


def apply(model: nn.Module, cfg: SpeedConfig) -> None:
    """Compile the blocks in place; weights keep their names.

    Raises:
        UserError: the model names none.
    """
    blocks = blocks_of(model)
    if not blocks:
        cfg.refuse("compile", "this model names no `blocks`; use model")
    # A variant for each kind of block, in training, in validation, and for the last batch there.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks))
    for block in blocks:
        block.compile(dynamic=False, mode=cfg.compile_mode)
