"""The files of a run, metrics.jsonl and config.json, as a tracker of Accelerate; and its speed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import GeneralTracker
from tqdm import tqdm

from . import record
from .summary import keep_rows, write_summary


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
        changes = record.begin(self.folder, {"config": self.config} | self.facts, self.first_step)
        if changes:
            tqdm.write(changes)
        # the seconds of a resumed run go on
        self.started -= keep_rows(self.tracker, self.first_step)

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
            rule = self.config["train"]
            steps = self.facts["steps"]
            write_summary(self.folder, rule["monitor"], rule["monitor_mode"], steps)


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
