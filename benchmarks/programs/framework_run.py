"""Train the rendered project `proj` with some of its framework's defaults enabled: `log`, `csv`, `bar`, `checkpoints`.

python framework_run.py log,csv --config configs/default.yaml
"""

import importlib
import sys
from typing import Any


def main() -> None:
    """Change the framework as the first argument says, then train with the options that follow."""
    changes = set(sys.argv[1].split(","))
    modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("train", "config", "distributed")]
    train, config, distributed = modules
    if "no-lomo" in changes:  # Accelerate looks for the package lomo_optim in every step
        importlib.import_module("accelerate.optimizer").is_lomo_available = lambda: False  # type: ignore[attr-defined]
    if "log" in changes:
        train.Module = logging_module(train.Module)
    if "csv" in changes:
        loggers = importlib.import_module("lightning.pytorch.loggers")
        train.extras = lambda run: {"logger": loggers.CSVLogger(run.folder)}  # as in extras.py
    kind = getattr(train, "LightningConfig", config.Config)
    flags = {"bar": "enable_progress_bar", "checkpoints": "enable_checkpointing"}
    options = [f"--trainer.{flag}=true" for change, flag in flags.items() if change in changes]
    with distributed.start("cpu") as world:
        train.train(config.parse("benchmark", "", [*sys.argv[2:], *options], kind), world)


def logging_module(module: type[Any]) -> type[Any]:
    """Return the project's LightningModule with a call of `self.log` in each training step."""

    class LogsLoss(module):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("logged_loss", loss)
            return loss

    return LogsLoss


if __name__ == "__main__":
    main()
