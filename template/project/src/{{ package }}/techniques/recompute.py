"""Activations computed again in backward instead of kept: `speed.activation_checkpointing`.

Chen et al. 2016 (arXiv:1604.06174). One more forward pass for the memory of the blocks' insides.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..config import SpeedConfig
from .blocks import blocks_of


def apply(model: nn.Module, cfg: SpeedConfig) -> None:
    """Let the chosen blocks forget their activations; weights keep their names.

    Raises:
        UserError: the model has no blocks; or a budget was given without the compiler, which spends it.
    """
    kind, _, number = cfg.activation_checkpointing.partition(":")
    if kind == "budget":
        if cfg.compile == "off":
            cfg.refuse("activation_checkpointing", "the compiler spends a budget; set speed.compile, or use blocks")
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = float(number)
        return
    blocks = blocks_of(model)
    if not blocks:
        cfg.refuse("activation_checkpointing", "this model names no `blocks`; use none")
    for block in list(blocks)[:: int(number or 1)]:
        contexts = partial(_contexts, [part for part in block.modules() if isinstance(part, _BatchNorm)])
        # Compiled code updates statistics once by itself.
        settings: dict[str, Any] = {} if cfg.compile != "off" else {"context_fn": contexts}
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **settings)


def _contexts(norms: list[_BatchNorm]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the first and of the second forward pass."""
    return nullcontext(), _still(norms)


@contextmanager
def _still(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let BatchNorm leave its running statistics as the first pass left them."""
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
