"""Checkpoints that a background thread writes, from a copy of the state in host memory."""

import copy
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import Checkpoints
from ..component import Component
from ..config_base import Section
from ..distributed import World
from ..errors import Stopped, UserError
from ..loader import map_tensors
from ..run import Run


@dataclass(frozen=True)
class AsyncCheckpointConfig(Section):
    """Checkpoints that a background thread writes during the training."""

    enabled: bool = False
    """Copy the state to host memory and let a thread write it; the run waits for the last
    checkpoint."""


class AsyncCheckpoint(Component):
    """Replaces what writes checkpoints; the files and the order of their operations stay."""

    name = "async_checkpoint"

    def __init__(
        self,
        cfg: AsyncCheckpointConfig,
        world: World,
    ) -> None:
        self.checkpoints: AsyncCheckpoints

    def checkpointer(self, run: Run) -> "AsyncCheckpoints":
        self.checkpoints = AsyncCheckpoints(run.folder, run.cfg.run.keep, run.world)
        return self.checkpoints

    def on_train_end(self, run: Run) -> None:
        """Wait for the last checkpoint."""
        error = sys.exception()
        if error is None or isinstance(error, Stopped):  # on all ranks alike
            run.world.run_on_rank_zero(self.checkpoints.wait)
            return
        try:  # after another error, this rank may be the only one here
            self.checkpoints.wait()
        except (UserError, OSError) as unsaved:
            print(f"error: {unsaved}", file=sys.stderr, flush=True)


class AsyncCheckpoints(Checkpoints):
    """Writes one checkpoint at a time. The thread does not communicate with other ranks."""

    def __init__(
        self,
        run_folder: Path,
        keep: int,
        world: World,
    ) -> None:
        super().__init__(run_folder, keep, world)
        self.plain = Checkpoints(run_folder, keep, World(0, 1, world.device))
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.last: Future[None] | None = None
        """What was begun last; it fails with the error of what was begun before."""

    def save(self, state: dict[str, Any]) -> None:
        """Wait for the checkpoint before, raise its error on every rank, and begin this one."""
        self.world.run_on_rank_zero(lambda: self._begin_save(state))

    def record_best(
        self,
        step: int,
        results: dict[str, float],
        monitor: str,
        mode: str | None,
    ) -> None:
        """Record the best step when its checkpoint is complete."""
        if monitor not in results:
            super().record_best(step, results, monitor, mode)  # raises the error at once
        if self.world.rank == 0:
            self._begin(lambda: self.plain.record_best(step, results, monitor, mode))

    def wait(self) -> None:
        """Wait until all that was begun is on the disk; raise the error of what failed."""
        last = self.last
        self.last = None
        if last is not None:
            last.result()

    def _begin_save(self, state: dict[str, Any]) -> None:
        self.wait()
        event, copied = _copy_to_host(state, self.world.device)

        def save() -> None:
            if event is not None:
                event.synchronize()
            self.plain.save(copied)

        self._begin(save)

    def _begin(self, action: Callable[[], None]) -> None:
        before = self.last

        def act() -> None:
            if before is not None:
                before.result()
            action()

        self.last = self.thread.submit(act)


@torch.no_grad()
def _copy_to_host(
    state: dict[str, Any], device: torch.device
) -> tuple[torch.Event | None, dict[str, Any]]:
    """Return an event of the GPU after which the copy is complete, and the copy."""
    is_async = device.type not in ("cpu", "mps")
    copies: dict[object, Tensor] = {}
    memo: dict[int, Any] = {}

    def add(value: Tensor) -> None:
        # a tied weight is copied once
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if key not in copies:
            host = torch.empty_like(value, device="cpu", pin_memory=is_async)
            copies[key] = host.copy_(value, non_blocking=is_async)
        memo[id(value)] = copies[key]

    map_tensors(add, state)
    copied = copy.deepcopy(state, memo)  # takes the tensors from `memo`
    if not is_async:
        return None, copied
    event = torch.Event(device)
    event.record()
    return event, copied
