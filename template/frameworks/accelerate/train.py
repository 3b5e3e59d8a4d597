"""Train the model, with Hugging Face Accelerate.

Start it on one process, on four, to go on after a stop, and to see every value:

    python -m <package>.train --config configs/default.yaml
    accelerate launch --num-processes 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help

torchrun starts it as well; what the config says goes before what `accelerate config` has asked.
"""

import math
import os
import sys
import warnings

from torch import nn

from . import distributed, speed
from .config import Config, parse
from .distributed import World
from .errors import UserError, in_one_line
from .metrics import evaluate
from .run import Run
from .techniques.framework import needs, refuse

try:
    needs("accelerate", "1.10")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
except UserError as error:
    sys.exit(in_one_line(error))

CANNOT = {
    "speed.step_graph": "Accelerate's steps cannot be recorded; use false, or the framework pytorch",
    "dist.strategy=fsdp": "FSDP2 is in the framework pytorch alone; use ddp",
}
"""The keys that are refused, and what to use instead."""
CANNOT_ON_CPU = {"speed.precision=fp16": "Accelerate has it on GPUs alone; use bf16 or fp32"}

LAUNCHED_WITH = {"FSDP": "FSDP", "DEEPSPEED": "DeepSpeed", "MEGATRON_LM": "Megatron-LM"}
"""What `accelerate launch` hands down in ACCELERATE_USE_*, and the config has no key for."""


def make_accelerator(run: Run) -> Accelerator:
    """Return an Accelerator that does as the config says."""
    AcceleratorState._reset_state(reset_partial_state=True)  # it would keep a former run's precision
    GradientState._reset_state()
    formats = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
    ddp = DistributedDataParallelKwargs(
        broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=run.cfg.dist.static_graph
    )
    accelerator = Accelerator(
        cpu=run.world.device.type == "cpu",
        device_placement=False,  # model and batches are on the device already
        mixed_precision=formats.get(run.precision.format, "no"),
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=run.plan.accumulate),
        kwargs_handlers=[ddp],
    )
    if run.scaler.is_enabled():
        accelerator.scaler = run.scaler  # which is saved and resumed
    return accelerator


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the metrics of the held-out samples.

    Raises:
        UserError: the config does not fit Accelerate, the data, the machine or the checkpoint; the loss is not finite.
    """
    for variable, name in LAUNCHED_WITH.items():
        if os.environ.get(f"ACCELERATE_USE_{variable}", "").lower() == "true":
            raise UserError(f"accelerate launch asks for {name}, and training here is by ddp: launch it without")
    refuse(cfg, CANNOT if world.device.type != "cpu" else CANNOT | CANNOT_ON_CPU)
    run = Run(cfg, world)
    model, autocast = run.model, run.precision.autocast
    warnings.filterwarnings("ignore", "`broadcast_buffers`", FutureWarning)  # newer torch renamed it
    accelerator = make_accelerator(run)
    wrapped, optimizer = accelerator.prepare(model, run.optimizer)
    net = speed.compiled(wrapped, cfg.speed)
    judge: nn.Module = net if wrapped is model else speed.compiled(model, cfg.speed)
    if cfg.dist.bf16_gradients and world.world_size > 1:
        from .techniques import ddp

        ddp.send_in_bf16(wrapped)
    coming = iter(run.batches)
    with run:
        while not run.done:
            run.begin_step()  # the learning rate
            for _ in range(run.plan.accumulate):
                with accelerator.accumulate(wrapped):
                    loss, metrics = net(*run.prepared(next(coming)))
                    accelerator.backward(loss)
                    run.meter.add(metrics)
                    if accelerator.sync_gradients:
                        grad_norm = accelerator.clip_grad_norm_(model.parameters(), cfg.optim.clip or math.inf)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=cfg.optim.set_to_none)
            run.end_step(grad_norm, not accelerator.optimizer_step_was_skipped)
            if not run.speaks:
                continue  # nothing above waits for the device

            run.write_row()
            if run.validates:
                with run.weights_to_judge():
                    run.take(evaluate(judge, run.val_batches, run.prepare, autocast(), world, run.held_out.own))
            if run.saves:
                run.save()
        run.finish()
    return run.results


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
