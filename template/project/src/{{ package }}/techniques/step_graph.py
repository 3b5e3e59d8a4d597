"""A whole optimizer step replayed as CUDA graphs: `speed.step_graph`.

One graph holds forward and backward of a micro-batch, the other clipping, the fused update and the zeroing of
gradients. A replay launches all kernels at once, so a small model no longer waits for Python.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from .. import optim
from ..config import Config, OptimConfig
from ..distributed import World
from ..errors import UserError
from ..loaders import Batch
from ..metrics import Sums
from . import ForwardBackward, Update

WARMUP = 3
"""Steps on a side stream before recording, in which libraries choose kernels and allocate."""


def check(cfg: Config, world: World, precision: str) -> None:
    """Refuse what a recorded step cannot hold.

    Raises:
        UserError: names the switch in the way.
    """
    optimizer, compiles = cfg.optim, cfg.speed.compile != "off"
    checkpoints = cfg.speed.activation_checkpointing != "none"
    cycles = optimizer.cycle_momentum and optimizer.schedule in ("onecycle", "cyclic")
    in_the_way = [
        (world.device.type != "cuda", f"only CUDA has graphs, and this run is on {world.device}; set it to false"),
        (world.world_size > 1, f"it is for one process, and there are {world.world_size}; set it to false"),
        (precision in ("fp16", "fp8"), f"{precision} decides on the host in every step; use speed.precision=bf16"),
        (optimizer.name != "adamw" or not optimizer.fused, "it records fused adamw; use optim.name=adamw, optim.fused"),
        (cycles, "a recorded momentum cannot cycle; set optim.cycle_momentum to false"),
        (checkpoints, "it reads noise on the host; set speed.activation_checkpointing to none"),
        (compiles and cfg.speed.compile_mode != "default", "speed.compile_mode may record graphs itself; use default"),
        (cfg.debug.anomaly or cfg.debug.nan, "debug.anomaly and debug.nan read values on the host; switch them off"),
    ]
    for holds, reason in in_the_way:
        if holds:
            cfg.speed.refuse("step_graph", reason)


class StepGraph:
    """The recorded functions and their fixed tensors.

    Weights, statistics, optimizer state and noise are what they would be without: what warming up changed is put back.
    """

    def __init__(
        self,
        forward_backward: ForwardBackward,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        cfg: OptimConfig,
    ) -> None:
        self._forward_backward = forward_backward
        fixed = dataclasses.replace(cfg, set_to_none=False)  # gradients must stay where the graphs expect them
        self._update: Update = lambda: optim.update(optimizer, scaler, model.parameters(), fixed)
        self.model, self.optimizer = model, optimizer
        for group in optimizer.param_groups:
            group["capturable"] = True
            group["lr"] = torch.tensor(float(group["lr"]), device=next(model.parameters()).device)
        self.batch: Batch = ()

    def forward_backward(self, batch: Batch, reduce: bool) -> Sums:
        """Replay for a micro-batch of the same shapes as the first.

        Raises:
            UserError: they are others.
        """
        if not self.batch:
            self._record(batch)
        shapes = [part.shape for part in self.batch]
        if [part.shape for part in batch] != shapes:
            raise UserError(
                f"speed.step_graph recorded batches of {[tuple(shape) for shape in shapes]}, and one of "
                f"{[tuple(part.shape) for part in batch]} came: set it to false, or give batches of one shape"
            )
        for static, part in zip(self.batch, batch, strict=True):
            static.copy_(part)
        self.first.replay()
        return self.metrics

    def update(self) -> tuple[Tensor, bool]:
        """Replay clipping, update and zeroing."""
        self.second.replay()
        return self.grad_norm, True

    def _record(self, batch: Batch) -> None:
        self.batch = tuple(part.clone() for part in batch)
        noise = torch.cuda.get_rng_state()
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
                    value.zero_()  # AdamW begins with zeros
            for value, before in kept:
                value.copy_(before)
        torch.cuda.set_rng_state(noise)
        self.first, self.second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.first, capture_error_mode="thread_local"):  # the pinning thread goes on
                self.metrics = self._forward_backward(self.batch, True)
            with torch.cuda.graph(self.second, pool=self.first.pool(), capture_error_mode="thread_local"):
                self.grad_norm, _ = self._update()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UserError(
                f"speed.step_graph cannot record this model ({str(error).splitlines()[0]}): set it to false"
            ) from error

    def _refuse_unused(self) -> None:
        """A weight without a gradient is left alone by an ordinary step; a recorded one would let it decay."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise UserError(f"speed.step_graph: {name} gets no gradient; set it to false, or freeze that weight")

    def _moments(self) -> list[Tensor]:
        values: list[Any] = [value for state in self.optimizer.state.values() for value in state.values()]
        return [value for value in values if isinstance(value, Tensor)]
