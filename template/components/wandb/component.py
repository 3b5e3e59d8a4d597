"""Weights & Biases: offline in the folder `wandb` of the run.

It logs online if the environment has WANDB_MODE=online.
"""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config_base import Section
from .tracker import PROJECT, Row, Tracker


@dataclass(frozen=True)
class WandbConfig(Section):
    """Metrics in Weights & Biases."""

    enabled: bool = False
    """Log to Weights & Biases: offline, unless the environment has WANDB_MODE=online."""


class Wandb(Tracker):
    """Logs to one run of W&B by its id, which a resumed run continues.

    W&B takes no row of an earlier step.
    """

    name = "wandb"

    def open(
        self,
        folder: Path,
        kept: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        # it would send errors to Sentry, also offline
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        kept.setdefault("id", uuid.uuid4().hex[:12])
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=kept["id"],
            resume="allow",
            dir=folder,
            config=about.pop("config", {}) | {"about": about},
            mode=mode,
            settings=wandb.Settings(console="off"),
        )

    def send(self, row: Row) -> None:
        import wandb

        values: dict[str, Any] = dict(row.scalars)
        for name, value in row.images.items():
            values[name] = wandb.Image(value.numpy())
        for name, value in row.histograms.items():
            values[name] = wandb.Histogram(value.numpy())
        self.run.log(
            row.prefixed(values),
            step=row.step,
        )

    def close(
        self,
        error: BaseException | None,
    ) -> None:
        self.run.finish(exit_code=0 if error is None else 1)
