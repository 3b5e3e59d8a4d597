"""Compile each block separately: `speed.compile=blocks`. Equal blocks share compiled code, so start-up is short."""

import torch
from torch import nn

from ..config import SpeedConfig
from ..contracts import blocks_of


def apply(model: nn.Module, cfg: SpeedConfig) -> None:
    """Compile the blocks in place; parameter names stay the same.

    Raises:
        UserError: the model has none.
    """
    blocks = blocks_of(model)
    if not blocks:
        cfg.refuse("compile", "this model has no `blocks`; use model")
    # One compilation per kind of block, in training, in validation, and for the last validation batch.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(blocks))
    for block in blocks:
        block.compile(dynamic=False, mode=cfg.compile_mode)
