"""Activation checkpointing, which recomputes activations in backward: `speed.activation_checkpointing`.

Chen et al. 2016 (arXiv:1604.06174). Saves the memory of activations inside blocks for one more forward pass.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..config import SpeedConfig
from ..contracts import blocks_of


def apply(model: nn.Module, cfg: SpeedConfig) -> None:
    """Apply activation checkpointing to the selected blocks, in place; parameter names stay the same.

    Raises:
        UserError: the model has no blocks; or a memory budget is given without torch.compile.
    """
    kind, _, number = cfg.activation_checkpointing.partition(":")
    if kind == "budget":
        if cfg.compile == "off":
            cfg.refuse(
                "activation_checkpointing", "a memory budget needs torch.compile; set speed.compile, or use blocks"
            )
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = float(number)
        return
    blocks = blocks_of(model)
    if not blocks:
        cfg.refuse("activation_checkpointing", "this model has no `blocks`; use none")
    for block in list(blocks)[:: int(number or 1)]:
        contexts = partial(_forward_and_recompute, [part for part in block.modules() if isinstance(part, _BatchNorm)])
        # Compiled code updates BatchNorm's statistics only once anyway.
        settings: dict[str, Any] = {} if cfg.compile != "off" else {"context_fn": contexts}
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **settings)


def _forward_and_recompute(
    norms: list[_BatchNorm],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation."""
    return nullcontext(), _frozen_statistics(norms)


@contextmanager
def _frozen_statistics(norms: list[_BatchNorm]) -> Iterator[None]:
    """Keep BatchNorm from updating its running statistics a second time."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.training and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.sub_(1)
