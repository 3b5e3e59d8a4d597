"""Logging: the first lines, a progress bar, metrics.jsonl and config.json. Only rank 0 logs."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from . import record
from .loader import Loader
from .precision import best
from .run import Run
from .summary import keep_rows, write_summary


class Log:
    """The log of one run.

    A resumed run repeats the steps after its checkpoint, so their rows are dropped.
    """

    def __init__(self, run: Run, val_samples: int) -> None:
        self.run = run
        self.val_samples = val_samples
        self.file = run.folder / "metrics.jsonl"
        self.seconds_before = 0.0  # of a resumed run
        self.changes = run.world.run_on_rank_zero(self._prepare)
        self.stream = self.file.open("a", encoding="utf-8") if run.world.rank == 0 else None
        off = None if self.stream else True  # None: off unless stderr is a terminal
        total = run.plan.total_steps
        self.bar = tqdm(total=total, initial=run.step, unit="step", disable=off)
        self.started = time.perf_counter() - self.seconds_before
        self._begin_interval()

    def close(self) -> None:
        """Close the progress bar and the file; write how the run ends, after the components."""
        self.bar.close()
        if self.stream:
            self.stream.close()
            rule = self.run.cfg.train
            write_summary(self.run.folder, rule.monitor, rule.monitor_mode)

    def first_lines(
        self,
        precision: str,
        peak_lr: float,
        train_loader: Loader,
        about_data: list[str],
    ) -> None:
        """Print what is trained, on what, for how long; and why, where the config says auto."""
        run = self.run
        plan = run.plan
        device = run.world.device
        model = type(run.model).__name__
        parameters = sum(parameter.numel() for parameter in run.model.parameters())
        samples = len(train_loader.dataset)
        batches = f"{plan.batch_size} x {plan.accumulation_steps} micro-batches per rank"
        self.print(
            f"{run.folder}: {model} with {parameters:,} parameters on {run.world.size} x "
            f"{device.type}, {precision}",
            f"{samples:,} training samples, {self.val_samples:,} validation samples, "
            f"{plan.total_steps:,} steps",
            *about_data,
            f"global batch {plan.global_batch_size:,}, {batches}",
            f"{type(run.optimizer).__name__}, peak learning rate {peak_lr:.4g}, "
            f"from step {run.step:,}",
        )
        if run.cfg.run.device == "auto":
            found = "no accelerator" if device.type == "cpu" else "this accelerator"
            self.print(f"{device.type}: torch finds {found}")
        if run.cfg.speed.precision == "auto":
            self.print(f"{precision}: {best(device).reason}")
        if run.cfg.loader.num_workers == "auto":
            self.print(train_loader.reason)
        if self.changes:
            self.print(self.changes)

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
        """Return samples per second since the last row, and the share of waiting for batches."""
        seconds = time.perf_counter() - self.interval_start
        samples = (self.run.step - self.interval_step) * self.run.plan.global_batch_size
        return {
            "samples_per_second": round(samples / seconds, 1),
            "data_wait": round(self.waited / seconds, 4),
        }

    def is_due(self) -> bool:
        """Whether this step has a row of training metrics."""
        step = self.run.step
        return self.run.plan.validates(step) or step % self.run.cfg.log.every == 0

    def train(self, row: dict[str, float]) -> None:
        """Write a row of training metrics."""
        speed = f"{row['samples_per_second']:,.0f} samples/s"
        self.bar.set_postfix_str(f"loss {row['loss']:.4g}, {speed}", refresh=False)
        self.bar.update(self.run.step - self.bar.n)
        self.write("train", row, show=bool(self.bar.disable))

    def write(
        self,
        split: str,
        values: dict[str, float],
        show: bool = True,
    ) -> None:
        """Write a row and begin an interval: the speed does not count the time of a validation."""
        self._begin_interval()
        if not self.stream:
            return
        seconds = round(self.interval_start - self.started, 3)
        row = {"split": split, "step": self.run.step} | values | {"seconds": seconds}
        print(json.dumps(row), file=self.stream, flush=True)
        if show:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.print(f"{split:5} {self.run.step:7,}  {shown}")

    def done(self, results: dict[str, float]) -> None:
        """Print the results of the last validation."""
        shown = ", ".join(f"{name} {value:.4g}" for name, value in results.items())
        self.print(f"done after {self.run.step:,} steps: {shown}")

    def flush(self) -> None:
        """Flush the rows to disk; to call before each checkpoint."""
        if self.stream:
            os.fsync(self.stream.fileno())

    def _begin_interval(self) -> None:
        self.interval_start = time.perf_counter()
        self.interval_step = self.run.step
        self.waited = 0.0

    def _prepare(self) -> str:
        run = self.run
        must_stay = record.trained_with(run.cfg, run.plan.global_batch_size)
        must_stay["training samples"] = run.plan.samples
        must_stay["validation samples"] = self.val_samples
        if run.step > 0 and not run.cfg.run.allow_changes:
            record.check(run.folder, run.cfg, must_stay)
        values = {
            "config": asdict(run.cfg),
            "trained_with": must_stay,
            "steps": run.plan.total_steps,
        }
        self.seconds_before = keep_rows(self.file, run.step)
        return record.begin(run.folder, values, run.step)
