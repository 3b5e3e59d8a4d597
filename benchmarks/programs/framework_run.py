"""Train the rendered project `proj` with some of its framework's defaults enabled: `log`, `csv`, `bar`, `checkpoints`.

python framework_run.py log,csv --config configs/default.yaml
"""

import importlib
import sys
from typing import Any


def main() -> None:
    """Change the framework as the first argument says, then train with the options that follow."""
    changes = set(sys.argv[1].split(","))
    train, config, distributed = (
        importlib.import_module(f"proj.{name}") for name in ("train", "config", "distributed")
    )
    if "no-lomo" in changes:  # Accelerate looks for the package lomo_optim in every step
        importlib.import_module("accelerate.optimizer").is_lomo_available = lambda: False  # type: ignore[attr-defined]
    if changes & {"csv", "bar", "checkpoints"}:
        enable(train, changes)
    if "log" in changes:
        log_loss(train.Module)
    with distributed.start("cpu") as world:
        train.train(config.parse("benchmark", "", sys.argv[2:]), world)


def enable(train: Any, changes: set[str]) -> None:
    """Give Lightning's Trainer what it has by default."""
    trainer, loggers = train.lightning.Trainer, importlib.import_module("lightning.pytorch.loggers")
    options: dict[str, Any] = {"logger": loggers.CSVLogger("logs")} if "csv" in changes else {}
    options |= {"enable_progress_bar": True} if "bar" in changes else {}
    options |= {"enable_checkpointing": True} if "checkpoints" in changes else {}
    train.lightning.Trainer = lambda **others: trainer(**{**others, **options})


def log_loss(module: Any) -> None:
    """Call `self.log` in each training step."""
    step = module.training_step

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = step(self, batch, batch_idx)
        self.log("logged_loss", loss)
        return loss

    module.training_step = training_step


if __name__ == "__main__":
    main()
