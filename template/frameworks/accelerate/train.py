"""Train the model, with Hugging Face Accelerate.

Start it on one process, on four, to resume, and to list every option:

    python -m <package>.train --config configs/default.yaml
    accelerate launch --num-processes 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help

torchrun starts it as well. The config overrides the answers to `accelerate config`.
"""

if __name__ == "__main__":
    from .console import begin

    begin(__spec__.name, "Train the model.")  # before torch is imported, which takes seconds

import sys
import warnings
from collections.abc import Iterable

from . import faults, optim, speed, techniques
from .config import Config
from .contracts import loss_and_metrics
from .distributed import World
from .errors import UserError, in_one_line
from .framework import refuse, require
from .hooks import Hook
from .open_run import main, open_run

try:
    require("accelerate", "1.10")
    from .accelerator import check_launch, open_accelerator
except UserError as error:
    sys.exit(in_one_line(error))

UNSUPPORTED = {"speed.step_graph": "Accelerate's steps cannot be captured; use false, or the framework pytorch"}
"""The options that are refused, and what to use instead."""
UNSUPPORTED_ON_CPU = {"speed.precision=fp16": "Accelerate supports it only on GPUs; use bf16 or fp32"}


@techniques.unfreezing
def train(cfg: Config, world: World, hooks: Iterable[Hook] = ()) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the validation metrics; `hooks` of yours act on the way.

    `accelerator.load_state` belongs before the loop, and `accelerator.save_state` after `run.end_step`.

    Raises:
        UserError: the config does not fit Accelerate, the data, the machine or the checkpoint; the loss is not finite.
    """
    check_launch(world)
    refuse(cfg, UNSUPPORTED if world.device.type != "cpu" else UNSUPPORTED | UNSUPPORTED_ON_CPU)
    warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)  # newer torch renamed it
    with open_run(cfg, world, hooks) as run, open_accelerator(run) as accelerator:
        model, sharded = run.parts.model, cfg.dist.strategy == "fsdp"
        parameters = list(model.parameters())
        wrapped = accelerator.prepare_model(model, evaluation_mode=sharded)  # then with autocast and without DDP
        optimizer = accelerator.prepare(run.parts.optimizer)
        techniques.compress_gradients(wrapped, cfg.dist, world)
        gradient_sync = techniques.gradient_sync(model, cfg.dist)  # of FSDP; `accumulate` does that of DDP
        net = speed.compiled(wrapped, cfg.speed)
        eval_model = net if wrapped is model else speed.compiled(model, cfg.speed)
        allows, phase = faults.step_check(run), run.times.begin
        run.begin(eval_model)  # continues a validation in which the run was stopped
        while not run.progress.done:
            run.begin_step()
            for _ in range(run.parts.plan.accumulate):
                with accelerator.accumulate(wrapped), gradient_sync(accelerator.sync_gradients):
                    prepared = run.prepare(run.fetch())
                    phase("forward")
                    loss, metrics = loss_and_metrics(net, prepared)
                    phase("backward")
                    accelerator.backward(loss)
                    phase("other")
                    run.meter.add(metrics)
                    if accelerator.sync_gradients and allows is not None and not allows(parameters):
                        grad_norm = run.grad_norm
                        continue
                    if accelerator.sync_gradients:
                        run.before_update()  # sets the learning rate
                        accelerator.unscale_gradients()
                        # As `accelerator.clip_grad_norm_` and `clip_grad_value_`, also of shards.
                        grad_norm = optim.clip(parameters, cfg.optim.clip, cfg.optim.clip_value)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=cfg.optim.set_to_none)
            run.end_step(grad_norm, eval_model)  # logs, validates and saves where that is due
        run.finish()
    return run.results


if __name__ == "__main__":
    main(train)
