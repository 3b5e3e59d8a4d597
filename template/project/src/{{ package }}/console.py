"""What a run prints: that it starts, what it consists of, and a table of metrics, all within 80 columns."""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

STARTED = time.monotonic()
NAMES_EVERY = 20  # rows between the lines with the names of the table's columns


def begin(module: str, about: str) -> None:
    """Answer `--help`, or print that the program starts: before torch is imported, as that takes seconds."""
    first = os.environ.get("RANK", "0") == "0" or "WORLD_SIZE" not in os.environ
    words = {word.partition("=")[0] for word in sys.argv}
    if words & {"-h", "--help", "--print_config"} and not first:
        sys.exit()  # one rank answers
    if words & {"-h", "--help"}:
        from .config_help import show

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of `| head`
        show(module, about, sys.argv[1:])
    if first and "--print_config" not in words and "RUN_PROCESSES" not in os.environ:
        say("starting: importing torch, loading the data, building the model")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is a run: an exception in an import may get lost


def shown(path: Path) -> str:
    """Return a path relative to the current folder, if it is in there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def say(text: str) -> None:
    """Print; if what read it is gone, as with `| head`, the run stops as after a closed terminal."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with suppress(OSError):
            print(f"cannot print any more ({error.strerror}): stopping", file=sys.stderr, flush=True)
        signal.raise_signal(signal.SIGHUP)


class Console:
    """What rank 0 prints; the other ranks print nothing."""

    def __init__(self, is_main: bool, total_steps: int, steps_per_epoch: int, unit: str, monitor: str) -> None:
        """`unit` is the word for a sample; beside the loss, the metric `monitor` is shown, or else the first."""
        self.is_main, self.total_steps, self.steps_per_epoch = is_main, total_steps, steps_per_epoch
        self.metric, self.rate = "" if monitor == "loss" else monitor, f"{unit}/s"
        self.names = self.train_row = ""
        self.rows = 0
        self.bar: Any = None

    def open_bar(self, first_step: int) -> None:
        """In a terminal, keep the newest training row in the last line, with a progress bar."""
        if self.is_main and sys.stdout.isatty() and sys.stderr.isatty():
            from .progress_bar import ProgressBar

            self.bar = ProgressBar(first_step, self.total_steps)

    def close_bar(self) -> None:
        """Remove the progress bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def row(self, split: str, step: int, values: Mapping[str, float]) -> None:
        """Print a row of the table; with a progress bar, a training row only together with the next validation."""
        if not self.is_main:
            return
        if not self.names:
            self.metric = self.metric or next((name for name in values if name not in ("loss", "lr")), "")
            self.names = self._line("", "epoch", "step", "loss", self.metric, "lr", self.rate)
            say(self.names)
        forms = {"loss": "#.4g", self.metric: "#.4g", "lr": ".2e", "samples_per_second": ",.1f"}
        if values.get("samples_per_second", 0) >= 1000:
            forms["samples_per_second"] = ",.0f"
        numbers = [f"{values[name]:{form}}" if name in values else "" for name, form in forms.items()]
        row = self._line(split, f"{step / self.steps_per_epoch:.2f}", f"{step}/{self.total_steps}", *numbers)
        if self.bar is not None and split == "train":
            self.bar.show(row)
            self.train_row = row
            return
        for line in (self.train_row, row) if self.train_row else (row,):
            if self.rows and self.rows % NAMES_EVERY == 0:
                say(self.names)
            say(line)
            self.rows += 1

    def facts(self, facts: Mapping[str, str]) -> None:
        """Print facts below each other, their names in a column, in place of the progress bar."""
        self.close_bar()
        wrap = textwrap.TextWrapper(80, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * 12)
        for name, text in facts.items() if self.is_main else ():
            say(wrap.fill(f"{name:12}{text}"))

    def _line(self, *cells: str) -> str:
        """Align the cells of a row within 80 columns, for which a long name of the metric is cut."""
        step = max(4, 2 * len(str(self.total_steps)) + 1)
        metric = min(max(len(self.metric), 9), 30 - step)
        widths = (8, step + 2, 11, metric + 2, 10, 12)
        others = (f"{cell[: width - 1]:>{width}}" for cell, width in zip(cells[1:], widths, strict=True))
        return f"{cells[0]:5}{''.join(others)}".rstrip()
