"""The files of a run, metrics.jsonl and config.json, as a tracker of Accelerate; and its speed."""

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.tracking import GeneralTracker
from tqdm import tqdm

from .record import FILE, extend, read
from .summary import SUMMARY, summary


class MetricsFile(GeneralTracker):  # type: ignore[misc]  # Accelerate has no types
    """Writes a row for each `accelerator.log`, and prints it.

    A resumed run repeats the steps after its checkpoint, so their rows are dropped.
    """

    name = "metrics.jsonl"
    requires_logging_directory = False

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
    ) -> None:
        super().__init__()
        self.folder = folder
        self.config = config
        self.facts: dict[str, Any] = {}
        """What config.json has besides the config, to set before `init_trackers`."""
        self.first_step = 0
        """Step of the checkpoint from which the run is resumed, to set before `init_trackers`."""

    @property
    def tracker(self) -> Path:
        """Return the file."""
        return self.folder / self.name

    def start(self) -> None:
        """Write config.json, and keep the rows of the steps before the first one."""
        self.started = time.perf_counter()
        if not PartialState().is_main_process:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / SUMMARY).unlink(missing_ok=True)
        record = {
            "config": self.config,
            **self.facts,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "command": sys.argv,
        }
        self.write_record(extend(self.folder, record, self.first_step))
        lines = self.tracker.read_text("utf-8").splitlines() if self.tracker.exists() else []
        kept = [line for line in lines if self._precedes(line)]
        _replace(self.tracker, "".join(f"{line}\n" for line in kept))
        if kept:  # the seconds of a resumed run go on
            self.started -= json.loads(kept[-1])["seconds"]

    def write_record(self, record: dict[str, Any]) -> None:
        """Replace config.json."""
        _replace(self.folder / FILE, json.dumps(record, indent=2) + "\n")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: config.json has the config."""

    def log(
        self,
        values: dict[str, float],
        step: int,
        **_: Any,
    ) -> None:
        """Write the values of `split/name` as a row of that split."""
        split = next(iter(values)).split("/")[0]
        row = {name.removeprefix(f"{split}/"): value for name, value in values.items()}
        shown = "  ".join(f"{name} {value:.4g}" for name, value in row.items())
        tqdm.write(f"{split:5} {step:7,}  {shown}")
        row["seconds"] = round(time.perf_counter() - self.started, 3)
        with self.tracker.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"split": split, "step": step} | row) + "\n")

    def finish(self) -> None:
        """Do nothing: each row is in the file."""

    def close(self) -> None:
        """Write how the run ends."""
        if PartialState().is_main_process:
            with suppress(OSError, ValueError):  # a full disk ended the run
                rule = self.config["train"]
                text = summary(
                    self.folder, self.facts["steps"], rule["monitor"], rule["monitor_mode"]
                )
                _replace(self.folder / SUMMARY, text)

    def mark_finished(self, step: int) -> None:
        """Record that the run is complete."""
        if PartialState().is_main_process:
            self.write_record(read(self.folder) | {"finished": step})

    def _precedes(self, line: str) -> bool:
        """Whether a row stays when the run is resumed, which validates again."""
        try:
            row = json.loads(line)
        except ValueError:  # cut off by a crash
            return False
        is_train = row["split"] == "train"
        return bool(row["step"] < self.first_step + is_train)


class Clock:
    """Measures the speed since the last row, and the time of waiting for batches."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with a new row."""
        self.begin = time.perf_counter()
        self.waited = 0.0
        self.batches = 0

    def wait_for(self, batches: Iterator[Any]) -> Any:
        """Return the next batch."""
        asked = time.perf_counter()
        batch = next(batches)
        self.waited += time.perf_counter() - asked
        self.batches += 1
        return batch

    def read(self, batch_size: int) -> dict[str, float]:
        """Return samples per second, and the share of waiting."""
        seconds = time.perf_counter() - self.begin
        return {
            "samples_per_second": round(self.batches * batch_size / seconds, 1),
            "data_wait": round(self.waited / seconds, 4),
        }


def _replace(file: Path, text: str) -> None:
    """Write a file, so that it is either the old one or the new one even after a kill."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)
