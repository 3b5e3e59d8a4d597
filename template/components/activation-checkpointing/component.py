"""Activation checkpointing: less memory, as the backward pass recomputes activations."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)
from torch.utils.flop_counter import flop_registry

from ..component import Component
from ..config import BaseConfig
from ..config_base import Section, within
from ..contracts import blocks
from ..distributed import World
from ..errors import UserError

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""Of the forward pass and of the recomputation."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class ActivationCheckpointingConfig(Section):
    """Activation checkpointing: Chen et al. 2016 (arXiv:1604.06174)."""

    enabled: bool = False
    """Keep only the inputs of the model's `blocks`, and recompute their activations in the backward
    pass."""
    mode: Literal["blocks", "ops", "budget"] = "blocks"
    """blocks: recompute whole blocks; ops: keep the results of matrix products, convolutions and
    attention, but recompute blocks with an LSTM or GRU; budget: torch's compiler chooses what to
    keep."""
    every: int = within("[1, inf)", 1)
    """blocks, ops: checkpoint every n-th block, starting with the first; 1 for all blocks."""
    budget: float = within("[0, 1]", 0.5)
    """budget: share of the activation memory to use; 0: as little as possible, 1: the compiler's
    default."""


class ActivationCheckpointing(Component):
    """Checkpoints the model's `blocks`. The names of parameters stay the same."""

    name = "activation_checkpointing"

    def __init__(self, cfg: ActivationCheckpointingConfig, world: World) -> None:
        self.cfg = cfg

    def check(self, cfg: BaseConfig, enabled: Collection[str]) -> None:
        if self.cfg.mode != "budget":
            return
        if cfg.speed.compile == "off" and "regional_compile" not in enabled:
            needed = "the compiler implements it: set speed.compile=model, or use ops"
            self.cfg.refuse("mode", needed)
        if not hasattr(torch.autograd.graph, "region_activation_memory_budget"):
            version = f"torch {torch.__version__} cannot do it"
            self.cfg.refuse("mode", f"{version}: install torch 2.13 or newer, or use ops")

    def convert_model(self, model: nn.Module) -> nn.Module:
        layers = blocks(model)
        if self.cfg.mode == "budget":
            for module in (model, *layers):  # whichever of them is compiled
                module.forward = partial(_within_budget, module.forward, self.cfg.budget)
            return model
        if not layers:
            missing = f"{type(model).__name__} has no `blocks`"
            repeated = "put its repeated layers into self.blocks = nn.ModuleList(...) in model.py"
            raise UserError(f"activation_checkpointing.enabled is true, but {missing}: {repeated}")
        for block in layers[:: self.cfg.every]:
            # writes into products
            recurrent = any(isinstance(module, nn.RNNBase) for module in block.modules())
            ops = self.cfg.mode == "ops" and not recurrent
            block.forward = partial(_checkpointed, block, block.forward, ops)
        return model


def _within_budget(
    forward: Callable[..., Any],
    budget: float,
    *args: Any,
    **named: Any,
) -> Any:
    if not torch.compiler.is_compiling():
        return forward(*args, **named)
    with torch.autograd.graph.region_activation_memory_budget(budget):
        return forward(*args, **named)


def _checkpointed(
    block: nn.Module,
    forward: Callable[..., Any],
    ops: bool,
    *args: Any,
    **named: Any,
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **named)
    if ops:
        named["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    if not torch.compiler.is_compiling():
        # compiled code updates BatchNorm's statistics once anyway
        contexts = named.get("context_fn", noop_context_fn)
        named["context_fn"] = partial(_with_frozen_statistics, block, contexts)
    return checkpoint(forward, *args, use_reentrant=False, **named)


def _policy(_: Any, operation: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    """Keep the operations whose FLOPs torch counts, but not those that draw random numbers."""
    if getattr(operation, "overloadpacket", operation) not in flop_registry:
        return CheckpointPolicy.PREFER_RECOMPUTE
    schema = getattr(operation, "_schema", None)  # no public attribute has the arguments' names
    names = [argument.name for argument in schema.arguments] if schema else []
    given = dict(zip(names, args, strict=False)) | named
    if given.get("dropout_p"):  # left out of the recomputation, it would shift random numbers
        return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def _with_frozen_statistics(block: nn.Module, contexts: Callable[[], Contexts]) -> Contexts:
    forward, recomputation = contexts()
    return forward, _frozen_statistics(block, recomputation)


@contextmanager
def _frozen_statistics(
    block: nn.Module, recomputation: AbstractContextManager[Any]
) -> Iterator[None]:
    """Recompute without updating BatchNorm's running statistics a second time."""
    momenta = {}
    for module in block.modules():
        if isinstance(module, NORMS) and module.training:
            momenta[module] = module.momentum
            module.momentum = 0.0
    try:
        with recomputation:
            yield
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.sub_(1)
