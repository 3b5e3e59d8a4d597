"""Train a Lightning project whose module logs a value, and whose callback reads the results of a validation."""

import importlib
import sys
from typing import Any

modules: list[Any] = [importlib.import_module(f"proj.{name}") for name in ("config", "distributed", "train")]
config, distributed, train = modules
training_step, make_trainer = train.Module.training_step, train.make_trainer


def log_and_step(self: Any, batch: Any, batch_idx: int) -> Any:
    """Log a value, as the user's own module may."""
    self.log("batches_seen", float(batch_idx + 1))
    return training_step(self, batch, batch_idx)


class ReadsResults(train.lightning.Callback):  # type: ignore[misc,name-defined]
    """Prints the validation loss."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        print("read", trainer.callback_metrics["val_loss"].item())


def make_trainer_with_callback(*arguments: Any) -> Any:
    """Add the callback to the trainer."""
    trainer = make_trainer(*arguments)
    trainer.callbacks.append(ReadsResults())
    return trainer


train.Module.training_step = log_and_step
train.make_trainer = make_trainer_with_callback
with distributed.start("cpu") as world:
    results = train.train(config.parse("test", "", sys.argv[1:]), world)
print("returned", results["loss"])
