"""Logging: metrics.jsonl, the console, and a tracker. Only rank 0 logs."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .config import LogConfig
from .console import Console, shown
from .errors import UserError

NAMES = {"split", "step", "seconds"}
"""Of what a row has besides metrics."""
Sink = Callable[[str, int, Mapping[str, float]], None]
"""Takes a row of metrics: its split, the optimizer steps made, and the values by name."""


def check(cfg: LogConfig, is_main: bool) -> None:
    """Refuse a tracker whose package is not installed, by a UserError."""
    if is_main and cfg.tracker != "none":
        from . import trackers

        trackers.check(cfg.tracker)


def check_numbers(values: Mapping[str, object]) -> None:
    """Refuse metrics of a hook that are no numbers, by a UserError."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise UserError(f"the metric {name} is a {type(value).__name__}: a hook must add numbers, as of `.item()`")


class RunLog:
    """The log of one run, open until `close`. On other ranks than 0 it does nothing.

    A resumed run repeats the steps after its checkpoint, so their rows are dropped from metrics.jsonl.

    Raises:
        UserError: metrics.jsonl cannot be written.
    """

    def __init__(self, folder: Path, cfg: LogConfig, console: Console, first_step: int, validated: bool) -> None:
        self.folder, self.file = folder, folder / "metrics.jsonl"
        self.is_main, self.console = console.is_main, console
        self.started = time.perf_counter()
        self.tracker: Any = None
        self.sinks: list[Sink] = []
        """What takes each row besides, on rank 0."""
        try:
            if self.is_main and self.file.is_file():
                from .resume import drop_rows_after

                drop_rows_after(first_step, self.file, validated)
            self.stream = (self.file if self.is_main else Path(os.devnull)).open("a", encoding="utf-8")
            if self.is_main and cfg.tracker != "none":
                from .trackers import Follower

                self.tracker = Follower(cfg.tracker, folder)
        except OSError as error:
            what = shown(Path(error.filename or folder))
            raise UserError(f"cannot write {what} ({error.strerror}): move it away, or make it writable") from error
        if cfg.progress:
            console.open_bar(first_step)

    def close(self) -> None:
        """Close all outputs."""
        self.console.close_bar()
        with suppress(OSError):  # on a full disk, the failed write was reported already
            self.stream.close()
        if self.tracker is not None:
            self.tracker.close()

    def step(self) -> None:
        """Advance the progress bar by one optimizer step."""
        if self.console.bar is not None:
            self.console.bar.update()

    def row(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Write one row of metrics as of `step` optimizer steps."""
        if taken := NAMES & values.keys():
            raise UserError(f"a metric is named {taken.pop()}, as a part of each row: give it another name")
        check_numbers(values)
        if not self.is_main:
            return
        record = {"split": split, "step": step, **values, "seconds": round(time.perf_counter() - self.started, 3)}
        try:
            self.stream.write(json.dumps(record) + "\n")
            self.stream.flush()
        except OSError as error:
            raise UserError(f"cannot write {self.file} ({error.strerror}): free some space, then resume") from error
        if self.tracker is not None:
            self.tracker.row(split, step, values)
        self.console.row(split, step, values)
        for sink in self.sinks:
            sink(split, step, values)
