"""Train the model, in one process or several. A run that has a name is resumed by the same command.

python -m <package>.train --config configs/default.yaml --run.name first
torchrun --nproc-per-node 4 -m <package>.train --config configs/default.yaml
"""

import gc
import math
import time
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from . import data, distributed, loader, optim, precision
from .checkpoint import Checkpoints, lock
from .component import ForwardBackward, OptimizerStep, only
from .components import Config, build_components
from .config import parse
from .distributed import World
from .errors import Stopped, UserError, one_line
from .log import Log, Run
from .metrics import Meter, Metrics, call, evaluate
from .model import build


def train(cfg: Config, world: World | None = None) -> dict[str, float]:
    """Train as configured, or resume the run of this name; return the metrics of the last validation."""
    world = world or World(0, 1, distributed.find_device(cfg.run.device))
    torch.manual_seed(cfg.run.seed)
    precision_name, autocast, scaler = precision.setup(cfg.speed, world.device)
    components = build_components(cfg, world)

    # Data. The ranks take micro-batches of one global order in turn, which depends on (seed, epoch)
    # alone.
    train_set, val_set, spec = data.load(cfg.data)
    for component in components:
        train_set, val_set = component.wrap_dataset(train_set), component.wrap_dataset(val_set)
    plan = loader.BatchPlan.make(cfg.train, len(train_set), world.size)
    cfg.check_cuda_graphs(plan.accumulate)
    prepare = data.Prepare(spec, cfg.data).to(world.device)
    val_order, val_counted = loader.val_batches(len(val_set), plan.micro_batch, world)
    val_batches = loader.Loader(val_set, val_order, cfg.loader, world)

    # Model. `model` has the weights and names of a checkpoint; `net`, which is called, may be DDP
    # around it.
    model: nn.Module = build(cfg.model, spec)
    for component in components:
        model = component.convert_model(model)
    net = only(components, lambda it: it.parallelize(model, cfg))
    if net is None:
        if cfg.speed.channels_last is True or (
            cfg.speed.channels_last == "auto" and world.device.type == "cuda"
        ):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        net = model = model.to(world.device)
        if world.size > 1:
            ids = None if world.device.index is None else [world.device.index]
            net = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    if cfg.speed.compile == "model":
        # in place: the names of parameters stay the same
        net.compile(dynamic=False, mode=cfg.speed.compile_mode)

    # Optimizer and schedule.
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = only(components, lambda it: it.build_optimizer(model, cfg)) or optim.adamw(
        model, cfg.optim
    )
    schedule = only(components, lambda it: it.build_schedule(plan, cfg)) or optim.OneCycle(
        cfg.optim, plan
    )

    # Resume from the newest intact checkpoint of this run. Sample order and random numbers follow
    # from the step.
    # for random numbers of a step that must be equal on all ranks
    step_generator = torch.Generator()
    folder = cfg.run.dir / (cfg.run.name or world.broadcast(time.strftime("%Y-%m-%d-%H-%M-%S")))
    run = Run(cfg, world, folder, plan, model, optimizer, step_generator)
    skipped = torch.zeros((), device=world.device)  # steps that fp16 skipped
    on_train_end = ExitStack()
    for component in components:
        component.on_train_start(run)
        on_train_end.callback(component.on_train_end, run)
    checkpoints = only(components, lambda it: it.checkpointer(run)) or Checkpoints(
        folder, cfg.run.keep, world
    )

    def state() -> dict[str, Any]:  # the content of a checkpoint
        return {
            "step": run.step,
            "skipped": (skipped.item(), run.known_skipped),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "optimizer_class": type(optimizer).__name__,
            "scaler": scaler.state_dict(),
            "components": {component.name: component.state_dict() for component in components},
        }

    if (saved := checkpoints.load(state())) is not None:
        run.step, run.known_skipped = saved["step"], saved["skipped"][1]
        skipped.fill_(saved["skipped"][0])
        model.load_state_dict(saved["model"])
        optim.load_state(optimizer, saved)
        scaler.load_state_dict(saved["scaler"])
        for component in components:
            component.load_state_dict(saved["components"].get(component.name, {}))
    order = loader.train_batches(plan, world, cfg.run.seed, run.step)
    batches = iter(loader.Loader(train_set, order, cfg.loader, world))

    no_sync = getattr(net, "no_sync", nullcontext)  # of DDP, and of what `parallelize` returns

    def forward_backward(batch: Any, share: float, last: bool) -> Metrics:
        """Add the gradients of a micro-batch; only the last backward pass of a step all-reduces them."""
        with nullcontext() if last else no_sync():
            with autocast():
                loss, metrics = call(net, batch)
            scaler.scale(loss if share == 1 else loss * share).backward()
        return metrics

    def optimizer_step() -> Tensor:
        """Unscale, clip, update and reset the gradients; return their norm before clipping."""
        scaler.unscale_(optimizer)
        grad_norm = optim.clip(parameters, cfg.optim.clip, cfg.optim.clip_value)
        scaler.step(optimizer)  # fp16: does nothing if a gradient is not finite
        scaler.update()
        optimizer.zero_grad(set_to_none=cfg.optim.set_to_none)
        if scaler.is_enabled():
            skipped.add_(~grad_norm.isfinite())
        return grad_norm

    micro_step: ForwardBackward = forward_backward
    update: OptimizerStep = optimizer_step
    for component in components:
        micro_step, update = component.wrap_step(run, micro_step, update)

    stop_requests = distributed.StopRequests(world, cfg.run.hours)
    with (
        lock(folder, world),
        closing(Log(run)) as log,
        closing(batches),
        stop_requests,
        on_train_end,
    ):
        log.first_lines(precision_name, schedule.peak, len(train_set), len(val_set))

        def validate() -> dict[str, float]:
            """Validate with the weights that the components choose, and log the results."""
            with ExitStack() as stack:
                for component in components:
                    stack.enter_context(component.eval_weights(run))
                results = evaluate(net, val_batches, val_counted, prepare, autocast, world)
                for component in components:
                    component.on_validation(run, results)
            checkpoints.save_best(run.step, results, cfg.train.monitor, cfg.train.monitor_mode)
            log.write("val", results)
            return results

        # A resumed run validates again, as it may have ended between a checkpoint and its
        # validation.
        results = validate() if run.step > 0 and plan.validates(run.step) else {}
        meter, grad_norm = Meter(world), torch.tensor(math.nan)
        gc.freeze()  # the garbage collector skips what exists now
        while run.step < plan.total_steps and not run.finished:
            step_generator.manual_seed(cfg.run.seed * 1_000_003 + run.step)
            for micro in range(plan.accumulate):
                try:
                    loaded = log.wait_for(batches)
                except UserError:  # an unreadable sample: keep what was trained
                    if world.size == 1 and grad_norm.isfinite():
                        checkpoints.save(state())
                    raise
                # augmentation and dropout
                generator = distributed.seed_batch(world, cfg.run.seed, run.step, micro)
                batch = prepare(loaded, True, generator)
                meter.add(micro_step(batch, 1 / plan.accumulate, micro == plan.accumulate - 1))
            lr = schedule.set(optimizer, run.step - run.known_skipped)
            grad_norm = update()
            run.step += 1
            for component in components:
                component.on_step_end(run)
            logs, validates = run.step % cfg.log.every == 0, plan.validates(run.step)
            stop = stop_requests.agreed()
            if logs or validates or stop:
                scalars = {"grad_norm": grad_norm} | (
                    {"skipped": skipped} if scaler.is_enabled() else {}
                )
                row = meter.read(scalars)  # the only synchronization with the device
                if not math.isfinite(row["loss"]) or not (
                    scaler.is_enabled() or math.isfinite(row["grad_norm"])
                ):
                    found = f"the loss is {row['loss']:.4g} and the gradient norm {row['grad_norm']:.4g}"
                    raise UserError(f"{found} at step {run.step:,}: lower optim.lr")
                if (
                    logs or validates
                ):  # not at a stop, so that a resumed run repeats the uninterrupted one
                    run.known_skipped = int(row.get("skipped", run.known_skipped))
                row |= {"lr": lr, **log.speed()}
                for component in components:
                    component.on_log(run, row)
                log.train(row)
            if (
                validates or stop
            ):  # saved before the validation, so that an error in it costs no training
                log.flush()
                checkpoints.save(state())
            if validates:
                results = validate()
            if stop and run.step < plan.total_steps and not run.finished:
                raise Stopped(f"stopped at step {run.step:,}: resume with --run.name {folder.name}")
        log.print(
            f"done after {run.step:,} steps: "
            + ", ".join(f"{name} {it:.4g}" for name, it in results.items())
        )
    return results


def main() -> None:
    """Train with the options of the command line."""
    with one_line():
        cfg = parse(Config)
        with distributed.init(cfg.run.device) as world:
            train(cfg, world)


if __name__ == "__main__":
    main()
