"""Train the model, in plain PyTorch.

Start it on one process, on four, to go on after a stop, and to see every value:

    python -m <package>.train --config configs/default.yaml
    torchrun --standalone --nproc-per-node 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help
"""

import gc
import json
import math
import sys
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from . import checkpoint, data, distributed, loaders, model, optim, speed
from .config import Config, as_dict, parse
from .distributed import World
from .errors import UserError, in_one_line
from .loaders import EvalOrder, Plan, TrainOrder
from .log import RunLog
from .metrics import Meter, evaluate


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the metrics of the held-out samples.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint; or the loss is not finite.
    """
    torch.manual_seed(cfg.run.seed)
    precision = speed.setup(cfg.speed, world.device)
    samples = data.load(cfg.data)
    plan = Plan.make(cfg.train, len(samples.train), world.world_size)
    held_out = EvalOrder(len(samples.val), plan.micro_batch, world.rank, world.world_size)
    prepare = data.Prepare(samples.spec, cfg.data).to(world.device)
    raw = speed.place(model.build(cfg.model, samples.spec), cfg.speed, world.device)
    optimizer, scaler = optim.build(raw, cfg.optim), precision.scaler()
    peak = optim.peak_rate(cfg.optim, plan.global_batch)

    fixed: dict[str, Any] = {"model": asdict(cfg.model), "data": asdict(samples.spec), "train samples": plan.samples}
    fixed |= {"global batch": plan.global_batch, "run.seed": cfg.run.seed}
    about = {"fixed": fixed, "config": as_dict(cfg)}
    folder, resumed = open_run(cfg, fixed, world)
    step, updates = 0, 0  # optimizer steps tried, and those of them that fp16 did not skip
    results: dict[str, float] = {}
    if resumed is not None:
        state = checkpoint.read_state(resumed, world.device)
        checkpoint.load_weights(raw, state["model"], resumed)
        optim.restore(optimizer, state["optimizer"])
        if state["scaler"] and scaler.is_enabled():
            scaler.load_state_dict(state["scaler"])
        step, updates = state["step"], state["updates"]
        results = checkpoint.read_manifest(resumed)["metrics"]
        if world.is_main:
            checkpoint.set_aside_after(resumed)

    ddp = distributed.wrap(raw, world)
    net = speed.compiled(ddp, cfg.speed)
    judge = net if ddp is raw else speed.compiled(raw, cfg.speed)
    workers = loaders.worker_count(cfg.loader, samples.in_memory)
    order = TrainOrder(plan, world.rank, cfg.run.seed, step)
    batches = loaders.batches(samples.train, order, cfg.loader, workers, world)
    eval_every = cfg.train.eval_every or plan.steps_per_epoch
    save_every = cfg.checkpoint.every or plan.total_steps
    meter, since, first_of_row = Meter(world), time.perf_counter(), step

    with RunLog(folder, cfg.log, world.is_main, step, plan.total_steps) as log, speed.quiet_gc():
        while step < plan.total_steps:
            rate, momentum = optim.schedule(cfg.optim, peak, updates, plan.total_steps)
            optim.set_rate(optimizer, rate, momentum)
            for micro in range(plan.accumulate):
                generator = distributed.noise(world.device, cfg.run.seed, step, micro * world.world_size + world.rank)
                batch = prepare(next(batches), True, generator)
                with distributed.reducing(ddp, micro == plan.accumulate - 1):
                    with precision.autocast():
                        loss, metrics = net(*batch)
                    scaler.scale(loss / plan.accumulate).backward()
                meter.add(metrics)
            grad_norm, updated = optim.update(optimizer, scaler, raw.parameters(), cfg.optim.clip)
            step, updates = step + 1, updates + updated
            log.step()

            last = step == plan.total_steps
            evaluates = last or step % eval_every == 0
            saves = evaluates or step % save_every == 0
            if saves or step % cfg.log.every == 0:
                row = {**meter.read(), "lr": rate, "grad_norm": grad_norm.item()}
                _check_finite(row, step, precision.format)
                seconds, since = time.perf_counter() - since, time.perf_counter()
                row["samples_per_second"] = (step - first_of_row) * plan.global_batch / seconds
                first_of_row = step
                log.row("train", step, row)
            if saves:
                distributed.share_buffers(raw, world)
            if evaluates:
                val_batches = loaders.batches(samples.val, held_out, cfg.loader, workers, world)
                results = evaluate(judge, val_batches, prepare, precision.autocast(), world)
                log.row("val", step, results)
            if saves and world.is_main:
                state = {"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
                state |= {"step": step, "updates": updates}
                checkpoint.save(folder / "checkpoints", step, state, {**about, "metrics": results}, cfg.checkpoint.keep)
            if saves:
                gc.collect()
                since = time.perf_counter()
        log.finish(results)
    return results


def open_run(cfg: Config, fixed: dict[str, Any], world: World) -> tuple[Path, Path | None]:
    """Make the folder of a new run, or find that of one to continue and its newest good checkpoint.

    Raises:
        UserError: a new run's folder exists; or the one to continue has no good checkpoint, or is of another model.
    """
    found = ""
    if cfg.run.resume is not None and world.is_main:
        wanted = cfg.run.dir / str(cfg.run.name) if cfg.run.resume == "auto" else Path(cfg.run.resume)
        found = str(checkpoint.find(wanted) or "")
    found = world.share(found)
    if found and not Path(found).exists():
        raise UserError(f"the main rank resumes from {found}, which is not here: share run.dir between the machines")
    if found:
        checkpoint.check_same(Path(found), fixed)
    if cfg.run.resume not in (None, "auto"):
        if not found:
            raise UserError(
                f"run.resume={cfg.run.resume} has no good checkpoint: give a run's folder, or a checkpoint's"
            )
        return Path(found).parent.parent, Path(found)
    folder = cfg.run.dir / (cfg.run.name or world.share(datetime.now().strftime("%Y-%m-%d_%H-%M-%S")))
    if world.is_main:
        _make_folder(cfg, folder)
    return folder, Path(found) if found else None


def _make_folder(cfg: Config, folder: Path) -> None:
    """Make a run's folder with the config in it, unless it exists and is not to be continued."""
    try:
        folder.mkdir(parents=True, exist_ok=cfg.run.resume == "auto")
        (folder / "config.json").write_text(json.dumps(as_dict(cfg), indent=2) + "\n", encoding="utf-8")
    except FileExistsError as error:
        raise UserError(f"{folder} exists: continue it with --run.resume auto, or give another --run.name") from error
    except OSError as error:
        raise UserError(f"cannot write the run's folder {folder} ({error.strerror}): give another --run.dir") from error


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
    except UserError as error:
        distributed.leave(in_one_line(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
