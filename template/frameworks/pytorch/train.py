"""Train the model, in plain PyTorch.

Start it on one process, on four, to resume, and to list every option:

    python -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.processes 4
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help
"""

if __name__ == "__main__":
    from .console import begin

    begin(__spec__.name, "Train the model.")  # before torch is imported, which takes seconds

from collections.abc import Iterable

from torch import Tensor

from . import distributed, faults, optim, speed, techniques
from .config import Config
from .contracts import Batch, Metrics, loss_and_metrics
from .distributed import World
from .hooks import Hook
from .open_run import main, open_run


@techniques.unfreezing
def train(cfg: Config, world: World, hooks: Iterable[Hook] = ()) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the validation metrics; `hooks` of yours act on the way.

    Raises:
        UserError: the config does not fit the data, the machine or the checkpoint; or the loss is not finite.
    """
    with open_run(cfg, world, hooks) as run:
        parts, accumulate = run.parts, run.parts.plan.accumulate
        model, optimizer, scaler, autocast = parts.model, parts.optimizer, parts.scaler, parts.precision.autocast
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        ddp = distributed.wrap(model, cfg.dist, world)
        techniques.compress_gradients(ddp, cfg.dist, world)
        gradient_sync = techniques.gradient_sync(ddp, cfg.dist)
        net = speed.compiled(ddp, cfg.speed)
        eval_model = net if ddp is model else speed.compiled(model, cfg.speed)
        phase = run.times.begin

        def forward_backward(prepared: Batch, divisor: float, synchronize: bool) -> Metrics:
            metrics: Metrics
            phase("forward")
            with gradient_sync(synchronize):
                with autocast():
                    loss, metrics = loss_and_metrics(net, prepared)
                phase("backward")
                scaler.scale(loss / divisor if divisor > 1 else loss).backward()
            phase("other")
            return metrics

        def update() -> Tensor:
            return optim.update(optimizer, scaler, parameters, cfg.optim)

        compute_grads = faults.compute_within_memory(forward_backward, run)  # prepares a micro-batch as well
        compute_grads, apply_grads = techniques.capture_step(compute_grads, update, cfg, model, optimizer, run.meter)
        apply_grads = faults.update_if_allowed(apply_grads, run, parameters)
        run.begin(eval_model)  # continues a validation in which the run was stopped
        while not run.progress.done:
            run.begin_step()
            for micro in range(accumulate):
                batch = run.fetch()
                run.seed_batch()
                compute_grads(batch, micro == accumulate - 1)
            run.before_update()  # sets the learning rate
            grad_norm = apply_grads()
            run.end_step(grad_norm, eval_model)  # logs, validates and saves where that is due
        run.finish()
    return run.results


if __name__ == "__main__":
    main(train)
