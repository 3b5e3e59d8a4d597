"""Train the model, with Lightning.

Start it on one process, on four, to resume, and to list every option:

    python -m <package>.train --config configs/default.yaml
    torchrun --standalone --nproc-per-node 4 -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --help
"""

if __name__ == "__main__":
    from .console import begin

    begin(__spec__.name, "Train the model.")  # before torch is imported, which takes seconds

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from . import distributed, optim, speed, techniques
from .config import Config
from .contracts import Batch
from .distributed import World
from .errors import UserError, in_one_line
from .framework import refuse, require
from .metrics import Meter
from .parts import Parts
from .run import Run, main, open_run

try:
    require("lightning", "2.6")
    import lightning.pytorch as lightning
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.pytorch.plugins import MixedPrecision
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
except UserError as error:
    sys.exit(in_one_line(error))

UNSUPPORTED = {
    "speed.step_graph": "Lightning's loop cannot be captured; use false, or the framework pytorch",
    "dist.strategy=fsdp": "only the framework pytorch supports FSDP2; use ddp",
    "debug.sync": "Lightning itself synchronizes with the device; use off, or the framework pytorch",
}
"""The options that are refused, and what to use instead."""


class Module(lightning.LightningModule):
    """The model and its optimizer as a LightningModule."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.parts = run, run.parts
        self.model = speed.compiled(run.parts.model, run.parts.cfg.speed)
        self.val_meter = Meter(run.parts.world)
        self.val_generator = torch.Generator()
        self.eval_weights = ExitStack()
        self.grad_norm = torch.zeros(())

    def on_train_start(self) -> None:
        net = self.trainer.strategy.model
        assert net is not None
        techniques.compress_gradients(net, self.parts.cfg.dist, self.parts.world)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.parts.optimizer

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if self.run.micro_step == 1:  # the first micro-batch of the step has just been prepared
            self.run.begin_step()

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        if self.trainer.training:
            return self.run.prepare(batch)
        prepared: Batch = self.parts.prepare(batch, False, self.val_generator)
        return prepared

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss: Tensor
        loss, metrics = self.model(*batch)
        self.run.meter.add(metrics)
        return loss

    def configure_gradient_clipping(self, optimizer: Any, *limits: Any, **named: Any) -> None:
        self.run.before_update()  # sets the learning rate
        if self.parts.scaler.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
            self.parts.scaler.unscale_(optimizer)  # Lightning leaves it to fused optimizers: too late for clipping
        self.grad_norm = optim.clip(list(self.parts.model.parameters()), self.parts.cfg.optim.clip)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        optimizer.zero_grad(set_to_none=self.parts.cfg.optim.set_to_none)
        self.run.count_step(self.grad_norm)

    def optimizer_zero_grad(self, *step: Any) -> None:
        pass  # `optimizer_step` does it, so that gradients take no memory in the next forward pass

    def on_validation_model_zero_grad(self) -> None:
        pass

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        _, metrics = self.model(*batch)
        if batch_idx < self.parts.eval_order.counted:
            self.val_meter.add(metrics)


class LogAndSave(lightning.Callback):
    """After a step: metrics, validation, checkpoint."""

    def on_train_batch_end(self, trainer: Any, module: Any, *batch: Any) -> None:
        run: Run = module.run
        if run.micro_step == 0 and run.progress.should_log:  # otherwise nothing synchronizes with the device
            logged = trainer.callback_metrics.items()
            run.log_metrics({name: value for name, value in logged if not name.startswith("val_")})
            if run.progress.should_save and not run.progress.should_validate:
                run.save()
        trainer.should_stop = trainer.should_stop or run.progress.done  # a callback of yours may have set it

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        module.val_generator = distributed.seeded_generator(module.parts.world.device, 0, 0, 0)
        module.eval_weights.enter_context(module.run.eval_weights())

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        results = module.val_meter.read()
        module.log_dict({f"val_{name}": value for name, value in results.items()}, logger=False, sync_dist=True)
        module.run.add_results(results)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        module.eval_weights.close()
        module.run.save()
        trainer.should_stop = trainer.should_stop or module.run.progress.done


class TrainBatches:
    """Micro-batches. An iteration ends at the next validation, and is what Lightning calls an epoch."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __iter__(self) -> Iterator[Batch]:
        progress = self.run.progress
        every = progress.eval_every or progress.total_steps
        return islice(self.run.train_batches, (every - progress.step % every) * self.run.parts.plan.accumulate)


def make_trainer(parts: Parts, step: int) -> lightning.Trainer:
    """Return a Trainer set up from the config, from optimizer step `step` on, with nothing on that costs time."""
    world, format = parts.world, parts.precision.format
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    plugins: list[Any] = [TorchElasticEnvironment() if world.world_size > 1 else LightningEnvironment()]
    if format in ("bf16", "fp8", "fp16"):
        name: Literal["16-mixed", "bf16-mixed"] = "16-mixed" if format == "fp16" else "bf16-mixed"
        plugins.append(MixedPrecision(name, world.device.type, parts.scaler if format == "fp16" else None))
    strategy: Strategy = SingleDeviceStrategy(world.device)
    if world.world_size > 1:
        strategy = DDPStrategy(**distributed.ddp_options(parts.cfg.dist))
    return lightning.Trainer(
        accelerator=world.device.type,
        strategy=strategy,
        devices=here,
        num_nodes=world.world_size // here,
        plugins=plugins,
        max_epochs=-1,
        max_steps=parts.plan.total_steps - step,
        accumulate_grad_batches=parts.plan.accumulate,
        limit_val_batches=0 if parts.cfg.optim.schedule == "range" else None,
        callbacks=[LogAndSave()],
        benchmark=torch.backends.cudnn.benchmark,
        detect_anomaly=parts.cfg.debug.anomaly,
        use_distributed_sampler=False,  # the sample order is the run's
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(cfg: Config, world: World) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the validation metrics.

    Raises:
        UserError: the config does not fit Lightning, the data, the machine or the checkpoint; the loss is not finite.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch 2.13, from Lightning 2.6
    refuse(cfg, UNSUPPORTED)
    if world.device.type == "xpu":
        cfg.run.refuse("device", "Lightning has no accelerator for Intel GPUs; use cpu, or the framework pytorch")
    with open_run(cfg, world) as run:
        if not run.progress.done:
            trainer = make_trainer(run.parts, run.progress.step)
            try:
                trainer.fit(Module(run), TrainBatches(run), run.val_loader)
            except SystemExit as end:  # status 1 after Ctrl-C; 0 after SIGTERM, as if the run were complete
                if end.code:
                    raise KeyboardInterrupt from None
                sys.exit(128 + signal.SIGTERM)
        run.finish()
    return run.results


if __name__ == "__main__":
    main(train)
