"""Train the model, in plain PyTorch.

Start it on one process, on four, to go on after a stop, and to see every value:

    python -m <package>.train --config configs/default.yaml
    torchrun --standalone --nproc-per-node 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help
"""

import sys

from torch import Tensor

from . import distributed, optim, speed, techniques
from .config import Config, parse
from .distributed import World
from .errors import UserError, in_one_line
from .loaders import Batch
from .metrics import Sums, evaluate
from .run import Run


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the metrics of the held-out samples.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint; or the loss is not finite.
    """
    run = Run(cfg, world)
    model, optimizer, scaler, autocast = run.model, run.optimizer, run.scaler, run.precision.autocast
    ddp = distributed.wrap(model, cfg.dist, world)
    net = speed.compiled(ddp, cfg.speed)
    judge = net if ddp is model else speed.compiled(model, cfg.speed)

    def forward_backward(batch: Batch, reduce: bool) -> Sums:
        with distributed.reducing(ddp, reduce):
            with autocast():
                loss, metrics = net(*batch)
            scaler.scale(loss / run.plan.accumulate).backward()
        found: Sums = metrics
        return found

    def update() -> tuple[Tensor, bool]:
        return optim.update(optimizer, scaler, model.parameters(), cfg.optim)

    compute, apply = techniques.recorded(forward_backward, update, cfg, model, optimizer, scaler)
    coming = iter(run.batches)
    with run:
        while not run.done:
            run.begin_step()  # the learning rate
            for micro in range(run.plan.accumulate):
                batch = run.prepared(next(coming))
                run.meter.add(compute(batch, micro == run.plan.accumulate - 1))
            grad_norm, updated = apply()
            run.end_step(grad_norm, updated)
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
