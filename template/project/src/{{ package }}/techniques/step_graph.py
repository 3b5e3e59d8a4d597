"""CUDA graph capture of a whole optimizer step: `speed.step_graph`.

One graph is all that is done with a micro-batch: `prepare`, forward, backward, and adding its metrics. The other is
clipping, the update and zeroing the gradients. Replaying a graph launches all its kernels at once, so a small model is
no longer bound by Python's overhead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import optim
from ..config import Config, OptimConfig
from ..contracts import Batch, map_tensors, tensors
from ..distributed import World
from ..errors import UserError
from ..metrics import Meter

ForwardBackward = Callable[[Batch, bool], None]

WARMUP = 3
"""Steps on a side stream before capture, in which libraries choose kernels and allocate."""


def check(cfg: Config, world: World, precision: str) -> None:
    """Refuse options that cannot be captured.

    Raises:
        UserError: names the conflicting option.
    """
    optimizer, compiles = cfg.optim, cfg.speed.compile != "off"
    checkpoints = cfg.speed.activation_checkpointing != "none"
    conflicts = [
        (world.device.type != "cuda", f"it needs CUDA, and this run is on {world.device}; set it to false"),
        (world.world_size > 1, f"it is for one process, and there are {world.world_size}; set it to false"),
        (
            precision in ("fp16", "fp8"),
            f"{precision} synchronizes with the host in every step; use speed.precision=bf16",
        ),
        (
            optimizer.name != "adamw" or not optimizer.fused,
            "it captures fused adamw only; use optim.name=adamw, optim.fused",
        ),
        (checkpoints, "it reads the RNG state on the host; set speed.activation_checkpointing to none"),
        (compiles and cfg.speed.compile_mode != "default", "speed.compile_mode may capture graphs itself; use default"),
        (cfg.debug.anomaly or cfg.debug.nan, "debug.anomaly and debug.nan read values on the host; set them to false"),
    ]
    for conflict, reason in conflicts:
        if conflict:
            cfg.speed.refuse("step_graph", reason)


class StepGraph:
    """The captured graphs and their static tensors.

    Weights, statistics, optimizer state and RNG state are as without: what the warm-up changed is restored.
    """

    def __init__(
        self,
        forward_backward: ForwardBackward,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        cfg: OptimConfig,
        meter: Meter,
    ) -> None:
        self._forward_backward = forward_backward
        self.model, self.optimizer, self.cfg, self.meter = model, optimizer, cfg, meter
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        device = self.parameters[0].device
        for group in optimizer.param_groups:
            group["capturable"] = True
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        self.cycles = cfg.cycle_momentum and cfg.schedule in ("onecycle", "cyclic")
        self.momentum = torch.tensor(cfg.beta1, device=device)
        self.batch: Batch = None
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}
        self.first, self.second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self.grad_norm = torch.zeros(())

    def forward_backward(self, batch: Batch, synchronize: bool) -> None:
        """Replay for a micro-batch of the same shapes as the first, with which the graphs are captured.

        Raises:
            UserError: the shapes differ.
        """
        if self.batch is None:
            self._capture(batch)
        shapes, parts = [part.shape for part in tensors(self.batch)], tensors(batch)
        if [part.shape for part in parts] != shapes:
            raise UserError(
                f"speed.step_graph captured batches of {[tuple(shape) for shape in shapes]}, and this one has "
                f"{[tuple(part.shape) for part in parts]}: set it to false, or use batches of one shape"
            )
        for static, part in zip(tensors(self.batch), parts, strict=True):
            static.copy_(part)
        if self.meter.sums is not self.sums:  # the sums of the last row were read
            self._reset_sums()
        self.first.replay()

    def update(self) -> Tensor:
        """Replay clipping, the update, and zeroing the gradients."""
        self.momentum.fill_(self.optimizer.param_groups[0]["betas"][0])
        self.second.replay()
        return self.grad_norm

    def _update(self) -> Tensor:
        grad_norm = optim.clip(self.parameters, self.cfg.clip, self.cfg.clip_value)
        if self.cycles and self.optimizer.state:  # torch's own step creates the state
            adamw_step(self.optimizer, self.momentum)
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # gradients must stay where the graphs expect them
        return grad_norm

    def _capture(self, batch: Batch) -> None:
        self.batch = map_tensors(torch.clone, batch)
        rng_state = torch.cuda.get_rng_state()
        live = [*self.model.parameters(), *self.model.buffers(), *self._moments()]
        kept = [(value, value.detach().clone()) for value in live]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                self._forward_backward(self.batch, True)
                self._refuse_unused()
                self._update()
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            known = {id(value) for value, _ in kept}
            for value in self._moments():
                if id(value) not in known:
                    value.zero_()  # AdamW's initial state
            for value, before in kept:
                value.copy_(before)
        torch.cuda.set_rng_state(rng_state)
        self.sums = self.meter.sums
        self.counts = {name: self.meter.on_device(count) for name, count in self.meter.counts.items()}
        self._reset_sums()
        try:
            with torch.cuda.graph(
                self.first, capture_error_mode="thread_local"
            ):  # the thread that pins memory keeps running
                self._forward_backward(self.batch, True)
            with torch.cuda.graph(self.second, pool=self.first.pool(), capture_error_mode="thread_local"):
                self.grad_norm = self._update()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            what = str(error).splitlines()[0]
            raise UserError(
                f"speed.step_graph cannot capture this model or `prepare` ({what}): set it to false"
            ) from error

    def _reset_sums(self) -> None:
        """Let the meter use the tensors to which the graph adds, from zero."""
        self.meter.sums, self.meter.counts = self.sums, self.counts
        torch._foreach_zero_([*self.sums.values(), *map(self.meter.on_device, self.counts.values())])

    def _refuse_unused(self) -> None:
        """An ordinary step ignores a weight without a gradient; a captured one would apply weight decay to it."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise UserError(f"speed.step_graph: {name} gets no gradient; set it to false, or freeze that weight")

    def _moments(self) -> list[Tensor]:
        values: list[Any] = [value for state in self.optimizer.state.values() for value in state.values()]
        return [value for value in values if isinstance(value, Tensor)]


@torch.no_grad()
def adamw_step(optimizer: torch.optim.Optimizer, momentum: Tensor) -> None:
    """Take a step of AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2) with `momentum` as beta1.

    `momentum` is a scalar on the device. torch's fused and foreach steps take beta1 as a number, which a captured graph
    would keep. Every weight must have a gradient in every step, as then all are at the same step.
    """
    for group in optimizer.param_groups:
        weights, lr, beta2 = group["params"], group["lr"], group["betas"][1]
        gradients = [weight.grad for weight in weights]
        states = [optimizer.state[weight] for weight in weights]
        means, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
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
