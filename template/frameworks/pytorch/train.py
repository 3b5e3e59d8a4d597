"""Train the model, in one process or several. A run that has a name is resumed by the same command.

python -m <package>.train --config configs/default.yaml --run.name first
torchrun --nproc-per-node 4 -m <package>.train --config configs/default.yaml
"""

import gc
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from typing import Any

import torch
from torch import Tensor

from . import checkpoint, data, distributed, loader, optim, precision
from .checkpoint import lock
from .component import Step
from .components import Config, build_components
from .config import parse
from .contracts import Metrics, describe_data, load_data, spec_fields
from .distributed import World
from .errors import Stopped, one_line
from .log import Log
from .loss import StepMean, compute_loss
from .metrics import Meter, check_finite, evaluate
from .model import build
from .run import Run, find_checkpoint, is_finished, run_folder
from .signals import stop_requests


def train(cfg: Config, world: World | None = None) -> dict[str, float]:
    """Train as configured, or resume the run of this name; return the last validation's metrics."""
    world = world or World(0, 1, distributed.find_device(cfg.run.device))
    cfg.check_cuda_graphs(world.size)
    components = build_components(cfg, world)  # what `fastproj add` brought; none by default
    components.check(cfg, enabled=())
    torch.manual_seed(cfg.run.seed)
    precision_name, autocast, scaler = precision.setup(cfg.speed, world.device)

    # Data. The ranks take turns with the micro-batches of one order. A resumed run keeps its Spec.
    resumed = find_checkpoint(cfg, world)
    train_set, val_set, spec = load_data(data, cfg.data, checkpoint.spec_of(resumed))
    about_data = describe_data(data, train_set, val_set, spec)
    train_set = components.wrap_dataset(train_set)
    val_set = components.wrap_dataset(val_set)
    plan = loader.BatchPlan.make(cfg.train, len(train_set), world.size)
    prepare = data.Prepare(spec, cfg.data).to(world.device)
    val_order, num_val_batches = loader.val_batches(len(val_set), plan.batch_size, world)
    val_loader = loader.Loader(val_set, val_order, cfg.loader, world)

    # Model. `model` has the weights and names of a checkpoint; `net`, which is called, may be DDP.
    model = components.convert_model(build(cfg.model, spec))
    net, no_sync = components.parallelize(model, cfg, world)  # see distributed.data_parallel
    if cfg.speed.compile == "model":
        net.compile(dynamic=False, mode=cfg.speed.compile_mode)  # in place: names stay the same

    # Optimizer and schedule: AdamW and 1cycle of optim.py, unless a component has others.
    parameters = list(model.parameters())
    optimizer = components.build_optimizer(model, cfg)
    schedule = components.build_schedule(plan, cfg)

    run = Run(cfg, world, run_folder(cfg.run, world), plan, model, optimizer, spec)
    components.on_train_start(run)
    checkpoints = components.checkpointer(run)

    def state_dict() -> dict[str, Any]:
        return {
            "step": run.step,
            "skipped_steps": run.skipped_steps,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "optimizer_class": type(optimizer).__name__,
            "scaler": scaler.state_dict(),
            "components": components.state_dict(),
            "spec": spec_fields(spec),
        }

    # A step: the gradients of its micro-batches, then one update. Components may wrap both.
    step_mean = StepMean(world.mean)

    def compute_gradients(batch: Any, is_first: bool, is_last: bool) -> Metrics:
        """Add the gradients of a micro-batch; only the last one of a step all-reduces them."""
        with nullcontext() if is_last else no_sync():
            with autocast():
                loss, metrics = compute_loss(net, batch)
            weight = step_mean.weight(metrics, is_first) / plan.accumulation_steps
            scaler.scale(loss * weight).backward()
        return metrics

    def update_weights() -> Tensor:
        """Unscale, clip, update and reset the gradients; return their norm before clipping."""
        scaler.unscale_(optimizer)
        step_mean.scale(parameters, plan.accumulation_steps)
        grad_norm = optim.clip(parameters, cfg.optim.max_grad_norm)
        scaler.step(optimizer)  # fp16: does nothing if a gradient is not finite
        scaler.update()
        scaler.count(grad_norm)
        optimizer.zero_grad()
        return grad_norm

    # Resume from the newest intact checkpoint of this run.
    if resumed is not None:
        order_buckets(run, compute_gradients, prepare, val_loader)
        saved = checkpoints.read(resumed, state_dict())
        run.restore(saved, resumed)
        optim.load_state(optimizer, saved)
        scaler.load_state_dict(saved["scaler"])
        components.load_state_dict(saved["components"])
    order = loader.train_batches(plan, world, cfg.run.seed, run.step)  # from this step on
    train_loader = loader.Loader(train_set, order, cfg.loader, world)
    step = components.wrap_step(run, Step(compute_gradients, update_weights))

    def validate() -> dict[str, float]:
        with components.eval_weights(run):
            results = evaluate(
                net,
                val_loader,
                num_val_batches,
                prepare,
                autocast,
                world,
            )
            components.on_validation(run, results)
        checkpoints.record_best(run.step, results, cfg.train.monitor, cfg.train.monitor_mode)
        log.write("val", results)
        return results

    with (  # what is closed at the end, also after an error or a stop
        lock(run.folder, world),
        closing(Log(run, len(val_set))) as log,
        closing(val_loader),
        closing(train_loader),
        closing(iter(train_loader)) as batches,
        stop_requests(world, cfg.run.hours) as requests,
        components.training(run),
    ):
        log.first_lines(precision_name, schedule.peak, train_loader, about_data)

        # A resumed run validates again: it may have ended between a checkpoint and its validation.
        results = validate() if plan.validates(run.step) else {}
        meter = Meter(world, loss_of_none=0.0)  # without counted samples, the loss is 0, not NaN
        gc.freeze()  # so that the garbage collector does not look at the model in each step

        while not run.is_over:
            for micro in range(plan.accumulation_steps):
                loaded = log.wait_for(batches)
                # Random numbers follow from the step, so that a resumed run draws the same ones.
                generator = distributed.seed_batch(world, cfg.run.seed, run.step, micro)
                batch = prepare(loaded, True, generator)
                is_last = micro == plan.accumulation_steps - 1
                meter.add(step.compute_gradients(batch, micro == 0, is_last))

            lr = schedule.set(optimizer, run.step - run.skipped_steps)
            grad_norm = step.update_weights()
            run.step += 1
            components.on_step_end(run)

            should_validate = plan.validates(run.step)
            should_log = log.is_due()
            should_stop = requests.should_stop()

            if should_log or should_stop:
                row = meter.read({"grad_norm": grad_norm} | scaler.metrics())  # waits for the GPU
                check_finite(row, run.step, fp16=scaler.is_enabled())
                if should_log:  # an extra row at a stop must not change the schedule
                    run.skipped_steps = int(row.get("skipped", run.skipped_steps))
                row |= {"lr": lr, **log.speed()}
                components.on_log(run, row)
                log.train(row)

            if should_validate or should_stop:  # first: an error in validation then loses no step
                log.flush()
                checkpoints.save(state_dict())

            if should_validate:
                results = validate()

            if should_stop and not run.is_over:
                raise Stopped(f"stopped at step {run.step:,}: resume with --run.name {run.name}")

        log.done(results)
    return results


def order_buckets(
    run: Run,
    compute_gradients: Callable[[Any, bool, bool], Metrics],
    prepare: Callable[..., Any],
    batches: Iterable[Any],
) -> None:
    """Run a backward pass, so that the first step of a resumed run sums in the right order.

    DistributedDataParallel changes its order of summation after its first backward pass, and with
    more than two ranks the order decides the rounding. Call this before the checkpoint is restored:
    it changes the statistics of BatchNorm.
    """
    if run.world.size > 2:
        generator = distributed.seed_batch(run.world, run.cfg.run.seed, 0, 0)
        compute_gradients(prepare(next(iter(batches)), True, generator), True, True)
        run.optimizer.zero_grad()


def main() -> None:
    """Train with the options of the command line."""
    with one_line():
        cfg = parse(Config)
        with distributed.init(cfg.run.device) as world:
            if not is_finished(cfg, world):
                train(cfg, world)


if __name__ == "__main__":
    main()
