"""Networks that fail at certain micro-batches, in this process or in the ranks of `train_in_turn.py`."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..contracts import Batch
from ..techniques import _model


def micro_batch(step: int, index: int = 0, seed: int = 0) -> int:
    """Return what identifies a micro-batch, the `index`-th over all ranks of a step counted from 1: its random seed."""
    return ((seed * 1_000_003 + step - 1) * 65_537 + index) % 2**63


class Fails(torch.autograd.Function):
    """Runs out of memory in backward, as the CPU's allocator reports it."""

    @staticmethod
    def forward(context: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(context: Any, *grads: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")


class Faulty:
    """What fails in training. The network has no dropout, and BatchNorm with constant statistics."""

    def __init__(self) -> None:
        self.factors: dict[int, float] = {}
        """What the loss of a micro-batch is multiplied by; NaN is in all buffers as well, then."""
        self.most: dict[int, int] = {}
        """By a micro-batch: how many samples fit into memory from there on."""
        self.in_backward = False
        self.limit = 10**9
        self.sizes: list[int] = []
        self.error: RuntimeError | None = None
        """Raised in each forward pass."""
        self.failed: list[weakref.ref[Tensor]] = []
        """The losses of passes that failed."""

    def build(self, original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        """Return what builds the network."""

        def build(*arguments: Any) -> nn.Module:
            net = original(*arguments)
            for module in net.modules():
                if isinstance(module, nn.Dropout | nn.LSTM):
                    module.p = module.dropout = 0.0
                if isinstance(module, _BatchNorm):
                    module.momentum = 0.0
                    module.register_forward_pre_hook(lambda norm, _: norm.train(False) and None)
            net.register_forward_hook(self.fail)
            return net

        return build

    def fail(self, net: nn.Module, inputs: Batch, outputs: Any) -> Any:
        """Change the outputs of a forward pass, or raise an error."""
        if not net.training:
            return None
        assert not any(loss() is not None for loss in self.failed), "tensors of a failed step are alive"
        loss, metrics = outputs
        key = torch.initial_seed()
        self.limit = self.most.get(key, self.limit)
        self.sizes.append(len(inputs[0]))
        if self.error is not None:
            raise self.error
        if len(inputs[0]) > self.limit:
            self.failed.append(weakref.ref(loss))
            if not self.in_backward:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return Fails.apply(loss), metrics  # type: ignore[no-untyped-call]
        factor = self.factors.get(key, 1.0)
        if factor != factor:
            for buffer in net.buffers():
                if buffer.is_floating_point():
                    buffer.data.fill_(factor)  # unnoticed by autograd
        total, count = metrics["loss"]
        return loss * factor, {**metrics, "loss": (total * factor, count)}


def install(faulty: Faulty, set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let runs have the faulty network."""
    module: Any = _model
    set_attribute(module, "build", faulty.build(module.build))
