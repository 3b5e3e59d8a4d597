"""What a run says: a progress bar, metrics.jsonl, TensorBoard. Only the main rank says anything."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from .config import LogConfig
from .errors import UserError


class RunLog:
    """The open log of one run; a context manager."""

    def __init__(self, folder: Path, cfg: LogConfig, is_main: bool, first_step: int, total_steps: int) -> None:
        self.file = folder / "metrics.jsonl"
        self.cfg, self.is_main = cfg, is_main
        self.first_step, self.total_steps = first_step, total_steps
        self.started = time.perf_counter()
        self.bar: tqdm[Any] | None = None
        self.events: Any = None

    def __enter__(self) -> Self:
        if not self.is_main:
            return self
        self._drop_rows_after(self.first_step)
        self.stream = self.file.open("a", encoding="utf-8")
        if self.cfg.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.file.parent / "tensorboard"), purge_step=self.first_step + 1)
        if self.cfg.progress and sys.stderr.isatty():
            self.bar = tqdm(total=self.total_steps, initial=self.first_step, unit="step", dynamic_ncols=True)
        return self

    def __exit__(self, *error: object) -> None:
        if not self.is_main:
            return
        with suppress(OSError):  # on a full disk, what could not be written is told already
            self.stream.close()
        for other in (self.events, self.bar):
            if other is not None:
                other.close()

    def step(self) -> None:
        """Move the progress bar by one optimizer step."""
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
        """Print a line, without tearing the progress bar."""
        if self.is_main:
            (print if self.bar is None else self.bar.write)(line)

    def finish(self, results: Mapping[str, float]) -> None:
        """Say how the run ended and where its files are."""
        if self.is_main:
            seconds = time.perf_counter() - self.started
            print(f"held out: {_text(results)}\ntrained in {seconds:.1f} s; files in {self.file.parent}", flush=True)

    def _show(self, split: str, step: int, values: Mapping[str, float]) -> None:
        text = _text(values)
        if self.bar is None:
            print(f"{split:5}  step {step}/{self.total_steps}  {text}", flush=True)
        elif split == "train":
            self.bar.set_postfix_str(text, refresh=False)
        else:
            self.bar.write(f"{split:5}  step {step}/{self.total_steps}  {text}")

    def _drop_rows_after(self, step: int) -> None:
        """A resumed run repeats the steps after its checkpoint, so it takes back what was written of them."""
        if not self.file.exists():
            return
        kept = [line for line in self.file.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        partial = self.file.with_suffix(".partial")
        partial.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        partial.replace(self.file)


def _text(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def _step_of(line: str) -> float:
    """The step of a row; infinity for one that was cut off while it was written."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
