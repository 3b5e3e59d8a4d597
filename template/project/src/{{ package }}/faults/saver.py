"""Saves checkpoints while the run goes on, `checkpoint.asynchronous`: a thread writes a copy of the state."""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from ..config import CheckpointConfig
from ..distributed import World
from ..errors import UserError, in_one_line
from .host_copy import HostCopy
from .saving import Pace, save

REST = 9.0
"""On the CPU, which computes the steps as well, seconds of rest for each second that the thread works."""
WORK = 0.005
"""Seconds of work between rests."""


class Shards(Protocol):
    """What FSDP needs: each rank writes shards of its own."""

    def split(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[Any, Tensor]]:
        """Return the state without the shards of this rank, and these."""

    def write(self, shards: dict[Any, Tensor], folder: Path, pace: Pace) -> dict[str, Any]:
        """Write them, as `saving.WriteShards` does."""


class Saver:
    """Writes the checkpoints of a run, one at a time. As a context, it ends when the last one is on the disk."""

    def __init__(
        self, folder: Path, cfg: CheckpointConfig, world: World, make_shards: Callable[[bool], Shards | None]
    ) -> None:
        """`make_shards` takes whether a thread is to write, and returns None if each rank has the whole state."""
        self.folder, self.cfg, self.world, self.make_shards = folder, cfg, world, make_shards
        self.shards: Shards | None = None
        self.host_copy = HostCopy(world)
        self.thread: Thread | None = None
        self.error: BaseException | None = None
        self.pace = _Pace(REST if world.device.type == "cpu" else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as failed:
            if error is None:
                raise
            if isinstance(failed, UserError):  # others follow from `error`, as when a rank is gone
                print(in_one_line(failed), file=sys.stderr, flush=True)

    def save(self, state: dict[str, Any], about: dict[str, Any], best: int) -> None:
        """Begin to write a checkpoint, as `saving.save` does, when the one before is written. All ranks must call it.

        Raises:
            UserError: the one before could not be written, or this one without a thread.
        """
        self.wait()
        self.shards = self.shards or self.make_shards(self.cfg.asynchronous)
        state, own = self.shards.split(state) if self.shards else (state, {})
        writes = self.world.is_main or self.shards is not None
        copies = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.shards else 1
        copied = self.host_copy((state, own), copies) if self.cfg.asynchronous and writes else None
        if copied is None:
            self.pace.hurry.set()
            self._write(state, own, about, best)
            self._raise()
            return
        self.pace.hurry.clear()
        self.thread = Thread(target=self._write, args=(*copied, about, best), name="checkpoint", daemon=True)
        self.thread.start()

    def check(self) -> None:
        """Raise the UserError of a checkpoint that could not be written, as soon as that is known."""
        if self.thread is not None and not self.thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk.

        Raises:
            UserError: it could not be written; older ones are untouched.
        """
        if self.thread is not None:
            self.pace.hurry.set()
            self.thread.join()
            self.thread = None
            self._raise()

    def _write(self, state: dict[str, Any], own: dict[Any, Tensor], about: dict[str, Any], best: int) -> None:
        try:
            self.host_copy.finish()
            self.pace.begin()
            write_shards = partial(self.shards.write, own) if self.shards else None
            save(self.folder, state, about, self.cfg, best, self.world, write_shards, self.pace)
        except BaseException as error:  # raised in the main thread
            self.error = error

    def _raise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


class _Pace:
    """Lets the thread rest in proportion to its work, as long as nothing waits for it."""

    def __init__(self, rest: float) -> None:
        self.rest, self.worked, self.hurry = rest, 0.0, Event()

    def begin(self) -> None:
        self.worked = time.thread_time()

    def __call__(self) -> None:
        seconds = time.thread_time() - self.worked
        if self.rest and seconds > WORK:
            self.hurry.wait(self.rest * seconds)
            self.worked = time.thread_time()
