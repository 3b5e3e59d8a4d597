"""Weights & Biases: offline, in the folder `wandb` of the run, unless the variable WANDB_MODE says `online`.

`wandb sync runs/<name>/wandb/offline-run-*` sends it later.
"""

import os
import uuid

import wandb

from .follow import Followed, Row


class Tracker:
    """Logs to one run of W&B, by its id; W&B takes no row of an earlier step than the last."""

    KEEPS_PLACE = True

    def __init__(self, run: Followed) -> None:
        mode = os.environ.get("WANDB_MODE") or "offline"
        identity = run.record.get("id") or uuid.uuid4().hex[:12]
        run.keep(id=identity)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.project,
            name=run.folder.name,
            id=identity,
            resume="allow",
            dir=run.folder,
            config={**run.config, "provenance": run.about},
            mode=mode,  # type: ignore[arg-type,unused-ignore]  # a word of the user's
            settings=wandb.Settings(console="off"),
        )
        if self.run.url:
            run.keep(url=self.run.url)

    def send(self, rows: list[Row]) -> None:
        for row in rows:
            self.run.log(row.named(), step=row.step)

    def close(self) -> None:
        self.run.finish()
