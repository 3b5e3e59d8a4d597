"""What you add to Lightning's Trainer: callbacks, loggers, a profiler, plugins. This file is yours."""

from typing import Any

from .run import Run


def extras(run: Run) -> dict[str, Any]:
    """Return arguments for `lightning.Trainer`, by their names; plain values can be options as well, `trainer.*`.

    For example, with `from lightning.pytorch.callbacks import LearningRateMonitor` and
    `from lightning.pytorch.loggers import CSVLogger`:

        return {"callbacks": [LearningRateMonitor()], "logger": CSVLogger(run.folder)}

    Callbacks find validation metrics as `val_loss` and so on. What the config decides, such as `gradient_clip_val`, is
    refused with the option to use instead.
    """
    return {}
