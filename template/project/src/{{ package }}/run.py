"""One run, in whatever framework: its parts, its counters, and what happens between its steps."""

import gc
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, astuple
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from . import checkpoint, data, distributed, loaders, model, optim, speed, techniques
from .config import Config, as_dict
from .distributed import World
from .errors import UserError
from .loaders import Batch, EvalOrder, Plan, TrainOrder
from .log import RunLog
from .metrics import Best, Meter, evaluate
from .run_folder import open_folder


class Run:
    """Everything that a loop works with. As a context manager it holds the log and the instruments open.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint.
    """

    def __init__(self, cfg: Config, world: World) -> None:
        torch.manual_seed(cfg.run.seed)
        self.cfg, self.world = cfg, world
        self.precision = precision = speed.setup(cfg, world.device)
        samples = data.load(cfg.data)
        self.plan = plan = Plan.make(cfg.train, len(samples.train), world.world_size)
        self.order = TrainOrder(plan, world.rank, cfg.run.seed)
        self.held_out = EvalOrder(len(samples.val), plan.micro_batch, world.rank, world.world_size)
        self.batches = loaders.open_loader(samples.train, self.order, cfg, samples.in_memory, world)
        self.val_batches = loaders.open_loader(samples.val, self.held_out, cfg, samples.in_memory, world)
        self.prepare = data.Prepare(samples.spec, cfg.data).to(world.device)
        raw = speed.place(model.build(cfg.model, samples.spec), cfg.speed, world.device)
        self.best = Best(cfg.train.monitor, cfg.train.monitor_mode or "min")

        def sample() -> Batch:
            prepared: Batch = self.prepare(next(iter(self.val_batches)), False, torch.Generator(world.device))
            return prepared

        techniques.check(cfg, plan.accumulate, precision, world)
        self.watch = techniques.watch(cfg, world, raw, sample, plan.total_steps)
        self.work = techniques.work(cfg, samples.spec, sample, precision, world)
        if self.best.monitor != "loss":  # a wrong name is told now, and not after the first validation
            first = islice(self.val_batches, 1)
            self.best.check(evaluate(raw, first, self.prepare, precision.autocast(), world))
        self.model = techniques.rebuild(raw, cfg, precision, world)
        self.optimizer, self.scaler = optim.build(self.model, cfg.optim), precision.scaler()
        self.peak = optim.peak_rate(cfg.optim, plan.global_batch)
        optim.schedule(cfg.optim, self.peak, 0, plan.total_steps)  # refuses a warm-up that is too long
        self.ema = techniques.average(cfg, self.model)
        self.sweep = techniques.range_test(cfg, self.peak, plan.total_steps)

        self.fixed: dict[str, Any] = {"model": asdict(cfg.model), "data": asdict(samples.spec)}
        self.fixed |= {"train samples": plan.samples, "global batch": plan.global_batch}
        self.fixed |= {"run.seed": cfg.run.seed, "optim.name": cfg.optim.name}
        self.step, self.updates = 0, 0  # optimizer steps tried, and those of them that fp16 did not skip
        self.micro = 0  # micro-batches of the present step
        self.results: dict[str, float] = {}
        self.folder, resumed = open_folder(cfg, self.fixed, world)
        if resumed is not None:
            self._resume(resumed)
        self.order.first_step = self.step
        self.meter, self.ended = Meter(world), False
        self.eval_every = cfg.train.eval_every or plan.steps_per_epoch

    def _resume(self, found: Path) -> None:
        state = checkpoint.read_state(found, torch.device("cpu"))
        if self.cfg.dist.strategy == "fsdp":
            from .techniques import fsdp

            state = fsdp.share_out(state, self.model, self.optimizer)
        checkpoint.load_weights(self.model, state["model"], found)
        optim.restore(self.optimizer, state["optimizer"])
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.load(state.get("ema", state["model"]))
        self.step, self.updates = state["step"], state["updates"]
        if state["best"][:2] == [self.best.monitor, self.best.mode]:  # else it begins anew, by the new measure
            self.best = Best(*state["best"])
        self.results = checkpoint.read_manifest(found)["metrics"]
        if self.world.is_main:
            checkpoint.set_aside_after(found)

    def __enter__(self) -> Self:
        self.since, self.first_of_row = time.perf_counter(), self.step
        self.log = RunLog(self.folder, self.cfg.log, self.world.is_main, self.step, self.plan.total_steps)
        self.opened = ExitStack()
        self.opened.enter_context(self.log)
        self.opened.enter_context(speed.quiet_gc())
        if self.watch is not None:
            self.watch.attach(self.model, self.folder)
            self.opened.enter_context(self.watch)
        return self

    def __exit__(self, *error: Any) -> None:
        self.opened.__exit__(*error)

    @property
    def stopped_early(self) -> bool:
        """Whether so many validations in a row were no better that it has lost patience."""
        return self.best.stale >= (self.cfg.train.patience or math.inf)

    @property
    def done(self) -> bool:
        """Whether all steps are made, or it stops before: early, or at the end of a range test."""
        return self.ended or self.stopped_early or self.step >= self.plan.total_steps

    @property
    def validates(self) -> bool:
        """Whether the step just made is followed by a validation, which a range test has none of."""
        return self.sweep is None and (self.step == self.plan.total_steps or self.step % self.eval_every == 0)

    @property
    def saves(self) -> bool:
        """Whether it is followed by a checkpoint."""
        every = self.cfg.checkpoint.every or self.plan.total_steps
        return self.validates or (self.sweep is None and self.step % every == 0)

    @property
    def speaks(self) -> bool:
        """Whether it is followed by a row of metrics; if not, nothing of the step waits for the device."""
        every = 1 if self.sweep else self.cfg.log.every
        return self.step % every == 0 or self.step == self.plan.total_steps or self.saves

    def begin_step(self) -> None:
        """Set the learning rate of the coming step."""
        if self.watch is not None:
            self.watch.steady()
        self.rate, momentum = optim.schedule(self.cfg.optim, self.peak, self.updates, self.plan.total_steps)
        optim.set_rate(self.optimizer, self.rate, momentum)

    def prepared(self, batch: Batch) -> Batch:
        """Make the model's input of a training batch, on the device; dropout draws from the same generator."""
        chunk = self.micro * self.world.world_size + self.world.rank
        generator = distributed.noise(self.world.device, self.cfg.run.seed, self.step, chunk)
        self.micro += 1
        ready: Batch = self.prepare(batch, True, generator)
        return ready

    def end_step(self, grad_norm: Tensor, updated: bool) -> None:
        """Count the step; fp16 may have skipped its update."""
        self.grad_norm, self.micro = grad_norm, 0
        self.step, self.updates = self.step + 1, self.updates + updated
        if self.ema is not None and updated:
            self.ema.update(self.updates)
        self.log.step()

    def write_row(self, others: Mapping[str, float] | None = None) -> None:
        """Log what training came to since the row before, and other values if there are any.

        Raises:
            UserError: the loss or the gradient is not finite, so that nothing of it is saved.
        """
        if self.watch is not None:
            self.watch.may_wait()
        row = {**self.meter.read(), "lr": self.rate, "grad_norm": self.grad_norm.item()}
        if self.sweep is not None and self.sweep.ended_by(row):
            self.ended = True
            return
        _check_finite(row, self.step, self.precision.format)
        seconds, self.since = time.perf_counter() - self.since, time.perf_counter()
        row["samples_per_second"] = (self.step - self.first_of_row) * self.plan.global_batch / seconds
        if self.work is not None:
            row |= self.work.rates(row["samples_per_second"])
        if self.scaler.is_enabled():
            row["skipped_steps"] = self.step - self.updates
        self.first_of_row = self.step
        self.log.row("train", self.step, {**row, **(others or {})})

    @contextmanager
    def weights_to_judge(self) -> Iterator[None]:
        """Put the averaged weights into the model, where there are some, and the main rank's statistics everywhere."""
        with nullcontext() if self.ema is None else self.ema.in_place():
            distributed.share_buffers(self.model, self.world)
            yield

    def take(self, results: dict[str, float]) -> None:
        """Log a validation, and see whether it is the best."""
        self.results = results
        self.log.row("val", self.step, results)
        self.best.see(results, self.step)

    def save(self) -> None:
        """Write a checkpoint."""
        distributed.share_buffers(self.model, self.world)
        state: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"scaler": self.scaler.state_dict(), "step": self.step, "updates": self.updates}
        state["best"] = list(astuple(self.best))
        if self.ema is not None:
            state["ema"] = self.ema.average
        about = {"fixed": self.fixed, "config": as_dict(self.cfg), "metrics": self.results}
        checkpoint.save(self.folder / "checkpoints", state, about, self.cfg.checkpoint, self.best.step, self.world)
        gc.collect()
        self.since = time.perf_counter()

    def finish(self) -> None:
        """Say how it ended."""
        if self.sweep is not None:
            self.sweep.finish(self.folder, self.world.is_main)
            return
        if self.stopped_early:
            best = f"{self.best.monitor} has not been better than {self.best.value:.4g}"
            self.log.say(f"stopped early: {best} for {self.cfg.train.patience} validations")
        self.log.finish(self.results)


def _check_finite(row: dict[str, float], step: int, precision: str) -> None:
    """Stop before a broken state is saved. An infinite gradient alone is no fault in fp16: that step was skipped."""
    broken = [key for key in ("loss", "grad_norm") if not math.isfinite(row[key])]
    if broken and not (broken == ["grad_norm"] and precision == "fp16"):
        raise UserError(f"{broken[0]} is {row[broken[0]]} at step {step}: lower optim.lr, or resume from a checkpoint")
