"""Train the model with Accelerate. A run that has a name is resumed by the same command.

python -m <package>.train --config configs/default.yaml --run.name first    # one process
accelerate launch --config_file configs/accelerate.yaml -m <package>.train --config
configs/default.yaml
"""

import gc
import math
from contextlib import closing
from itertools import cycle
from typing import Any

import torch

from . import data, distributed, loader, optim, precision
from .accelerator import Checkpoints, Config, GlobalBatches, create, torch_loader, trackers
from .checkpoint import lock
from .config import parse
from .contracts import needs_gradients_in_validation
from .distributed import World
from .errors import Stopped, one_line
from .log import Log
from .metrics import Meter, check_finite, compute_loss, evaluate
from .model import build
from .run import Run, run_folder
from .signals import StopRequests


def train(cfg: Config, world: World | None = None) -> dict[str, float]:
    """Train as configured, or resume the run of this name; return the metrics of the last validation."""
    world = world or World(0, 1, distributed.find_device(cfg.run.device))
    torch.manual_seed(cfg.run.seed)
    folder = run_folder(cfg.run, world)

    # Data. Validation batches are not prepared: Accelerate would repeat samples, to give each rank
    # whole batches.
    train_set, val_set, spec = data.load(cfg.data)
    plan = loader.BatchPlan.make(cfg.train, len(train_set), world.size)
    cfg.check_cuda_graphs(world.size)
    prepare = data.Prepare(spec, cfg.data).to(world.device)
    order = GlobalBatches(plan, world, cfg.run.seed)
    core_loader = loader.Loader(train_set, order, cfg.loader, world)
    train_loader = torch_loader(core_loader, order)
    val_order, num_val_batches = loader.val_batches(len(val_set), plan.micro_batch, world)
    val_loader = loader.Loader(val_set, val_order, cfg.loader, world)

    # Model, optimizer, schedule. A prepared torch schedule would advance once per rank in each
    # step.
    accelerator, precision_name = create(cfg, world, plan, folder)
    model = build(cfg.model, spec)
    if precision.use_channels_last(cfg.speed, world.device):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    adamw, schedule = optim.adamw(model, cfg.optim), optim.OneCycle(cfg.optim, plan)
    net, optimizer, train_loader = accelerator.prepare(model, adamw, train_loader)
    if cfg.speed.compile == "model":
        # in place: the names of parameters stay the same
        net.compile(dynamic=False, mode=cfg.speed.compile_mode)

    # Resume from the newest intact checkpoint of this run. Sample order and random numbers follow
    # from the step.
    run = Run(cfg, world, folder, plan, model, adamw)
    skipped = torch.zeros((), device=world.device)  # steps that fp16 skipped
    checkpoints = Checkpoints(folder, cfg.run.keep, world, accelerator, net)
    settings = [
        {key: it for key, it in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    if (saved := checkpoints.load({})) is not None:
        for group, kept in zip(optimizer.param_groups, settings, strict=True):
            group.update(kept)  # hyperparameters are those of the config, not of the checkpoint
        run.step, run.skipped_steps = saved["step"], saved["skipped_steps"]
        skipped.fill_(saved["skipped"])
    order.first_step = run.step
    batches = iter(train_loader)

    def save() -> None:
        log.flush()
        checkpoints.save(
            {"step": run.step, "skipped": skipped.item(), "skipped_steps": run.skipped_steps}
        )

    def write(split: str, row: dict[str, float]) -> None:
        log.train(row) if split == "train" else log.write(split, row)
        accelerator.log({f"{split}/{name}": value for name, value in row.items()}, step=run.step)

    def validate() -> dict[str, float]:
        results = evaluate(
            net,
            val_loader,
            num_val_batches,
            prepare,
            accelerator.autocast,
            world,
            checkpoints.is_sharded or needs_gradients_in_validation(model),
        )
        checkpoints.save_best(run.step, results, cfg.train.monitor, cfg.train.monitor_mode)
        write("val", results)
        return results

    def clip() -> torch.Tensor:
        """Clip the gradients of the global batch; return their norm before that, which inf does not clip."""
        if cfg.optim.clip_value is not None:
            accelerator.clip_grad_value_(net.parameters(), cfg.optim.clip_value)
        norm: Any = accelerator.clip_grad_norm_(net.parameters(), cfg.optim.clip or math.inf)
        # of FSDP's shards
        found: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if (
            accelerator.scaler is not None
        ):  # `optimizer_step_was_skipped` is never true for a fused optimizer
            skipped.add_(~found.isfinite())
        return found

    stop_requests = StopRequests(world, cfg.run.hours)
    with (
        lock(folder, world),
        closing(Log(run)) as log,
        closing(val_loader),
        closing(batches),
        trackers(accelerator, cfg),
        stop_requests,
    ):
        log.first_lines(precision_name, schedule.peak, core_loader, val_loader)
        # A resumed run validates again, as it may have ended between a checkpoint and its
        # validation.
        results = validate() if plan.validates(run.step) else {}
        meter, grad_norm, micro_numbers = (
            Meter(world),
            torch.tensor(math.nan),
            cycle(range(plan.accumulate)),
        )
        gc.freeze()  # the garbage collector skips what exists now
        while run.step < plan.total_steps:
            loaded = log.wait_for(batches)
            generator = distributed.seed_batch(world, cfg.run.seed, run.step, next(micro_numbers))
            # augmentation draws from the generator, as dropout does
            batch = prepare(loaded, True, generator)
            with accelerator.accumulate(net):
                with accelerator.autocast():
                    loss, metrics = compute_loss(net, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    lr, grad_norm = schedule.set(optimizer, run.step - run.skipped_steps), clip()
                optimizer.step()
                optimizer.zero_grad(set_to_none=cfg.optim.set_to_none)
            meter.add(metrics)
            if not accelerator.sync_gradients:
                continue
            run.step += 1
            logs, validates = run.step % cfg.log.every == 0, plan.validates(run.step)
            stop = stop_requests.should_stop()
            if logs or validates or stop:
                scalars = {"grad_norm": grad_norm} | (
                    {"skipped": skipped} if accelerator.scaler else {}
                )
                row = meter.read(scalars)  # the only synchronization with the device
                check_finite(row, run.step, fp16=accelerator.scaler is not None)
                if (
                    logs or validates
                ):  # not at a stop, so that a resumed run repeats the uninterrupted one
                    run.skipped_steps = int(row.get("skipped", run.skipped_steps))
                write("train", row | {"lr": lr, **log.speed()})
            if (
                validates or stop
            ):  # saved before the validation, so that an error in it costs no training
                save()
            if validates:
                results = validate()
            if stop and run.step < plan.total_steps:
                raise Stopped(f"stopped at step {run.step:,}: resume with --run.name {folder.name}")
        log.done(results)
    return results


def main() -> None:
    """Train with the options of the command line."""
    with one_line():
        cfg = parse(Config)
        with distributed.init(cfg.run.device) as world:
            train(cfg, world)


if __name__ == "__main__":
    main()
