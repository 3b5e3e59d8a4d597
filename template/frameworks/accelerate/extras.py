"""What you add to the Accelerator: trackers, a project folder, a profiler. This file is yours."""

from typing import Any

from .run import Run


def extras(run: Run) -> dict[str, Any]:
    """Return arguments for `Accelerator` and for its `init_trackers`, by their names there.

    For example, to have each row of metrics in Weights & Biases as well as in TensorBoard:

        return {
            "log_with": ["wandb", "tensorboard"],
            "project_name": "digits",
            "init_kwargs": {"wandb": {"name": run.folder.name}},
        }

    Trackers receive the metrics as `train/loss`, `val/loss` and so on. `project_dir` is the folder `accelerate` in that
    of the run. What the config decides, such as `mixed_precision`, is refused with the option to use instead.
    """
    return {}
