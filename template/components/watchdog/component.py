"""A watchdog that ends a process that hangs; the command `restart` starts the run again."""

import faulthandler
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..component import Component, Step
from ..config_base import Section, within
from ..contracts import Metrics
from ..distributed import World
from ..run import Run

SLOW = 4
"""Factor of the limit for a first step, which may compile, and for checkpoints and validations."""


@dataclass(frozen=True)
class WatchdogConfig(Section):
    """A watchdog that ends a process that hangs."""

    enabled: bool = False
    """End a process that hangs, and write its stacks to `stacks-rank-<rank>.txt` of the run."""
    hang_seconds: float = within("(0, inf)", 600.0)
    """Seconds without progress that count as a hang.

    Four times as many in a first step, a checkpoint or a validation.
    """


class Watchdog(Component):
    """Arms faulthandler's watchdog again and again; it works even while Python's lock is held."""

    name = "watchdog"

    def __init__(self, cfg: WatchdogConfig, world: World) -> None:
        self.limit = cfg.hang_seconds
        self.rank = world.rank
        self.file: IO[str] | None = None
        self.armed_at = 0.0
        self.seconds = 0.0

    def wrap_step(self, run: Run, step: Step) -> Step:
        first = run.step

        def watched(
            batch: Any,
            is_first: bool,
            is_last: bool,
        ) -> Metrics:
            self.arm(run, SLOW if run.step == first else 1)
            return step.compute_gradients(batch, is_first, is_last)

        return step._replace(compute_gradients=watched)

    def on_step_end(self, run: Run) -> None:
        self.arm(run, SLOW if run.plan.validates(run.step) else 1)

    @contextmanager
    def eval_weights(self, run: Run) -> Iterator[None]:
        self.arm(run, SLOW)
        yield

    def on_train_end(self, run: Run) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self.file is None:
            return
        self.file.close()
        file = Path(self.file.name)
        if file.stat().st_size == 0:
            file.unlink()

    def arm(self, run: Run, factor: int) -> None:
        """Let the process end after so many times the limit, unless this is called before.

        Acts at most once a second.
        """
        now = time.monotonic()
        seconds = factor * self.limit
        if seconds == self.seconds and now - self.armed_at < min(1.0, 0.1 * self.limit):
            return
        if self.file is None:
            self.file = (run.folder / f"stacks-rank-{self.rank}.txt").open("a", encoding="utf-8")
        self.armed_at = now
        self.seconds = seconds
        faulthandler.dump_traceback_later(seconds, file=self.file, exit=True)
