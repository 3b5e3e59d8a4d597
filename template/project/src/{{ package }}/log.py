"""Logging: metrics.jsonl, TensorBoard and the console. Only rank 0 logs."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from .config import LogConfig
from .console import Console, shown
from .errors import UserError

CLOSE_SECONDS = 5.0
"""How long TensorBoard's writer may take to close: after an interrupt while it queued a value, it never ends."""

NAMES = {"split", "step", "seconds"}
"""Of what a row has besides metrics."""
Sink = Callable[[str, int, Mapping[str, float]], None]
"""Takes a row of metrics: its split, the optimizer steps made, and the values by name."""


class RunLog:
    """The log of one run, open until `close`. On other ranks than 0 it does nothing.

    A resumed run repeats the steps after its checkpoint, so their rows are dropped from metrics.jsonl.

    Raises:
        UserError: metrics.jsonl or the folder of TensorBoard cannot be written.
    """

    def __init__(self, folder: Path, cfg: LogConfig, console: Console, first_step: int, validated: bool) -> None:
        self.folder, self.file = folder, folder / "metrics.jsonl"
        self.is_main, self.console = console.is_main, console
        self.started = time.perf_counter()
        self.events: Any = None
        self.sinks: list[Sink] = []
        """What takes each row besides, on rank 0."""
        try:
            if self.is_main and cfg.tensorboard:
                from torch.utils.tensorboard import SummaryWriter

                self.events = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
            if self.is_main and self.file.is_file():
                from .resume import drop_rows_after

                drop_rows_after(first_step, self.file, validated)
            self.stream = (self.file if self.is_main else Path(os.devnull)).open("a", encoding="utf-8")
        except OSError as error:
            if self.events is not None:
                self.events.close()
            what = shown(Path(error.filename or folder))
            raise UserError(f"cannot write {what} ({error.strerror}): move it away, or make it writable") from error
        if cfg.progress:
            console.open_bar(first_step)

    def close(self) -> None:
        """Close all outputs."""
        self.console.close_bar()
        with suppress(OSError):  # on a full disk, the failed write was reported already
            self.stream.close()
        if self.events is not None:
            closing = Thread(target=self._close_events, daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)
            if closing.is_alive():
                print("TensorBoard's writer did not close in time: its last values may be missing", file=sys.stderr)

    def _close_events(self) -> None:
        with suppress(OSError):  # as above
            self.events.close()

    def step(self) -> None:
        """Advance the progress bar by one optimizer step."""
        if self.console.bar is not None:
            self.console.bar.update()

    def row(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Write one row of metrics as of `step` optimizer steps."""
        if taken := NAMES & values.keys():
            raise UserError(f"a metric is named {taken.pop()}, as a part of each row: give it another name")
        for name, value in values.items():
            if not isinstance(value, int | float):
                raise UserError(
                    f"the metric {name} is a {type(value).__name__}: a hook must add numbers, as of `.item()`"
                )
        if not self.is_main:
            return
        record = {"split": split, "step": step, **values, "seconds": round(time.perf_counter() - self.started, 3)}
        try:
            self.stream.write(json.dumps(record) + "\n")
            self.stream.flush()
        except OSError as error:
            raise UserError(f"cannot write {self.file} ({error.strerror}): free some space, then resume") from error
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(f"{split}/{name}", value, step)
        self.console.row(split, step, values)
        for sink in self.sinks:
            sink(split, step, values)
