"""Logging: a progress bar, metrics.jsonl, TensorBoard. Only rank 0 logs."""

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .config import LogConfig
from .errors import UserError


class RunLog:
    """The log of one run, open until `close`. On other ranks than 0 it does nothing.

    A resumed run repeats the steps after its checkpoint, so their rows are dropped from metrics.jsonl.
    """

    def __init__(self, folder: Path, cfg: LogConfig, is_main: bool, first_step: int, total_steps: int) -> None:
        self.file = folder / "metrics.jsonl"
        self.is_main, self.total_steps = is_main, total_steps
        self.started = time.perf_counter()
        self.bar: tqdm[Any] | None = None
        self.events: Any = None
        if is_main:
            _drop_rows_after(first_step, self.file)
        self.stream = (self.file if is_main else Path(os.devnull)).open("a", encoding="utf-8")
        if is_main and cfg.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
        if is_main and cfg.progress and sys.stderr.isatty():
            self.bar = tqdm(total=total_steps, initial=first_step, unit="step", dynamic_ncols=True)

    def close(self) -> None:
        """Close all outputs."""
        with suppress(OSError):  # on a full disk, the failed write was reported already
            self.stream.close()
        for other in (self.events, self.bar):
            if other is not None:
                other.close()

    def step(self) -> None:
        """Advance the progress bar by one optimizer step."""
        if self.bar is not None:
            self.bar.update()

    def row(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Write one row of metrics as of `step` optimizer steps."""
        if not self.is_main:
            return
        seconds = time.perf_counter() - self.started
        record = {"split": split, "step": step, **values, "seconds": round(seconds, 3)}
        try:
            self.stream.write(json.dumps(record) + "\n")
            self.stream.flush()
        except OSError as error:
            raise UserError(f"cannot write {self.file} ({error.strerror}): free some space, then resume") from error
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(f"{split}/{name}", value, step)
        self._show(split, step, values)

    def say(self, line: str) -> None:
        """Print a line above the progress bar."""
        if self.is_main:
            (print if self.bar is None else self.bar.write)(line)

    def finish(self, results: Mapping[str, float]) -> None:
        """Print the results of the last validation, and where the run's files are."""
        if self.bar is not None:
            self.bar.close()
        if self.is_main:
            seconds = time.perf_counter() - self.started
            print(f"validation: {_text(results)}\ntrained in {seconds:.1f} s; files in {self.file.parent}", flush=True)

    def _show(self, split: str, step: int, values: Mapping[str, float]) -> None:
        text = _text(values)
        if self.bar is None:
            print(f"{split:5}  step {step}/{self.total_steps}  {text}", flush=True)
        elif split == "train":
            self.bar.set_postfix_str(text, refresh=False)
        else:
            self.bar.write(f"{split:5}  step {step}/{self.total_steps}  {text}")


def _drop_rows_after(step: int, file: Path) -> None:
    if not file.exists():
        return
    kept = [line for line in file.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
    partial = file.with_suffix(".partial")
    partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    partial.replace(file)


def _text(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def _step_of(line: str) -> float:
    """The step of a row; infinity for a row that was only partly written."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
