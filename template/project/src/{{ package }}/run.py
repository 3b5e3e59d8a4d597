"""A run in any framework: its state, and what happens around its steps."""

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import distributed, faults, optim, techniques
from .config import as_dict
from .console import shown
from .contracts import Batch
from .errors import Stopped, Unfrozen
from .faults import heartbeat, interval
from .faults.saver import Saver
from .faults.stop import Requests
from .loaders import Batches, TrainOrder
from .log import RunLog, check_numbers
from .metrics import Meter, evaluate
from .parts import Parts
from .phase_times import OF_PLACE, PhaseTimes
from .progress import Progress


class Run:
    """State shared by the training loops of all frameworks. `open_run` makes one."""

    def __init__(
        self,
        parts: Parts,
        progress: Progress,
        log: RunLog,
        order: TrainOrder,
        train_loader: Batches,
        val_loader: Batches,
        requests: Requests,
        resumed: Path | None,
        state: dict[str, Any],
    ) -> None:
        self.parts, self.progress, self.log, self.folder = parts, progress, log, log.folder
        self.order, self.train_loader, self.val_loader = order, train_loader, heartbeat.Counted(val_loader, self)
        self.train_batches = iter(train_loader)
        self.times = PhaseTimes()
        if parts.world.device.type != "cpu":
            from .device_times import DeviceTimes

            self.times = DeviceTimes(parts.world.device, parts.cfg.speed.step_graph)
        make_shards = partial(techniques.shards, parts.cfg.dist, parts.world)
        self.saver = Saver(self.folder / "checkpoints", parts.cfg.checkpoint, parts.world, make_shards)
        self.requests, self.resumed, self.state = requests, resumed, state
        self.results: dict[str, float] = state.get("results", {})
        """Metrics of the last validation, and the checkpoint that the run was resumed from."""
        self.meter = Meter(parts.world)
        self.saved_step = progress.step if resumed else 0
        """The step of the last checkpoint."""
        self.unfreeze_step = techniques.unfreeze_step(parts.cfg, progress.step)
        self.grad_norm = torch.zeros(())
        self.lr = 0.0
        self.micro_step = 0
        """Micro-batches of the present step."""
        self.stragglers: Any = None
        if parts.world.world_size > 1:
            from .faults.stragglers import Stragglers

            self.stragglers = Stragglers(parts.model, parts.world, self.times)
        self.at("fetching a batch")
        self.generator = torch.default_generator
        self.row_first_step = progress.step
        self.skipped_before = progress.step - progress.updates
        """Steps that fp16 skipped before this run was resumed."""

    def __deepcopy__(self, memo: object) -> "Run":
        return self  # a process has one; Lightning copies what refers to it

    def at(self, phase: str) -> None:
        """Record where this rank is, in words of `hang_cause.PHASES`, which shows that the run does not hang."""
        self.place = (self.progress.step, phase, self.micro_step)
        self.times.begin(OF_PLACE.get(phase, "other"))
        if self.stragglers is not None:
            self.stragglers.at(phase)

    def begin(self, eval_model: nn.Module | None = None) -> None:
        """Continue where the run was stopped: between two rows of metrics, or in a validation by `eval_model`.

        DistributedDataParallel has made the buffers of all ranks equal before.
        """
        interval.restore(self.state, self.meter, self.parts.model, self.parts.hooks, self.parts.world)
        self.state = {}
        self.times.begin_row(self.progress)
        if self.progress.validation_due and eval_model is not None:
            self.validate(eval_model)
            self.save()

    def begin_step(self) -> None:
        """Call the hooks at the start of a step.

        Raises:
            UserError: the last checkpoint could not be written.
        """
        self.saver.check()
        for hook in self.parts.hooks:
            hook.before_step(self.progress.step)

    def before_update(self) -> None:
        """Set the learning rate of the coming update: after backward is queued, as fp16 waits for the step before."""
        self.at("optimizer step")
        if self.parts.scaler.is_enabled():
            self.count_updates()
        self.lr, momentum = self.parts.schedule(self.progress.updates)
        optim.set_lr(self.parts.optimizer, self.lr, momentum)

    def fetch(self) -> Batch:
        """Return the next micro-batch; the host's wait for it is the `data_wait` of the row."""
        self.times.begin("data_wait")
        batch = next(self.train_batches)
        self.times.begin("other")
        return batch

    def prepare(self, batch: Batch) -> Batch:
        """Turn a training batch into the model's input, and seed the generator for it."""
        self.seed_batch()
        prepared: Batch = self.parts.prepare(batch, True, self.generator)
        return prepared

    def seed_batch(self) -> None:
        """Seed the generator that augmentation and dropout of the coming micro-batch draw from."""
        world, seed = self.parts.world, self.parts.cfg.run.seed
        index = self.micro_step * world.world_size + world.rank
        self.micro_step += 1
        self.at("forward and backward")
        self.generator = distributed.seeded_generator(world.device, seed, self.progress.step, index)

    def count_step(self, grad_norm: Tensor) -> None:
        """Count an optimizer step. With fp16 it may not have updated the weights, which is known when it has ended."""
        self.grad_norm, self.micro_step = grad_norm, 0
        self.progress.step += 1
        self.at("fetching a batch")
        if not self.progress.should_log:  # whose times are still to be read
            self.times.begin_step(self.progress)
        if not self.parts.scaler.is_enabled() or self.parts.cfg.train.ema:  # the average needs to know it at once
            self.count_updates()
        self.log.step()

    def count_updates(self) -> None:
        """Count the steps that updated the weights; with fp16, this waits for the device."""
        updates = self.progress.step - self.skipped_before - techniques.skipped_steps(self.parts.scaler)
        if updates > self.progress.updates:
            self.progress.updates = updates
            for hook in self.parts.hooks:
                hook.after_update(updates)

    def end_step(self, grad_norm: Tensor, eval_model: nn.Module) -> None:
        """Count an optimizer step, then log, validate and save where that is due.

        `grad_norm` is the global gradient norm before clipping, `eval_model` the model to validate with.

        Raises:
            UserError: the loss or the gradient is not finite, or a checkpoint cannot be written.
        """
        if self.micro_step == 0:  # the run went back to a checkpoint
            return
        self.count_step(grad_norm)
        if self.progress.should_log:
            self.log_metrics()
        if self.progress.should_validate:
            self.validate(eval_model)
        if self.progress.should_save:
            self.save()
        if not self.progress.done:
            self.follow(self.requests.due())

    def follow(self, requested: Mapping[str, str]) -> None:
        """Do what all ranks are to do here: `save` a checkpoint, or `stop`, which saves one if the last is older.

        Raises:
            Stopped: the run is to stop.
            UserError: the loss or the gradient is not finite, or the checkpoint cannot be written.
        """
        progress, parts = self.progress, self.parts
        if progress.step == self.unfreeze_step:
            requested = {"stop": "train.unfreeze_step", **requested}
        if requested and progress.eval_every is not None and self.saved_step != progress.step:
            for hook in parts.hooks:
                hook.before_log()
            self.count_updates()
            between = interval.state(self.meter, parts.model, parts.hooks, parts.world)
            total, count = between["row"].get("loss", (torch.zeros(()), torch.ones(())))  # no step since the last row
            row = {"loss": (total.sum() / count.sum()).item(), "grad_norm": float(self.grad_norm)}
            faults.check_finite(row, progress.step, parts.precision.format, self.folder)
            self.save(between)
        if "stop" in requested:
            self.saver.wait()
            if requested["stop"] == "train.unfreeze_step":
                raise Unfrozen(self.folder)
            how = f"continue with --run.resume {'auto' if parts.cfg.run.name else shown(self.folder)}"
            how = "a range test keeps no checkpoint" if progress.eval_every is None else how
            raise Stopped(f"stopped at step {progress.step} ({requested['stop']}); {how}")

    def log_metrics(self, extra: Mapping[str, Tensor] | None = None) -> None:
        """Log the training metrics since the last row, and extra scalars: one copy from the device.

        Raises:
            UserError: the loss or the gradient is not finite, so that nothing of it is saved.
        """
        parts, progress = self.parts, self.progress
        self.at("logging")
        for hook in parts.hooks:
            hook.before_log()
        self.count_updates()
        seconds_outside = self.stragglers.read() if self.stragglers is not None else None
        row = {**self.meter.read({**(extra or {}), "grad_norm": self.grad_norm}, seconds_outside), "lr": self.lr}
        if self.stragglers is not None:
            self.stragglers.name_slowest(row)
        self.times.add_to(row, (progress.step - self.row_first_step) * parts.plan.global_batch)
        ended = [hook.on_metrics(row) for hook in parts.hooks]
        progress.ended = any(ended)
        if progress.ended or "loss" not in row:  # every step of the row was skipped
            return
        faults.check_finite(row, progress.step, parts.precision.format, self.folder)
        if parts.scaler.is_enabled() or parts.cfg.train.on_nonfinite != "stop":
            row["skipped_steps"] = progress.step - progress.updates
        self.row_first_step = progress.step
        self.times.begin_row(progress)
        self.log.row("train", progress.step, row)
        self.at("fetching a batch")

    @contextmanager
    def eval_weights(self) -> Iterator[None]:
        """Validate with the averaged weights, where there are some, and with the same buffers on every rank."""
        self.times.begin("outside")
        with ExitStack() as stack:
            for hook in self.parts.hooks:
                stack.enter_context(hook.eval_weights())
            techniques.sync_buffers(self.parts.model, self.parts.world)
            yield

    def validate(self, eval_model: nn.Module) -> None:
        """Compute the metrics of the validation samples over all ranks, and log them."""
        parts, requested = self.parts, {}

        def batches() -> Iterator[Batch]:
            for batch in self.val_loader:
                requested.update(self.requests.due())
                if "stop" in requested:
                    return
                yield batch

        def read(meter: Meter) -> dict[str, float]:
            return {} if "stop" in requested else self.read_results(meter)

        with self.eval_weights():
            autocast, counted = parts.precision.autocast(), parts.eval_order.counted
            results = evaluate(eval_model, batches(), parts.prepare, autocast, parts.world, counted, read)
        if "stop" in requested:
            self.follow(requested)
        self.add_results(results)

    def read_results(self, meter: Meter) -> dict[str, float]:
        """Return the metrics of a validation, with those of hooks, while the model has the weights that it used."""
        results = meter.read()
        for hook in self.parts.hooks:
            hook.on_validation(results, self.parts.model)
        check_numbers(results)
        return results

    def add_results(self, results: dict[str, float]) -> None:
        """Log a validation, and compare it with the best."""
        self.results, self.progress.validated = results, self.progress.step
        self.log.row("val", self.progress.step, results)
        self.progress.best.add(results, self.progress.step)
        self.at("fetching a batch")

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides the weights, the optimizer and the scaler."""
        self.progress.forward_batch = faults.agreed_forward_batch(self.progress.forward_batch, self.parts.world)
        state = self.progress.state_dict()
        for hook in self.parts.hooks:
            state |= hook.state_dict()
        return state

    def save(self, between: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint, with `interval.state` if there were steps since the last row of metrics.

        With `checkpoint.asynchronous` it is written while the run goes on.

        Raises:
            UserError: it, or the one before, cannot be written, or training has diverged; older ones are untouched.
        """
        parts = self.parts
        self.at("saving")
        techniques.sync_buffers(parts.model, parts.world)
        state = {"model": parts.model.state_dict(), "optimizer": parts.optimizer.state_dict()}
        state |= {"scaler": parts.scaler.state_dict(), **self.state_dict(), **(between or {})}
        faults.check_state(state, self)
        about = {"fixed": parts.identity, "config": as_dict(parts.cfg), "metrics": self.results}
        for hook in parts.hooks:
            about |= hook.manifest()
        self.saver.save(state, about, self.progress.best.step)
        gc.collect()
        self.saved_step = self.progress.step
        self.requests.saved()
        self.at("fetching a batch")

    def load(self, path: Path) -> None:
        """Load a checkpoint of this run, as at its start."""
        from .load_checkpoint import load_checkpoint

        self.state = load_checkpoint(self.parts, self.progress, path)
        self.results, self.meter = self.state["results"], Meter(self.parts.world)
        self.begin()

    def finish(self) -> None:
        """Wait for the last checkpoint, and report how the run ended."""
        self.saver.wait()
        for hook in self.parts.hooks:
            hook.finish(self.folder, self.parts.world.is_main)
        best, facts = self.progress.best, {}
        if self.progress.stopped_early:
            facts["stopped"] = f"early: no better {best.monitor} for {self.progress.patience} validations"
        if self.results:
            facts["validation"] = ", ".join(f"{name} {value:.4g}" for name, value in self.results.items())
            found = f"{best.monitor} {best.value:.4g} at step {best.step}"
            facts["best"] = found if best.step else f"none, as {best.monitor} was never finite"
        facts |= {"time": f"{time.perf_counter() - self.log.started:.1f} s", "files": f"in {shown(self.folder)}"}
        self.log.console.facts(facts)
