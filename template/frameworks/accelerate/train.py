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

import math
import os
import sys
import warnings

from . import speed, techniques
from .config import Config
from .distributed import World
from .errors import UserError, in_one_line
from .framework import refuse, require
from .parts import Parts
from .run import main, open_run

try:
    require("accelerate", "1.10")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
except UserError as error:
    sys.exit(in_one_line(error))

UNSUPPORTED = {
    "speed.step_graph": "Accelerate's steps cannot be captured; use false, or the framework pytorch",
    "dist.strategy=fsdp": "only the framework pytorch supports FSDP2; use ddp",
}
"""The options that are refused, and what to use instead."""
UNSUPPORTED_ON_CPU = {"speed.precision=fp16": "Accelerate supports it only on GPUs; use bf16 or fp32"}

LAUNCHED_WITH = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
"""What `accelerate launch` passes on in ACCELERATE_USE_*, and the config has no option for."""


def make_accelerator(parts: Parts) -> Accelerator:
    """Return an Accelerator set up from the config."""
    AcceleratorState._reset_state(reset_partial_state=True)  # it would keep the precision of a previous run
    GradientState._reset_state()
    formats = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
    ddp = DistributedDataParallelKwargs(
        broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=parts.cfg.dist.static_graph
    )
    accelerator = Accelerator(
        cpu=parts.world.device.type == "cpu",
        device_placement=False,  # model and batches are on the device already
        mixed_precision=formats.get(parts.precision.format, "no"),
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=parts.plan.accumulate),
        kwargs_handlers=[ddp],
    )
    if parts.scaler.is_enabled():
        accelerator.scaler = parts.scaler  # saved and resumed with the run
    return accelerator


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the validation metrics.

    Raises:
        UserError: the config does not fit Accelerate, the data, the machine or the checkpoint; the loss is not finite.
    """
    for variable, name in LAUNCHED_WITH.items():
        if os.environ.get(f"ACCELERATE_USE_{variable}", "").lower() == "true":
            raise UserError(f"accelerate launch asks for {name}, and this project trains with DDP: launch without it")
    refuse(cfg, UNSUPPORTED if world.device.type != "cpu" else UNSUPPORTED | UNSUPPORTED_ON_CPU)
    warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)  # newer torch renamed it
    with open_run(cfg, world) as run:
        model = run.parts.model
        accelerator = make_accelerator(run.parts)
        wrapped, optimizer = accelerator.prepare(model, run.parts.optimizer)
        techniques.compress_gradients(wrapped, cfg.dist, world)
        net = speed.compiled(wrapped, cfg.speed)
        eval_model = net if wrapped is model else speed.compiled(model, cfg.speed)
        while not run.progress.done:
            run.begin_step()
            for _ in range(run.parts.plan.accumulate):
                with accelerator.accumulate(wrapped):
                    loss, metrics = net(*run.prepare(next(run.train_batches)))
                    accelerator.backward(loss)
                    run.meter.add(metrics)
                    if accelerator.sync_gradients:
                        run.before_update()  # sets the learning rate
                        grad_norm = accelerator.clip_grad_norm_(model.parameters(), cfg.optim.clip or math.inf)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=cfg.optim.set_to_none)
            run.end_step(grad_norm, eval_model)  # logs, validates and saves where that is due
        run.finish()
    return run.results


if __name__ == "__main__":
    main(train)
