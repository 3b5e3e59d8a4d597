"""The whole training step as two CUDA graphs: a replay launches all kernels at once, without Python's overhead.

One graph is the forward and backward pass of a micro-batch, the other clips, updates and resets the
gradients.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import precision
from ..component import Component, ForwardBackward, OptimizerStep
from ..config_base import Section
from ..distributed import World
from ..errors import UserError
from ..loader import map_tensors
from ..log import Run
from ..metrics import Metrics

EXCLUDED = ("activation_checkpointing", "debug", "fp8", "nonfinite", "oom")
"""Components that read values or the state of random numbers on the host in each step, or were not tried."""
WARMUP = 3
"""Steps before the capture, in which libraries choose kernels and allocate memory."""


@dataclass(frozen=True)
class CudaGraphsConfig(Section):
    """CUDA graphs of the whole training step, for models with short kernels."""

    enabled: bool = False
    """Capture the first step, and replay it; one GPU, fused AdamW, and batches of one shape."""


class CudaGraphs(Component):
    """Refuses what cannot be captured, and replays the captured step."""

    name = "cuda_graphs"

    def __init__(self, cfg: CudaGraphsConfig, world: World) -> None:
        self.world = world

    def on_train_start(self, run: Run) -> None:
        speed, optimizer = run.cfg.speed, run.optimizer
        enabled = [
            name for name in EXCLUDED if getattr(getattr(run.cfg, name, None), "enabled", False)
        ]
        fp16 = "fp16" in (speed.precision, precision.best(self.world.device))
        fused = (
            isinstance(optimizer, torch.optim.AdamW)
            and run.cfg.optim.fused
            and not run.cfg.optim.amsgrad
        )
        conflicts = {
            "needs a CUDA device: set it to false": self.world.device.type != "cuda",
            "works in one process: set it to false": self.world.size > 1,
            f"and {' and '.join(enabled[:1])}.enabled exclude each other: set one of them to false": bool(
                enabled
            ),
            "needs speed.precision=bf16, tf32 or fp32: fp16 waits for the host": fp16
            and speed.precision != "fp32",
            "needs AdamW with optim.fused=true and optim.amsgrad=false": not fused,
            "needs speed.compile_mode=default: this one has CUDA graphs of its own": speed.has_cuda_graphs,
        }
        for message, found in conflicts.items():
            if found:
                raise UserError(f"cuda_graphs.enabled {message}")

    def wrap_step(
        self, run: Run, forward_backward: ForwardBackward, step: OptimizerStep
    ) -> tuple[ForwardBackward, OptimizerStep]:
        graphs = StepGraphs(run, forward_backward, step)
        return graphs.forward_backward, graphs.update


class StepGraphs:
    """The graphs, and the tensors that they read and write, which stay in their places."""

    def __init__(self, run: Run, forward_backward: ForwardBackward, step: OptimizerStep) -> None:
        self.run, self.eager, self.step = run, forward_backward, step
        self.batch: Any = None
        self.metrics: Metrics = {}
        self.grad_norm = torch.empty(0)
        optimizer, device = run.optimizer, next(run.model.parameters()).device
        self.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self.momentum = torch.zeros((), device=device)
        adamw, zero_grad = optimizer.step, optimizer.zero_grad
        if run.cfg.optim.cycle_momentum:  # torch's own step creates the optimizer's state
            optimizer.step = lambda: (  # type: ignore[method-assign, assignment]
                adamw_step(optimizer, self.momentum) if optimizer.state else adamw()
            )
        optimizer.zero_grad = lambda set_to_none=False: zero_grad(set_to_none=False)  # type: ignore[method-assign]

    def forward_backward(self, batch: Any, share: float, last: bool) -> Metrics:
        """Replay for a micro-batch; capture with the first one."""
        if self.batch is None:
            self._capture(batch, share)
        static, parts = _tensors(self.batch), _tensors(batch)
        if [part.shape for part in static] != [part.shape for part in parts]:
            shapes = [[tuple(part.shape) for part in some] for some in (static, parts)]
            raise UserError(
                f"cuda_graphs.enabled needs batches of one shape: {shapes[0]} became {shapes[1]}"
            )
        for target, part in zip(static, parts, strict=True):
            target.copy_(part)
        self.first.replay()
        return self.metrics  # which the next replay overwrites

    def update(self) -> Tensor:
        """Replay the update, with the learning rate and momentum that the schedule has set."""
        for rate, group in zip(self.rates, self.run.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
            self.momentum.fill_(group["betas"][0])
        self.second.replay()
        return self.grad_norm

    def _capture(self, batch: Any, share: float) -> None:
        """Warm up on a side stream, restore what that changed, and capture; nothing of it counts as training."""
        self.batch, groups = map_tensors(torch.clone, batch), self.run.optimizer.param_groups
        random = torch.cuda.get_rng_state()
        kept = {value: value.detach().clone() for value in [*self._weights(), *self._moments()]}
        numbers = [group["lr"] for group in groups]
        for group, rate in zip(groups, self.rates, strict=True):
            group.update(capturable=True, lr=rate)  # a learning rate of 0 during the warm-up
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                self.eager(self.batch, share, True)
                self._refuse_unused()
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for value in [*self._weights(), *self._moments()]:
                # AdamW's state starts with zeros
                value.copy_(kept[value]) if value in kept else value.zero_()
        torch.cuda.set_rng_state(random)
        self.first, self.second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        try:  # thread_local: the thread that pins memory continues
            with torch.cuda.graph(self.first, capture_error_mode="thread_local"):
                self.metrics = self.eager(self.batch, share, True)
            with torch.cuda.graph(
                self.second, pool=self.first.pool(), capture_error_mode="thread_local"
            ):
                self.grad_norm = self.step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"cuda_graphs.enabled cannot capture this model ({reason}): set it to false"
            ) from error
        for group, number in zip(groups, numbers, strict=True):
            group["lr"] = number

    def _weights(self) -> list[Tensor]:
        return [*self.run.model.parameters(), *self.run.model.buffers()]

    def _moments(self) -> list[Tensor]:
        return [value for state in self.run.optimizer.state.values() for value in state.values()]

    def _refuse_unused(self) -> None:
        """A weight without a gradient does not change in an eager step, but a captured one would decay it."""
        for name, parameter in self.run.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise UserError(
                    f"cuda_graphs.enabled needs a gradient of each weight, and {name} has none: freeze it"
                )


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, batch)
    return found


@torch.no_grad()
def adamw_step(optimizer: torch.optim.Optimizer, momentum: Tensor) -> None:
    """Update as AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2) with a scalar on the device as beta1.

    torch's fused and foreach steps take beta1 as a number, which a captured graph would keep.
    """
    for group in optimizer.param_groups:
        weights, lr, beta2 = group["params"], group["lr"], group["betas"][1]
        gradients, states = (
            [weight.grad for weight in weights],
            [optimizer.state[weight] for weight in weights],
        )
        means, squares, steps = (
            [state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")
        )
        torch._foreach_add_(steps, 1)
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        torch._foreach_mul_(means, momentum)
        torch._foreach_add_(means, torch._foreach_mul(gradients, 1 - momentum))
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_div_(divisors, (1 - beta2 ** steps[0]).sqrt())
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_div_(divisors, -lr / (1 - momentum ** steps[0]))
        torch._foreach_addcdiv_(weights, means, divisors)
