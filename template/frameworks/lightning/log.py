"""The record of a run: metrics.jsonl, a row of metrics per line, and config.json, its options, versions and commit."""

import gc
import json
import math
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from .errors import UserError


class SaveConfig(SaveConfigCallback):
    """Saves config.yaml as LightningCLI does, and gives the options to the loggers."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for logger in trainer.loggers:
            logger.log_hyperparams(yaml.safe_load(self.parser.dump(self.config, skip_none=False)))


class MetricsLog(Callback):
    """Writes a row every `log_every_n_steps` and one per validation, into the folder of the logger."""

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        self.file, self.started, self.last_step = (
            folder / "metrics.jsonl",
            time.perf_counter(),
            trainer.global_step,
        )
        self.begin, self.waited = self.started, 0.0
        # step of the last validation before a resume, which Lightning may repeat
        self.validated = -1
        gc.freeze()  # the garbage collector skips what exists now
        if trainer.is_global_zero and not trainer.fast_dev_run:  # which has no config.yaml
            config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
            versions = {name: version(name) for name in ("lightning", "torch")} | {
                "python": sys.version.split()[0]
            }
            about = {"versions": versions, "commit": _commit(), "command": sys.argv}
            record = {"config": config, "steps": trainer.estimated_stepping_batches, **about}
            (folder / "config.json").write_text(
                json.dumps(record, indent=2) + "\n", encoding="utf-8"
            )
            lines, kept = (
                self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else [],
                "",
            )
            with suppress(ValueError):  # of a line that a crash cut off
                for line in lines:  # a resumed run repeats the steps after its checkpoint
                    row = json.loads(line)
                    if row["step"] <= self.last_step:
                        kept += f"{line}\n"
                        self.validated = row["step"] if row["split"] == "val" else self.validated
            self.file.write_text(kept, encoding="utf-8")

    def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, *_: Any) -> None:
        steps = trainer.global_step - self.last_step
        if (
            steps == 0 or trainer.global_step % trainer.log_every_n_steps
        ):  # also called for each micro-batch
            return
        seconds, waited = (
            time.perf_counter() - self.begin,
            trainer.train_dataloader.waited - self.waited,
        )
        samples = (
            steps
            * trainer.accumulate_grad_batches
            * trainer.datamodule.batch_size
            * trainer.world_size
        )
        speed = {
            "samples_per_second": round(samples / seconds, 1),
            "data_wait": round(waited / seconds, 4),
        }
        self.write(trainer, "train", speed)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.write(trainer, "val", {})

    def write(self, trainer: Any, split: str, speed: dict[str, float]) -> None:
        """Write a row, and begin a new interval: the next row does not count a validation's time."""
        self.begin, self.last_step = time.perf_counter(), trainer.global_step
        self.waited = trainer.train_dataloader.waited
        logged = trainer.callback_metrics.items()
        values = {
            name.removeprefix(f"{split}/"): it.item()
            for name, it in logged
            if name.startswith(f"{split}/")
        }
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"the loss is {values['loss']} at step {self.last_step:,}: lower model.lr"
            )
        repeated = split == "val" and self.last_step == self.validated
        if trainer.is_global_zero and not trainer.fast_dev_run and not repeated:
            row = {"split": split, "step": self.last_step, **values, **speed}
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(
                    json.dumps(row | {"seconds": round(self.begin - self.started, 3)}) + "\n"
                )


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
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
