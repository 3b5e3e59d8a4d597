"""What the run does around the steps of Lightning's loop."""

import io
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch

from . import techniques
from .errors import UserError
from .hooks import Hook
from .run import Run
from .trainer_config import check_trainer


class Log(lightning.Callback):
    """The first callback: the hooks and the learning rate of a step before it, the rows of metrics after it.

    Lightning's Tuner removes all callbacks while it tries steps, so that these have no effect on the run.
    """

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        if stage == "fit":
            check_trainer(trainer, module.run.parts.cfg, module.run.parts.plan.accumulate)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        run: Run = module.run
        states = CallbackStates(trainer, run)
        if states.callbacks:
            run.parts = replace(run.parts, hooks=(*run.parts.hooks, states))
            if run.resumed and trainer.ckpt_path is None:  # Lightning restores them from its own checkpoints
                states.restore(run.resumed)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        module.run.requests.handle_signals()  # Lightning has just taken SIGTERM
        if trainer.progress_bar_callback is not None:
            module.run.log.console.close_bar()  # one is enough; loading a checkpoint opened it again
        for callback in trainer.checkpoint_callbacks:  # it would save again in the first micro-batch, within a step
            callback._last_global_step_saved = trainer.global_step
        size, planned = getattr(trainer.datamodule, "batch_size", None), module.run.parts.plan.micro_batch
        if size not in (None, planned):
            raise UserError(f"batch_size is {size} and train.micro_batch {planned}: set train.micro_batch to {size}")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        run: Run = module.run
        if run.micro_step == 1:  # the first micro-batch of the step has just been prepared
            run.begin_step()
            if not run.parts.scaler.is_enabled():
                run.before_update()  # sets the learning rate, before other callbacks read it
                run.at("forward and backward")
                run.times.begin("other")

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        if module.run.parts.scaler.is_enabled():
            module.run.before_update()
        module.run.at("optimizer step")

    def on_train_batch_end(self, trainer: Any, module: Any, *batch: Any) -> None:
        run: Run = module.run
        if run.micro_step == 0 and run.progress.should_log:  # otherwise nothing synchronizes with the device
            logged = trainer.callback_metrics
            run.log_metrics({name: logged[name] for name in module.own_names["train"] if name in logged})
            module.save_due = run.progress.should_save and not (
                run.progress.should_validate and trainer.enable_validation
            )
        trainer.should_stop = trainer.should_stop or run.progress.done  # a callback of yours may have set it

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            logged = trainer.callback_metrics
            names = module.own_names["val"] - {f"val_{name}" for name in module.results}
            own = {name: float(logged[name]) for name in sorted(names) if name in logged}
            module.run.add_results({**own, **module.results})
            module.save_due = True
            trainer.should_stop = trainer.should_stop or module.run.progress.done

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        run: Run = module.run
        if run.progress.done and run.progress.validation_due and trainer.enable_validation:  # resumed between the two
            run.validate(module.model.to(run.parts.world.device))
            run.save()


def log_to(trainer: lightning.Trainer, run: Run) -> None:
    """Pass the rows of metrics to the loggers of the Trainer, as `train/loss` and so on."""

    def log(split: str, step: int, values: Mapping[str, float]) -> None:
        module: Any = trainer.lightning_module
        own = {f"{split}/{name}": value for name, value in values.items() if name not in module.own_names[split]}
        for logger in trainer.loggers:  # they have what you log from Lightning
            logger.log_metrics(own, step)
            logger.save()

    run.log.sinks.append(log)


class CallbackStates(Hook):
    """The states of your callbacks, in the checkpoints of the run."""

    def __init__(self, trainer: Any, run: Run) -> None:
        self.trainer, self.run = trainer, run
        self.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, Log)]

    def state_dict(self) -> dict[str, Any]:
        """Return the states, and what callbacks add to a checkpoint; averaged weights as those of `train.ema`."""
        module = self.trainer.lightning_module
        added: dict[str, Any] = {"state_dict": module.state_dict()}
        for callback in self.callbacks:
            callback.on_save_checkpoint(self.trainer, module, added)
        weights = added.pop("state_dict")
        averaged = {name.removeprefix("model."): value for name, value in weights.items()}
        found = {"ema": averaged} if added.pop("current_model_state", None) else {}
        states = {callback.state_key: callback.state_dict() for callback in self.callbacks if callback.state_dict()}
        states, added = ({name: kept[name] for name in kept if _can_load(name, kept[name])} for kept in (states, added))
        return {**found, "lightning": {"callbacks": states, "added": added}} if states or added else found

    def restore(self, resumed: Path) -> None:
        """Restore them from the checkpoint that the run was resumed from."""
        module, parts = self.trainer.lightning_module, self.run.parts
        state = techniques.read_state(resumed, parts.model, parts.optimizer, parts.cfg.dist)
        if "lightning" not in state:
            return
        current = module.state_dict()
        states, loaded = state["lightning"]["callbacks"], {"state_dict": current, **state["lightning"]["added"]}
        if "averaging_state" in loaded:  # of WeightAveraging
            averaged = {f"model.{name}": value for name, value in state["ema"].items()}
            loaded |= {"state_dict": averaged, "current_model_state": current}
        for callback in self.callbacks:
            callback.on_load_checkpoint(self.trainer, module, loaded)
            if callback.state_key in states:
                callback.load_state_dict(states[callback.state_key])


def _can_load(name: str, state: Any) -> bool:
    """Whether a checkpoint with this state can be loaded, which executes nothing; warn if not."""
    stream = io.BytesIO()
    try:
        torch.save(state, stream)
        stream.seek(0)
        torch.load(stream, weights_only=True)
    except Exception as error:  # whatever an object of yours raises
        why = f"it has more than tensors and plain values ({type(error).__name__})"
        warnings.warn(f"checkpoints of the run leave out the state of {name}: {why}", stacklevel=2)
        return False
    return True
