"""Train the model, in plain PyTorch.

Start it on one process, on four, to go on after a stop, and to see every value:

    python -m <package>.train --config configs/default.yaml
    torchrun --standalone --nproc-per-node 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help
"""

import gc
import math
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, astuple
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from . import checkpoint, data, distributed, loaders, model, optim, speed, switches
from .config import Config, as_dict, parse
from .distributed import World
from .errors import UserError, in_one_line
from .loaders import Batch, EvalOrder, Plan, TrainOrder
from .log import RunLog
from .metrics import Best, Meter, Sums, evaluate
from .run import open_run


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the metrics of the held-out samples.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint; or the loss is not finite.
    """
    torch.manual_seed(cfg.run.seed)
    precision = speed.setup(cfg, world.device)
    samples = data.load(cfg.data)
    plan = Plan.make(cfg.train, len(samples.train), world.world_size)
    order = TrainOrder(plan, world.rank, cfg.run.seed)
    held_out = EvalOrder(len(samples.val), plan.micro_batch, world.rank, world.world_size)
    batches = loaders.open_loader(samples.train, order, cfg, samples.in_memory, world)
    val_batches = loaders.open_loader(samples.val, held_out, cfg, samples.in_memory, world)
    prepare = data.Prepare(samples.spec, cfg.data).to(world.device)
    raw = speed.place(model.build(cfg.model, samples.spec), cfg.speed, world.device)
    best = Best(cfg.train.monitor, cfg.train.monitor_mode or "min")

    def sample() -> Batch:
        prepared: Batch = prepare(next(iter(val_batches)), False, torch.Generator(world.device))
        return prepared

    switches.check(cfg, plan.accumulate, precision, world)
    watch = switches.watch(cfg, world, raw, sample, plan.total_steps)
    work = switches.work(cfg, samples.spec, sample, precision, world)
    if best.monitor != "loss":  # a wrong name is told now, and not after the first validation
        best.check(evaluate(raw, islice(val_batches, 1), prepare, precision.autocast(), world))
    raw = switches.rebuild(raw, cfg, precision, world)
    optimizer, scaler = optim.build(raw, cfg.optim), precision.scaler()
    peak = optim.peak_rate(cfg.optim, plan.global_batch)
    optim.schedule(cfg.optim, peak, 0, plan.total_steps)  # refuses a warm-up that is too long
    ema, sweep = switches.average(cfg, raw), switches.range_test(cfg, peak, plan.total_steps)

    fixed: dict[str, Any] = {"model": asdict(cfg.model), "data": asdict(samples.spec), "train samples": plan.samples}
    fixed |= {"global batch": plan.global_batch, "run.seed": cfg.run.seed, "optim.name": cfg.optim.name}
    about = {"fixed": fixed, "config": as_dict(cfg)}
    folder, resumed = open_run(cfg, fixed, world)
    step, updates = 0, 0  # optimizer steps tried, and those of them that fp16 did not skip
    results: dict[str, float] = {}
    if resumed is not None:
        state = checkpoint.read_state(resumed, torch.device("cpu"))
        if cfg.dist.strategy == "fsdp":
            from .switches import fsdp

            state = fsdp.share_out(state, raw, optimizer)
        checkpoint.load_weights(raw, state["model"], resumed)
        optim.restore(optimizer, state["optimizer"])
        if state["scaler"] and scaler.is_enabled():
            scaler.load_state_dict(state["scaler"])
        if ema is not None:
            ema.load(state.get("ema", state["model"]))
        step, updates = state["step"], state["updates"]
        if state["best"][:2] == [best.monitor, best.mode]:  # else it begins anew, by the new measure
            best = Best(*state["best"])
        del state
        results = checkpoint.read_manifest(resumed)["metrics"]
        if world.is_main:
            checkpoint.set_aside_after(resumed)

    ddp = distributed.wrap(raw, cfg.dist, world)
    net = speed.compiled(ddp, cfg.speed)
    judge = net if ddp is raw else speed.compiled(raw, cfg.speed)

    def forward_backward(batch: Batch, reduce: bool) -> Sums:
        with distributed.reducing(ddp, reduce):
            with precision.autocast():
                loss, metrics = net(*batch)
            scaler.scale(loss / plan.accumulate).backward()
        found: Sums = metrics
        return found

    def update() -> tuple[Tensor, bool]:
        return optim.update(optimizer, scaler, raw.parameters(), cfg.optim)

    compute, apply = switches.recorded(forward_backward, update, cfg, raw, optimizer, scaler)
    order.first_step = step
    coming = iter(batches)
    log_every = 1 if sweep else cfg.log.every
    eval_every = cfg.train.eval_every or plan.steps_per_epoch
    save_every = cfg.checkpoint.every or plan.total_steps
    patience = cfg.train.patience or math.inf
    meter, since, first_of_row = Meter(world), time.perf_counter(), step
    if watch is not None:
        watch.attach(raw, folder)

    with (
        RunLog(folder, cfg.log, world.is_main, step, plan.total_steps) as log,
        speed.quiet_gc(),
        watch or nullcontext(),
    ):
        while step < plan.total_steps and best.stale < patience:
            if watch is not None:
                watch.steady()
            rate, momentum = optim.schedule(cfg.optim, peak, updates, plan.total_steps)
            optim.set_rate(optimizer, rate, momentum)
            for micro in range(plan.accumulate):
                generator = distributed.noise(world.device, cfg.run.seed, step, micro * world.world_size + world.rank)
                batch = prepare(next(coming), True, generator)
                meter.add(compute(batch, micro == plan.accumulate - 1))
            grad_norm, updated = apply()
            step, updates = step + 1, updates + updated
            if ema is not None and updated:
                ema.update(updates)
            log.step()

            evaluates = sweep is None and (step == plan.total_steps or step % eval_every == 0)
            saves = evaluates or (sweep is None and step % save_every == 0)
            if not saves and step % log_every and step < plan.total_steps:
                continue  # nothing above waits for the device

            if watch is not None:
                watch.may_wait()
            row = {**meter.read(), "lr": rate, "grad_norm": grad_norm.item()}
            if sweep is not None and sweep.ended_by(row):
                break
            _check_finite(row, step, precision.format)
            seconds, since = time.perf_counter() - since, time.perf_counter()
            row["samples_per_second"] = (step - first_of_row) * plan.global_batch / seconds
            if work is not None:
                row |= work.rates(row["samples_per_second"])
            if scaler.is_enabled():
                row["skipped_steps"] = step - updates
            first_of_row = step
            log.row("train", step, row)
            if not saves:
                continue

            with nullcontext() if ema is None else ema.in_place():
                distributed.share_buffers(raw, world)
                if evaluates:
                    results = evaluate(judge, val_batches, prepare, precision.autocast(), world, held_out.own)
                    log.row("val", step, results)
                    best.see(results, step)
            distributed.share_buffers(raw, world)
            state = {"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
            state |= {"step": step, "updates": updates, "best": list(astuple(best))}
            if ema is not None:
                state["ema"] = ema.average
            checkpoint.save(
                folder / "checkpoints", state, {**about, "metrics": results}, cfg.checkpoint, best.step, world
            )
            gc.collect()
            since = time.perf_counter()
        if best.stale >= patience:
            log.say(
                f"stopped early: {best.monitor} has not been better than {best.value:.4g} for {patience} validations"
            )
        if sweep is None:
            log.finish(results)
        else:
            sweep.finish(folder, world.is_main)
    return results


def _check_finite(row: dict[str, float], step: int, precision: str) -> None:
    """Stop before a broken state is saved. An infinite gradient alone is no fault in fp16: that step was skipped."""
    broken = [key for key in ("loss", "grad_norm") if not math.isfinite(row[key])]
    if broken and not (broken == ["grad_norm"] and precision == "fp16"):
        raise UserError(f"{broken[0]} is {row[broken[0]]} at step {step}: lower optim.lr, or resume from a checkpoint")


def main(argv: list[str] | None = None) -> None:
    """Read the command line, train, and say where the results are."""
    try:
        cfg = parse(f"{__package__}.train", "Train the model.", argv)
        with distributed.start(cfg.run.device) as world:
            train(cfg, world)
        distributed.end(world)
    except UserError as error:
        distributed.leave(in_one_line(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
