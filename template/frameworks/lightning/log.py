"""The files of a run: metrics.jsonl, a row of metrics per line, and config.json, its options, versions and commit."""

import json
import math
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from .errors import UserError


class MetricsLog(Callback):
    """Writes metrics.jsonl into the folder of the logger: a row every `log_every_n_steps`, and one per validation."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        self.file = folder / "metrics.jsonl"
        self.started, self.last_step = time.perf_counter(), trainer.global_step
        self.restart_interval(trainer)
        if trainer.is_global_zero:  # a resumed run repeats the steps after its checkpoint
            _write_config(folder)
            lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
            self.file.write_text("".join(f"{line}\n" for line in lines if _precedes(line, trainer.global_step)))

    def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if step == self.last_step or step % trainer.log_every_n_steps:  # also called for each micro-batch
            return
        row = self.values(trainer, "train/")
        if not math.isfinite(row["loss"]):
            raise UserError(f"the loss is {row['loss']} at step {step:,}: lower model.lr")
        seconds, loader, data = time.perf_counter() - self.begin, trainer.train_dataloader, trainer.datamodule
        samples = (step - self.last_step) * trainer.accumulate_grad_batches * data.batch_size * trainer.world_size
        row["samples_per_second"] = round(samples / seconds, 1)
        row["data_wait"] = round((loader.waited - self.waited) / seconds, 4)
        self.write(trainer, "train", row)
        self.last_step = step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.write(trainer, "val", self.values(trainer, "val/"))

    def values(self, trainer: Trainer, prefix: str) -> dict[str, float]:
        """Return the latest logged values whose names have a prefix."""
        found = trainer.callback_metrics.items()
        return {name.removeprefix(prefix): value.item() for name, value in found if name.startswith(prefix)}

    def write(self, trainer: Trainer, split: str, values: dict[str, float]) -> None:
        """Write a row, and begin a new interval: the next row does not count a validation's time."""
        self.restart_interval(trainer)
        if trainer.is_global_zero:
            seconds = round(self.begin - self.started, 3)
            row = {"split": split, "step": trainer.global_step, **values, "seconds": seconds}
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")

    def restart_interval(self, trainer: Trainer) -> None:
        """Begin to measure time and waiting for batches."""
        self.begin, self.waited = time.perf_counter(), getattr(trainer.train_dataloader, "waited", 0.0)


class SaveConfig(SaveConfigCallback):
    """Saves config.yaml as LightningCLI does, and gives the options to the loggers."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in trainer.loggers:
            logger.log_hyperparams(yaml.safe_load(self.parser.dump(self.config, skip_none=False)))


def _write_config(folder: Path) -> None:
    """Write config.json: the options of config.yaml, versions, commit and command line."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = folder / "config.yaml"
    config = yaml.safe_load(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    versions = {"python": platform.python_version(), "torch": torch.__version__, "lightning": version("lightning")}
    record = {"config": config, "versions": versions, "commit": _commit(), "command": sys.argv}
    (folder / "config.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _precedes(line: str, step: int) -> bool:
    """Whether a row stays when the run is resumed at a step, which validates again."""
    try:
        row = json.loads(line)
        return bool(row["step"] < step or (row["step"] == step and row["split"] == "train"))
    except (ValueError, KeyError, TypeError):
        return False  # cut off by a crash


def _commit() -> str:
    """Return the commit of this code, with -dirty if files differ from it; empty without git."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
