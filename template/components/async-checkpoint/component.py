"""Checkpoints that a background thread writes during the training, from a copy of the state in host memory."""

import copy
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
    """Copy the state to host memory and let a thread write it; the run waits for the last checkpoint."""


class AsyncCheckpoint(Component):
    """Replaces what writes checkpoints; their files and the order of the file operations stay the same."""

    name = "async_checkpoint"

    def __init__(self, cfg: AsyncCheckpointConfig, world: World) -> None:
        self.checkpoints: AsyncCheckpoints | None = None

    def checkpointer(self, run: Run) -> "AsyncCheckpoints":
        self.checkpoints = AsyncCheckpoints(run.folder, run.cfg.run.keep, run.world)
        return self.checkpoints

    def on_train_end(self, run: Run) -> None:
        """Wait for the last checkpoint."""
        assert self.checkpoints is not None
        if sys.exception() is None or isinstance(sys.exception(), Stopped):  # on all ranks alike
            run.world.run_on_rank_zero(self.checkpoints.wait)
            return
        try:  # after another error, this rank may be the only one here
            self.checkpoints.wait()
        except (UserError, OSError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)


class AsyncCheckpoints(Checkpoints):
    """Writes one checkpoint at a time. The thread does not communicate with other ranks."""

    def __init__(self, run_folder: Path, keep: int, world: World) -> None:
        super().__init__(run_folder, keep, world)
        self.plain = Checkpoints(run_folder, keep, World(0, 1, world.device))
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.last: Future[None] | None = None
        """What was begun last; it fails with the error of what was begun before."""

    def save(self, state: dict[str, Any]) -> None:
        """Wait for the checkpoint before, raise its error on every rank, and begin this one."""

        def begin() -> None:
            self.wait()
            self._begin(partial(_save, self.plain, *_copy_to_host(state, self.world.device)))

        self.world.run_on_rank_zero(begin)

    def save_best(self, step: int, results: dict[str, float], monitor: str, mode: str) -> None:
        """Record the best step when its checkpoint is complete."""
        if monitor not in results:
            super().save_best(step, results, monitor, mode)  # raises the error at once
        if self.world.rank == 0:
            self._begin(partial(self.plain.save_best, step, results, monitor, mode))

    def wait(self) -> None:
        """Wait until all that was begun is on the disk; raise the error of what failed."""
        last, self.last = self.last, None
        if last is not None:
            last.result()

    def _begin(self, action: Callable[[], None]) -> None:
        self.last = self.thread.submit(_after, self.last, action)


def _after(before: Future[None] | None, action: Callable[[], None]) -> None:
    if before is not None:
        before.result()
    action()


def _save(checkpoints: Checkpoints, copied: torch.Event | None, state: dict[str, Any]) -> None:
    if copied is not None:
        copied.synchronize()
    checkpoints.save(state)


@torch.no_grad()
def _copy_to_host(
    state: dict[str, Any], device: torch.device
) -> tuple[torch.Event | None, dict[str, Any]]:
    """Return a copy of the state, and for a GPU the event after which it is complete; the host waits for no copy."""
    pin = device.type not in ("cpu", "mps")
    copies: dict[object, Tensor] = {}
    memo: dict[int, Any] = {}

    def add(value: Tensor) -> None:
        # a tied weight is copied once
        key = (
            value.data_ptr(),
            value.shape,
            value.stride(),
            value.dtype,
        )
        if key not in copies:
            copies[key] = torch.empty_like(value, device="cpu", pin_memory=pin).copy_(
                value, non_blocking=pin
            )
        memo[id(value)] = copies[key]

    map_tensors(add, state)
    copied = copy.deepcopy(state, memo)  # takes the tensors from `memo`
    event = torch.Event(device) if pin else None
    if event is not None:
        event.record()
    return event, copied
