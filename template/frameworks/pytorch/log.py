"""Logging: the first lines, a progress bar, metrics.jsonl and config.json. Only rank 0 logs."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .checkpoint import write_text
from .config import BaseConfig
from .distributed import World
from .loader import BatchPlan


@dataclass
class Run:
    """What the log and components read while the model trains; `step` counts optimizer steps."""

    cfg: BaseConfig
    world: World
    folder: Path
    plan: BatchPlan
    model: torch.nn.Module
    """The module whose weights and names a checkpoint has; `net` in train.py is this one, or DDP around it."""
    optimizer: torch.optim.Optimizer
    step_generator: torch.Generator  # for random numbers of a step that are equal on all ranks
    step: int = 0
    known_skipped: int = 0
    """Steps that were skipped, by fp16 as of the last row of metrics; the schedule does not count them."""
    finished: bool = False  # set to end the training after this step


class Log:
    """The log of one run.

    A resumed run repeats the steps after its checkpoint, so their rows are dropped.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.file = run, run.folder / "metrics.jsonl"
        run.world.on_main(self._prepare)
        self.stream = self.file.open("a", encoding="utf-8") if run.world.rank == 0 else None
        off = None if self.stream else True  # None: off unless stderr is a terminal
        self.bar = tqdm(total=run.plan.total_steps, initial=run.step, unit="step", disable=off)
        self.started = self.interval_start = time.perf_counter()
        self.interval_step, self.waited = run.step, 0.0

    def close(self) -> None:
        """Close the progress bar and the file."""
        self.bar.close()
        if self.stream:
            self.stream.close()

    def first_lines(self, precision: str, peak_lr: float, samples: int, val_samples: int) -> None:
        """Print what is trained, on what, and for how long."""
        run, plan, device = (
            self.run,
            self.run.plan,
            f"{self.run.world.size} x {self.run.world.device.type}",
        )
        parameters = sum(parameter.numel() for parameter in run.model.parameters())
        self.print(
            f"{run.folder}: {type(run.model).__name__} with {parameters:,} parameters on {device}, {precision}",
            f"{samples:,} training samples, {val_samples:,} validation samples, {plan.total_steps:,} steps",
            f"global batch {plan.global_batch:,}, {plan.micro_batch} x {plan.accumulate} micro-batches per rank",
            f"{type(run.optimizer).__name__}, peak learning rate {peak_lr:.4g}, from step {run.step:,}",
        )

    def print(self, *lines: str) -> None:
        """Print lines above the progress bar."""
        if self.stream:
            self.bar.write("\n".join(lines))

    def wait_for(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and count the time until it is there."""
        begin = time.perf_counter()
        batch = next(batches)
        self.waited += time.perf_counter() - begin
        return batch

    def speed(self) -> dict[str, float]:
        """Return the speed since the last row, and the share of the time in which the loop waited for batches."""
        seconds = time.perf_counter() - self.interval_start
        samples = (self.run.step - self.interval_step) * self.run.plan.global_batch
        return {
            "samples_per_second": round(samples / seconds, 1),
            "data_wait": round(self.waited / seconds, 4),
        }

    def train(self, row: dict[str, float]) -> None:
        """Write a row of training metrics."""
        self.bar.set_postfix_str(
            f"loss {row['loss']:.4g}, {row['samples_per_second']:,.0f} samples/s", refresh=False
        )
        self.bar.update(self.run.step - self.bar.n)
        self.write("train", row, show=bool(self.bar.disable))

    def flush(self) -> None:
        """Flush the rows to disk; to call before each checkpoint."""
        if self.stream:
            os.fsync(self.stream.fileno())

    def _prepare(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "command": sys.argv,
        }
        record = {
            "config": asdict(self.run.cfg),
            "steps": self.run.plan.total_steps,
            **about,
            "commit": _commit(),
        }
        write_text(
            self.file.with_name("config.json"), json.dumps(record, indent=2, default=str) + "\n"
        )
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        write_text(
            self.file, "".join(f"{line}\n" for line in lines if _precedes(line, self.run.step))
        )

    def write(self, split: str, values: dict[str, float], show: bool = True) -> None:
        """Write a row and start a new interval: the next row of training metrics does not count a validation's time."""
        self.interval_start, self.interval_step, self.waited = (
            time.perf_counter(),
            self.run.step,
            0.0,
        )
        if not self.stream:
            return
        since = {"seconds": round(self.interval_start - self.started, 3)}
        print(
            json.dumps({"split": split, "step": self.run.step} | values | since),
            file=self.stream,
            flush=True,
        )
        if show:
            self.print(
                f"{split:5} {self.run.step:7,}  "
                + "  ".join(f"{name} {it:.4g}" for name, it in values.items())
            )


def _precedes(line: str, step: int) -> bool:
    """Whether a row stays when the run is resumed at a step, which validates again."""
    with suppress(ValueError, KeyError, TypeError):
        row = json.loads(line)
        return bool(row["step"] < step or (row["step"] == step and row["split"] == "train"))
    return False  # cut off by a crash


def _commit() -> str:
    """Return the commit of this code, with -dirty if files differ from it; empty without git."""
    git = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty",
    ]
    with suppress(OSError):
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return ""
