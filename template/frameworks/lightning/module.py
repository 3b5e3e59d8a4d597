"""The model and its optimizer as a LightningModule."""

import json
import math
import warnings
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor

from . import data, distributed, faults, model, optim, speed, techniques
from .config import as_dict, from_dict
from .contracts import Batch, call, can_predict, inputs_of, loss_and_metrics
from .data import Spec
from .distributed import World
from .errors import UserError
from .framework import RunState
from .metrics import Meter
from .readers.common import lists_to_tuples
from .run import Run


class Module(lightning.LightningModule):
    """A run's model, to train; or, by `Module.load_from_checkpoint(path)`, a trained one, for predictions."""

    model: Any

    def __init__(
        self, run: Run | None = None, config: dict[str, Any] | None = None, spec: dict[str, Any] | None = None
    ) -> None:
        """`config` and `spec` are the hyperparameters in a checkpoint, which describe the model without a run."""
        super().__init__()
        if run is not None:
            config, spec = as_dict(run.parts.cfg), asdict(run.parts.data.spec)
        assert config is not None
        assert spec is not None
        self.save_hyperparameters({"config": config, "spec": json.loads(json.dumps(spec, default=str))})
        self.run, self.run_state = run, RunState(run) if run is not None else None
        if run is not None:
            self.model, prepare = run.parts.model, run.parts.prepare
            self.lr = optim.peak_lr(run.parts.cfg.optim, run.parts.plan.global_batch)
            """The peak learning rate, which `Tuner.lr_find` sets."""
        else:
            cfg, its_spec = from_dict(config), Spec(**{key: lists_to_tuples(value) for key, value in spec.items()})
            self.model = speed.place(model.build(cfg.model, its_spec), cfg.speed, torch.device("cpu"))
            prepare = data.Prepare(its_spec, cfg.data)
        # In tuples, as they are not part of the module: their weights would be in checkpoints, and twice.
        self.prepare = (prepare,)
        self.net = (speed.compiled(self.model, run.parts.cfg.speed) if run is not None else self.model,)
        self.meter = Meter(World(0, 1, torch.device("cpu")))
        self.counted: float = math.inf
        """Batches of this rank to count; one more than others have is repeated samples."""
        self.generator = torch.default_generator
        self.results: dict[str, float] = {}
        """Metrics of the last validation or test."""
        self.save_due = False
        """Whether the run saves a checkpoint as soon as all callbacks have seen the step or the validation."""
        self.eval_weights = ExitStack()
        self.grad_norm = torch.zeros(())
        self.own_names: dict[str, set[str]] = {"train": set(), "val": set()}
        """Names of the values that you log in training steps, and in validation."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.run is not None and self.run_state is not None:
            state = self.run_state.state_dict()
            techniques.sync_buffers(self.model, self.run.parts.world)  # of the weights in the checkpoint, too
            if self.run.micro_step > 0:
                twice = "a resumed run counts some batches twice, in its next row of metrics and in BatchNorm"
                warnings.warn(f"saved within a step: {twice}", stacklevel=2)
            state.pop("lightning", None)  # the states of callbacks, which Lightning saves itself
            checkpoint["run"] = state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.run is None:  # to predict, with the averaged weights if the run kept some
            averaged = checkpoint.get("run", {}).get("ema", {})
            weights = checkpoint["state_dict"] | {f"model.{name}": value for name, value in averaged.items()}
            cfg = from_dict(checkpoint["hyper_parameters"]["config"])
            checkpoint["state_dict"] = techniques.plain_weights(weights, cfg)
        if self.run is None or self.run_state is None or not self.trainer.training:
            return
        if not {"run", "optimizer_states"} <= checkpoint.keys():
            raise UserError("the checkpoint has no state of a run: this project did not write it, or only the weights")
        weights = {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}
        self.run_state.load_state_dict({**checkpoint["run"], "model": weights})  # they are loaded after this
        checkpoint["loops"]["fit_loop"] |= self._loops()

    def _loops(self) -> dict[str, Any]:
        """Return the state of Lightning's loops after the last step, whatever hook has saved the checkpoint."""
        assert self.run is not None
        step, plan, due = self.run.progress.step, self.run.parts.plan, int(self.run.progress.validation_due)
        epoch, inside = divmod(step, plan.steps_per_epoch)
        begun = epoch + (inside > 0)
        epochs = _counts(epoch) | {"ready": begun, "started": begun}
        validation = _counts(0) | {"ready": due, "started": due}  # one that was begun is not skipped
        stepped = {"total": _counts(step), "current": _counts(inside)}
        batches = {"total": _counts(step * plan.accumulate), "current": _counts(inside * plan.accumulate)}
        passed = self.trainer.enable_validation and step % (self.run.progress.eval_every or plan.total_steps) == 0
        return {
            "epoch_progress": {"total": epochs, "current": epochs},
            "epoch_loop.state_dict": {"_batches_that_stepped": step - passed},  # the loop then counts this one again
            "epoch_loop.batch_progress": {**batches, "is_last_batch": False},
            "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": stepped, "zero_grad": stepped}},
            "epoch_loop.val_loop.batch_progress": {"total": validation, "current": validation, "is_last_batch": False},
        }

    def forward(self, *inputs: Tensor) -> Any:
        """Return the model's predictions for prepared inputs.

        Raises:
            UserError: the model has no `predict`.
        """
        if not can_predict(self.model):
            raise UserError("the model has no `predict` method for new inputs: add one in model.py")
        return self.model.predict(*inputs)

    def on_train_start(self) -> None:
        assert self.run is not None
        assert self.run_state is not None
        assert self.trainer.strategy.model is not None
        parts = self.run.parts
        faults.step_check(self.run)  # which begins to watch the run
        self.run_state.restore_settings()
        techniques.compress_gradients(self.trainer.strategy.model, parts.cfg.dist, parts.world)
        if self.lr != optim.peak_lr(parts.cfg.optim, parts.plan.global_batch):  # it was set
            schedule = techniques.build_schedule(parts.cfg.optim, self.lr, parts.plan.total_steps)
            self.run.parts = replace(parts, schedule=schedule)
        self.run.begin()
        if self.run.progress.validation_due and self.trainer.enable_validation and self.trainer.ckpt_path is None:
            self.trainer.validating = True  # the validation in which the run was stopped
            self.trainer.fit_loop.epoch_loop.val_loop.run()
            self.trainer.training = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.run is None:
            raise UserError("this module was loaded to predict: train with Module(run), as train.py does")
        return self.run.parts.optimizer

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        if self.run is not None and self.trainer.training:
            prepared = self.run.prepare(batch)
            self.run.times.begin("other")  # callbacks
            return prepared
        prepared = self.prepare[0].to(self.device)(batch, False, self.generator)
        return prepared

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        assert self.run is not None
        self.run.times.begin("forward")
        loss, metrics = loss_and_metrics(self.net[0], batch)
        self.run.times.begin("other")
        self.run.meter.add(metrics)
        return loss

    def on_before_backward(self, loss: Tensor) -> None:
        if self.run is not None:
            self.run.times.begin("backward")

    def on_after_backward(self) -> None:
        if self.run is not None:
            self.run.times.begin("other")

    def configure_gradient_clipping(self, optimizer: Any, *limits: Any, **named: Any) -> None:
        assert self.run is not None
        parts, cfg = self.run.parts, self.run.parts.cfg.optim
        if parts.scaler.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
            parts.scaler.unscale_(optimizer)  # Lightning leaves it to fused optimizers: too late for clipping
        self.grad_norm = optim.clip(list(self.model.parameters()), cfg.clip, cfg.clip_value)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        assert self.run is not None
        allows = faults.step_check(self.run)
        if allows is not None:
            result = closure()  # here, as the optimizer's step would update in any case
            if not allows(list(self.model.parameters())):
                self.run.count_step(self.run.grad_norm)
                return
            closure = partial(_given, result)
        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        optimizer.zero_grad(set_to_none=self.run.parts.cfg.optim.set_to_none)
        self.run.count_step(self.grad_norm)

    def optimizer_zero_grad(self, *step: Any) -> None:
        pass  # `optimizer_step` does it, so that gradients take no memory in the next forward pass

    def on_validation_model_zero_grad(self) -> None:
        pass

    def on_train_batch_end(self, *step: Any) -> None:
        self._save_if_due()
        assert self.run is not None
        progress = self.run.progress
        validates = progress.validation_due and self.trainer.enable_validation  # right after this
        if self.run.micro_step == 0 and not progress.done and not validates:
            self.run.follow(self.run.requests.due())

    def on_validation_end(self) -> None:
        self._save_if_due()
        if self.run is not None and self.trainer.state.fn == "fit" and not self.run.progress.done:
            self.run.follow(self.run.requests.due())

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if self.run is None or self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            return
        requested = self.run.requests.due()
        if "stop" in requested:
            self.eval_weights.close()
            with torch.inference_mode(False):
                self.run.follow(requested)

    def _save_if_due(self) -> None:
        """Write a checkpoint of the run, after all callbacks, whose states are in it."""
        if self.save_due and self.run is not None:
            self.save_due = False
            self.run.save()

    def on_validation_epoch_start(self) -> None:
        parts = self.run.parts if self.run is not None else None
        world = parts.world if parts else World(self.global_rank, self.trainer.world_size, self.device)
        self.meter = Meter(world, validates=True)
        self.counted = parts.eval_order.counted if parts else math.inf
        self.generator = distributed.seeded_generator(self.device, 0, 0, 0)
        if self.run is not None:
            self.eval_weights.enter_context(self.run.eval_weights())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, metrics = loss_and_metrics(self.net[0], batch)
        if batch_idx < self.counted:
            self.meter.add(metrics)

    def on_validation_epoch_end(self) -> None:
        self._log_results("val")

    def on_test_epoch_start(self) -> None:
        self.on_validation_epoch_start()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_test_epoch_end(self) -> None:
        self._log_results("test")

    def _log_results(self, split: str) -> None:
        """Log the metrics of a whole split; while the run trains, it passes them to the loggers itself."""
        fits = self.run is not None and self.trainer.state.fn == "fit" and not self.trainer.sanity_checking
        self.results = self.run.read_results(self.meter) if fits and self.run is not None else self.meter.read()
        self.eval_weights.close()
        named = {f"{split}_{name}": value for name, value in self.results.items()}
        super().log_dict(named, logger=self.trainer.state.fn != "fit", sync_dist=True)

    def on_predict_epoch_start(self) -> None:
        self.on_validation_epoch_start()

    def predict_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the predictions for the inputs of a batch, which come before its targets."""
        return call(self, inputs_of(getattr(self.model, "predict", self.forward), batch))

    def on_predict_epoch_end(self) -> None:
        self.eval_weights.close()

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log a value, as Lightning does; the run adds it to its own rows of metrics."""
        super().log(name, value, *args, **options)
        if self._trainer is not None and not self.trainer.training:
            self.own_names["val"].add(name)
        elif options.get("on_step") is not False and "epoch" not in (self._current_fx_name or ""):
            self.own_names["train"].add(name)


def _given(result: Any) -> Any:
    return result


def _counts(number: int) -> dict[str, int]:
    return dict.fromkeys(("ready", "started", "processed", "completed"), number)
