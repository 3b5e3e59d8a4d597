"""Train the model, with Lightning.

Start it on one process, on four, to go on after a stop, and to see every value:

    python -m <package>.train --config configs/default.yaml
    torchrun --standalone --nproc-per-node 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help
"""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from . import distributed, optim, speed
from .config import Config, parse
from .distributed import World
from .errors import UserError, in_one_line
from .loaders import Batch
from .metrics import Meter
from .run import Run
from .techniques.framework import needs, refuse

try:
    needs("lightning", "2.6")
    import lightning.pytorch as lightning
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.pytorch.plugins import MixedPrecision
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
except UserError as error:
    sys.exit(in_one_line(error))

CANNOT = {
    "speed.step_graph": "Lightning's loop cannot be recorded; use false, or the framework pytorch",
    "dist.strategy=fsdp": "FSDP2 is in the framework pytorch alone; use ddp",
    "debug.sync": "Lightning itself waits for the device; use off, or the framework pytorch",
}
"""The keys that are refused, and what to use instead."""


class Module(lightning.LightningModule):
    """The model and its optimizer, as Lightning takes them."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.model = run, speed.compiled(run.model, run.cfg.speed)
        self.val_meter = Meter(run.world)

    def on_train_start(self) -> None:
        if self.run.cfg.dist.bf16_gradients and self.run.world.world_size > 1:
            from .techniques import ddp

            ddp.send_in_bf16(self.trainer.strategy.model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.run.optimizer

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if self.run.micro == 1:  # the step's first micro-batch has just been prepared
            self.run.begin_step()  # the learning rate

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        if self.trainer.training:
            return self.run.prepared(batch)
        ready: Batch = self.run.prepare(batch, False, self.val_noise)
        return ready

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, metrics = self.model(*batch)
        self.run.meter.add(metrics)
        found: Tensor = loss
        return found

    def configure_gradient_clipping(self, optimizer: Any, *limits: Any, **named: Any) -> None:
        if self.run.scaler.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
            self.run.scaler.unscale_(optimizer)  # which Lightning leaves to a fused optimizer: too late for clipping
        self.grad_norm = optim.clip(self.run.model.parameters(), self.run.cfg.optim.clip)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        scale = self.run.scaler.get_scale()
        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        optimizer.zero_grad(set_to_none=self.run.cfg.optim.set_to_none)
        self.run.end_step(self.grad_norm, self.run.scaler.get_scale() >= scale)

    def optimizer_zero_grad(self, *step: Any) -> None:
        pass  # `optimizer_step` did, so that gradients do not lie there through the next forward pass

    def on_validation_model_zero_grad(self) -> None:
        pass

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, metrics = self.model(*batch)
        if batch_idx < self.run.held_out.own:
            self.val_meter.add(metrics)


class Rows(lightning.Callback):
    """After a step: its row of metrics, validation, checkpoint."""

    def on_train_batch_end(self, trainer: Any, module: Any, *batch: Any) -> None:
        run: Run = module.run
        if run.micro == 0 and run.speaks:  # else nothing waits for the device
            logged = trainer.callback_metrics.items()
            run.write_row({name: value.item() for name, value in logged if not name.startswith("val_")})
            if run.saves and not run.validates:
                run.save()
        trainer.should_stop = trainer.should_stop or run.done  # a callback of yours may have asked to stop

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        module.val_noise = distributed.noise(module.run.world.device, 0, 0, 0)
        module.judged = module.run.weights_to_judge()
        module.judged.__enter__()

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        results = module.val_meter.read()
        module.log_dict({f"val_{name}": value for name, value in results.items()}, logger=False, sync_dist=True)
        module.run.take(results)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        module.judged.__exit__(None, None, None)
        module.run.save()
        trainer.should_stop = trainer.should_stop or module.run.done


class Stretches:
    """Micro-batches; an iteration goes up to the next validation, and Lightning takes that for an epoch."""

    def __init__(self, run: Run) -> None:
        self.run, self.coming = run, iter(run.batches)

    def __iter__(self) -> Iterator[Batch]:
        left = self.run.eval_every - self.run.step % self.run.eval_every
        return islice(self.coming, left * self.run.plan.accumulate)


def make_trainer(run: Run) -> lightning.Trainer:
    """Return a Trainer that does as the config says, and nothing by itself that costs time."""
    world, format = run.world, run.precision.format
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    plugins: list[Any] = [TorchElasticEnvironment() if world.world_size > 1 else LightningEnvironment()]
    if format in ("bf16", "fp8", "fp16"):
        name: Literal["16-mixed", "bf16-mixed"] = "16-mixed" if format == "fp16" else "bf16-mixed"
        plugins.append(MixedPrecision(name, world.device.type, run.scaler if format == "fp16" else None))
    strategy: Strategy = SingleDeviceStrategy(world.device)
    if world.world_size > 1:
        strategy = DDPStrategy(**distributed.ddp_options(run.cfg.dist))
    return lightning.Trainer(
        accelerator=world.device.type,
        strategy=strategy,
        devices=here,
        num_nodes=world.world_size // here,
        plugins=plugins,
        max_epochs=-1,
        max_steps=run.plan.total_steps - run.step,
        accumulate_grad_batches=run.plan.accumulate,
        limit_val_batches=0 if run.sweep else None,
        callbacks=[Rows()],
        benchmark=torch.backends.cudnn.benchmark,
        detect_anomaly=run.cfg.debug.anomaly,
        use_distributed_sampler=False,  # the order of samples is the run's
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the metrics of the held-out samples.

    Raises:
        UserError: the config does not fit Lightning, the data, the machine or the checkpoint; the loss is not finite.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch 2.13, of a line in Lightning 2.6
    refuse(cfg, CANNOT)
    run = Run(cfg, world)
    with run:
        if not run.done:
            try:
                make_trainer(run).fit(Module(run), Stretches(run), run.val_batches)
            except SystemExit:  # how Lightning leaves after SIGTERM, with status 0, which says that all was done
                sys.exit(128 + signal.SIGTERM)
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
