"""The record of a run: metrics.jsonl, and config.json with its options, versions and commit."""

import json
import math
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from .errors import UserError


class RunLog(SaveConfigCallback):
    """Saves the options, and a row of metrics every `log_every_n_steps` and per validation.

    CSVLogger deletes its file when a run is resumed, and has no times.
    """

    def save_config(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        stage: str,
    ) -> None:
        """Give the options to the loggers, besides config.yaml."""
        self.options = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        for logger in trainer.loggers:
            logger.log_hyperparams(self.options)

    def on_train_start(
        self,
        trainer: Any,
        pl_module: LightningModule,
    ) -> None:
        self.file = Path(trainer.log_dir) / "metrics.jsonl"
        self.started = time.perf_counter()
        self._begin_interval(trainer)
        self.validated = set[int]()
        if trainer.is_global_zero:
            rows = _rows(self.file, trainer.global_step)
            self.validated.update(row["step"] for row in rows if row["split"] == "val")
            _replace(self.file, "".join(f"{json.dumps(row)}\n" for row in rows))
            self._write_config(trainer)

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: LightningModule,
        *_: Any,
    ) -> None:
        step = trainer.global_step
        if step == self.interval_step or step % trainer.log_every_n_steps:
            return
        seconds = time.perf_counter() - self.interval_start
        batches = (step - self.interval_step) * trainer.accumulate_grad_batches
        samples = batches * trainer.datamodule.batch_size * trainer.world_size
        speed = {
            "samples_per_second": round(samples / seconds, 1),
            "data_wait": round(trainer.train_dataloader.waited / seconds, 4),
        }
        self._write(trainer, "train", speed)

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        # Lightning may repeat the validation of a checkpoint's step
        if not trainer.sanity_checking and trainer.global_step not in self.validated:
            self._write(trainer, "val", {})

    def _write(self, trainer: Any, split: str, speed: dict[str, float]) -> None:
        """Write a row and begin an interval: the speed does not count the time of a validation."""
        self._begin_interval(trainer)
        step = trainer.global_step
        row: dict[str, Any] = {"split": split, "step": step}
        for name, value in trainer.callback_metrics.items():
            kind, _, metric = name.partition("/")
            if kind == split:
                row[metric] = value.item()
        if split == "train" and not math.isfinite(row["loss"]):
            raise UserError(f"the loss is {row['loss']} at step {step:,}: lower model.lr")
        row |= speed
        row["seconds"] = round(self.interval_start - self.started, 3)
        if trainer.is_global_zero:
            with self.file.open("a", encoding="utf-8") as stream:
                print(json.dumps(row), file=stream)

    def _begin_interval(self, trainer: Any) -> None:
        self.interval_start = time.perf_counter()
        self.interval_step = trainer.global_step
        trainer.train_dataloader.waited = 0.0

    def _write_config(self, trainer: Any) -> None:
        record = {
            "config": self.options,
            "steps": trainer.estimated_stepping_batches,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "lightning": version("lightning"),
            },
            "command": sys.argv,
            "commit": _commit(),
        }
        text = json.dumps(record, indent=2)
        _replace(self.file.with_name("config.json"), f"{text}\n")


def _replace(file: Path, text: str) -> None:
    """Write a file that is whole even if the program is killed."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def _rows(file: Path, last_step: int) -> list[dict[str, Any]]:
    """Return the rows up to a step: a resumed run repeats those after its checkpoint."""
    rows = []
    with suppress(FileNotFoundError, ValueError):  # a crash may have cut off the last line
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["step"] <= last_step:
                rows.append(row)
    return rows


def _commit() -> str:
    """Return the commit of this code, with -dirty if files differ from it; empty without git."""
    describe = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    folder = Path(__file__).parent
    with suppress(OSError):
        done = subprocess.run(
            describe,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()
    return ""
