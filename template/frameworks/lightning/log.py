"""The record of a run: metrics.jsonl, config.json, summary.json, last.ckpt."""

import json
import math
import platform
import sys
import time
from contextlib import suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from .errors import UserError
from .summary import describe_versions, keep_rows, write_summary, write_text

TRAINER = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision")
"""Options of the Trainer that a resumed run must repeat."""
MAY_CHANGE = {"data.num_workers", "data.pin_memory", "data.timeout"}
MAY_CHANGE |= {"model.compile_mode", "model.channels_last"}
"""Options of data and model that it need not repeat."""


class RunLog(SaveConfigCallback):
    """Saves the options, and a row of metrics every `log_every_n_steps` and per validation.

    CSVLogger deletes its file when a run is resumed, and has no times.
    """

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options of the command, as they are in config.yaml."""
        options: dict[str, Any] = yaml.safe_load(self.parser.dump(self.config, skip_none=False))
        return options

    def save_config(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        stage: str,
    ) -> None:
        """Give the options to the loggers, besides config.yaml."""
        for logger in trainer.loggers:
            logger.log_hyperparams(self.options)

    def setup(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        stage: str,
    ) -> None:
        """Write no config.yaml yet, as a run that is refused keeps the one it has."""

    def compare(self, trainer: Any) -> None:
        """Refuse to resume with other options: the optimizer's state has the old ones."""
        file = Path(trainer.log_dir) / "config.json"
        recorded = _read(file).get("config")
        if recorded is None:
            rank_zero_info(
                f"{file} is missing or damaged: options are not compared with those of before"
            )
            return
        before = _training_options(recorded)
        changes = []
        for name, value in _training_options(self.options).items():
            if value != before.get(name):
                changes.append(f"{name}={before.get(name)}, and not {value}")
        if changes:
            raise UserError(
                f"{file.parent} was trained with {'; '.join(changes)}: "
                "put back what it was, or use another trainer.logger.version"
            )

    def on_load_checkpoint(
        self,
        trainer: Any,
        pl_module: LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Refuse to resume with other data."""
        if trainer.training and trainer.datamodule.changes:
            raise UserError(f"{trainer.datamodule.changes}: put the data back, or train a new run")

    def on_train_start(
        self,
        trainer: Any,
        pl_module: LightningModule,
    ) -> None:
        super().setup(trainer, pl_module, "fit")
        self.file = Path(trainer.log_dir) / "metrics.jsonl"
        self.started = time.perf_counter()
        self._begin_interval(trainer)
        if trainer.is_global_zero:
            # the seconds of a resumed run go on
            self.started -= keep_rows(self.file, trainer.global_step, validated=True)
            self._write_config(trainer)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
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
        if not trainer.sanity_checking:
            self._write(trainer, "val", {})

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self._write_summary(trainer)

    def on_exception(self, trainer: Any, *_: Any) -> None:
        self._write_summary(trainer)

    def _write_summary(self, trainer: Any) -> None:
        """Write how the run ends; its best validation is that of the checkpoint callback."""
        if not trainer.is_global_zero or not hasattr(self, "file"):  # not started
            return
        monitor = "loss"
        mode = "min"
        total_steps = 0.0
        for callback in trainer.callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.monitor:
                monitor = callback.monitor.removeprefix("val/")
                mode = callback.mode
            if isinstance(callback, Timer) and (callback.time_remaining() or 0) < 0:
                total_steps = math.inf  # stopped by max_time
        write_summary(self.file.parent, monitor, mode, total_steps)

    def _write(
        self,
        trainer: Any,
        split: str,
        speed: dict[str, float],
    ) -> None:
        """Write a row and begin an interval: the speed does not count the time of a validation."""
        self._begin_interval(trainer)
        step = trainer.global_step
        row: dict[str, Any] = {"split": split, "step": step}
        for name, value in trainer.callback_metrics.items():
            kind, _, metric = name.partition("/")
            if kind != split:
                continue
            row[metric] = value.item()
            if split == "val" and not math.isfinite(row[metric]):
                rank_zero_info(f"{name} is {row[metric]} in the validation of step {step:,}")
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
        file = self.file.with_name("config.json")
        step = trainer.global_step
        before = _read(file) if step else {}
        starts = [start for start in before.pop("starts", []) if start < step]
        history = before.pop("history", [])
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": version("lightning"),
            "threads": str(torch.get_num_threads()),
        }
        changes = describe_versions(before.get("versions", {}), versions)
        if changes:
            print(changes)
        record = {
            "config": self.options,
            "steps": trainer.estimated_stepping_batches,
            "versions": versions,
            "command": sys.argv,
        }
        if before and before != record:
            history.append({"until_step": step} | before)
        text = json.dumps({"starts": [*starts, step], **record, "history": history}, indent=2)
        write_text(file, f"{text}\n")


class BestModelCheckpoint(ModelCheckpoint):
    """Saves best.ckpt after the best validation; ModelCheckpoint also counts NaN as the best."""

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint: that of ModelCheckpoint, as 0.4.0 used it."""
        return super().state_key.removeprefix("Best")

    def check_monitor_top_k(self, trainer: Any, current: Tensor | None = None) -> bool:
        """Return whether a validation is among the best."""
        if current is None or current.isfinite():
            return super().check_monitor_top_k(trainer, current)
        return False


class LastModelCheckpoint(ModelCheckpoint):
    """Saves last.ckpt every few steps, after each validation, and at the end.

    ModelCheckpoint also saves between a step and its validation, which a resumed run then skips.
    """

    def __init__(self, every_n_train_steps: int = 100) -> None:
        super().__init__(
            filename="last",
            every_n_train_steps=every_n_train_steps,
            enable_version_counter=False,
        )

    def on_train_batch_end(self, trainer: Any, *given: Any) -> None:
        """Save after a whole step, unless a validation follows."""
        loop = trainer.fit_loop.epoch_loop
        epochs = trainer.check_val_every_n_epoch
        batch = loop.total_batch_idx if epochs is None else loop.batch_idx
        interval = trainer.val_check_batch or math.inf  # None: a time
        validates = trainer.enable_validation and (batch + 1) % interval == 0
        if epochs and (trainer.current_epoch + 1) % epochs:
            validates = False
        is_step = (
            trainer.is_last_batch or not (loop.batch_idx + 1) % trainer.accumulate_grad_batches
        )
        if is_step and not validates:
            super().on_train_batch_end(trainer, *given)

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.on_train_end(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:
            trainer.save_checkpoint(f"{self.dirpath}/last.ckpt")


def _read(file: Path) -> dict[str, Any]:
    """Return the record of a run; empty if there is none."""
    with suppress(OSError, TypeError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}


def _training_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that decide what is trained, by their names on the command line."""
    found = {"seed_everything": options["seed_everything"]}
    for name in TRAINER:
        found[f"trainer.{name}"] = options["trainer"][name]
    for section in ("model", "data", "optimizer", "lr_scheduler"):
        for name, value in (options.get(section) or {}).items():
            found[f"{section}.{name}"] = value
    return {name: value for name, value in found.items() if name not in MAY_CHANGE}
