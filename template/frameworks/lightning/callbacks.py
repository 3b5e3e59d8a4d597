"""What the run does around the steps of Lightning's loop."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as lightning

from .errors import UserError
from .hooks import Hook
from .run import Run
from .trainer_config import check_trainer


class LogAndSave(lightning.Callback):
    """The hooks of the run before a step; metrics, validation and checkpoints after it.

    Lightning's Tuner removes all callbacks while it tries steps, which then have no effect on the run.
    """

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        check_trainer(trainer, module.run.parts.plan.accumulate)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        size, planned = getattr(trainer.datamodule, "batch_size", None), module.run.parts.plan.micro_batch
        if size not in (None, planned):
            raise UserError(f"batch_size is {size} and train.micro_batch {planned}: set train.micro_batch to {size}")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        run: Run = module.run
        if run.micro_step == 1:  # the first micro-batch of the step has just been prepared
            run.begin_step()
            if not run.parts.scaler.is_enabled():
                run.before_update()  # sets the learning rate, before other callbacks read it

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        if module.run.parts.scaler.is_enabled():
            module.run.before_update()

    def on_train_batch_end(self, trainer: Any, module: Any, *batch: Any) -> None:
        run: Run = module.run
        progress = run.progress
        if run.micro_step == 0 and progress.should_log:  # otherwise nothing synchronizes with the device
            logged = trainer.callback_metrics
            run.log_metrics({name: logged[name] for name in module.own_names["train"] if name in logged})
            if progress.should_save and not (progress.should_validate and trainer.enable_validation):
                run.save()
        trainer.should_stop = trainer.should_stop or progress.done  # a callback of yours may have set it

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        run: Run = module.run
        logged = trainer.callback_metrics
        names = module.own_names["val"] - {f"val_{name}" for name in module.results}
        run.add_results({**{name: float(logged[name]) for name in sorted(names) if name in logged}, **module.results})
        run.save()
        trainer.should_stop = trainer.should_stop or run.progress.done


def log_to(trainer: lightning.Trainer, run: Run) -> None:
    """Pass the rows of metrics to the loggers of the Trainer, as `train/loss` and so on."""

    def log(split: str, step: int, values: Mapping[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics({f"{split}/{name}": value for name, value in values.items()}, step)
            logger.save()

    run.log.sinks.append(log)


class CallbackStates(Hook):
    """The states of your callbacks in the checkpoints of the run."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, LogAndSave)]

    def state_dict(self) -> dict[str, Any]:
        """Return the states, and what callbacks add to a checkpoint of Lightning."""
        module = self.trainer.lightning_module
        added: dict[str, Any] = {"state_dict": module.state_dict()}
        for callback in self.callbacks:
            callback.on_save_checkpoint(self.trainer, module, added)
        return {"callbacks": {callback.state_key: callback.state_dict() for callback in self.callbacks}, "added": added}
