"""Activation checkpointing, which recomputes activations in backward: `speed.activation_checkpointing`.

Chen et al. 2016 (arXiv:1604.06174). Saves the memory of activations inside blocks for one more forward pass; `ops`
recomputes only what is cheap there, such as activation functions, norms and dropout.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from ..config import SpeedConfig
from ..contracts import blocks_of
from ..errors import UserError

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Its FLOPs are not in torch's list."""


def apply(model: nn.Module, cfg: SpeedConfig) -> None:
    """Apply activation checkpointing to the selected blocks, in place; parameter names stay the same.

    Raises:
        UserError: the model has no blocks; or a memory budget is given without torch.compile, or `ops` with it.
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
    if kind == "ops" and cfg.compile != "off":
        cfg.refuse("activation_checkpointing", "the compiler chooses the operations itself; use budget:0.5")
    make = _save_expensive if kind == "ops" else _forward_and_recompute
    for block in list(blocks)[:: int(number or 1)]:
        contexts = partial(make, [part for part in block.modules() if isinstance(part, _BatchNorm)])
        # Compiled code updates BatchNorm's statistics only once anyway.
        settings: dict[str, Any] = {} if cfg.compile != "off" else {"context_fn": contexts}
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **settings)


def _forward_and_recompute(
    norms: list[_BatchNorm],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the forward pass and of its recomputation."""
    return nullcontext(), _frozen_statistics(norms)


def _save_expensive(
    norms: list[_BatchNorm],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the same, with the results of expensive operations saved in the first and used in the second."""
    save, use = create_selective_checkpoint_contexts(_policy)
    return save, _with_saved(use, norms)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Save what is expensive, but not attention with dropout: left out, it would shift all later random numbers."""
    packet = getattr(operation, "overloadpacket", operation)
    if packet not in flop_registry and packet is not CPU_ATTENTION:
        return CheckpointPolicy.PREFER_RECOMPUTE
    schema = getattr(operation, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema else []
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return CheckpointPolicy.PREFER_RECOMPUTE if given.get("dropout_p") else CheckpointPolicy.MUST_SAVE


@contextmanager
def _with_saved(use: AbstractContextManager[Any], norms: list[_BatchNorm]) -> Iterator[None]:
    """Recompute with what was saved.

    Raises:
        UserError: an operation in place has changed it.
    """
    try:
        with _frozen_statistics(norms), use:
            yield
    except RuntimeError as error:
        if "has been mutated" not in str(error):
            raise
        raise UserError(
            "speed.activation_checkpointing=ops: an operation in place, such as ReLU(inplace=True), changes the result "
            "of a matrix product or convolution that was saved; use inplace=False there, or blocks"
        ) from error


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
