"""Train the model, with Lightning.

Start it on one process, on four, to resume, and to list every option:

    python -m <package>.train --config configs/default.yaml
    python -m <package>.train --config configs/default.yaml --run.processes 4
    python -m <package>.train --config configs/default.yaml --run.name first --run.resume auto
    python -m <package>.train --config configs/default.yaml --trainer.profiler simple
    python -m <package>.train --help
"""

if __name__ == "__main__":
    from .console import begin

    begin(__spec__.name, "Train the model.")  # before torch is imported, which takes seconds

import logging
import math
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from . import distributed, techniques
from .config import Config
from .distributed import World
from .errors import UserError, in_one_line
from .framework import listed, refuse, require
from .hooks import Hook
from .loaders import Plan
from .metrics import supports_inference_mode
from .open_run import main, open_run
from .parts import Parts
from .run import Run

try:
    require("lightning", "2.6")
    import lightning.pytorch as lightning
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
    from lightning.pytorch.plugins import MixedPrecision
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

    from .callbacks import Log, log_to
    from .datamodule import DataModule
    from .extras import extras
    from .module import Module
    from .trainer_config import (
        LightningConfig,
        check_arguments,
        check_extras,
        checkpoint_to_load,
        trainer_options,
    )
except UserError as error:
    sys.exit(in_one_line(error))

UNSUPPORTED = {
    "speed.step_graph": "Lightning's loop cannot be captured; use false, or the framework pytorch",
    "train.on_nonfinite=rollback": "Lightning's loop cannot go back; use skip, or the framework pytorch",
    "debug.sync": "Lightning itself synchronizes with the device; use off, or the framework pytorch",
}
"""The options that are refused, and what to use instead."""


class ShardedStrategy(DDPStrategy):
    """FSDP2 as in plain PyTorch: the model is sharded already, so nothing wraps it."""

    def configure_ddp(self) -> None:
        pass

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Reduce no gradients in the backward pass of a micro-batch but the last."""
        sharded: Any = self.lightning_module
        sharded.model.set_requires_gradient_sync(False)
        yield
        sharded.model.set_requires_gradient_sync(True)

    def teardown(self) -> None:
        """End without moving the weights to the CPU, which shards do not support."""
        for part in (self.cluster_environment, self.precision_plugin, self.accelerator, self.checkpoint_io):
            assert part is not None
            part.teardown()


OWN = {"enable_checkpointing": Checkpoint, "enable_progress_bar": ProgressBar, "enable_model_summary": ModelSummary}
"""What the Trainer has on unless told otherwise, and is off here without a callback of the type."""


def make_trainer(run: Run) -> lightning.Trainer:
    """Return a Trainer set up from the config, the section `trainer`, and extras.py.

    Raises:
        UserError: the Trainer does not take an argument, or the config decides it.
    """
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch 2.13, from Lightning 2.6
    warnings.filterwarnings("ignore", ".*`on_after_batch_transfer` in `LightningModule`")  # where it is on purpose
    warnings.filterwarnings("ignore", ".*`srun` command is available")  # the launcher's ranks may be on a SLURM machine
    warnings.filterwarnings("ignore", ".*in eval mode at the start of training")  # BatchNorm that is frozen
    warnings.filterwarnings("ignore", ".*have no logger configured")  # `trainer.validate` returns what could be logged
    cfg, plan, world = run.parts.cfg, run.parts.plan, run.parts.world
    yours = {**trainer_options(cfg), **check_extras(extras(run))}
    check_arguments(yours)
    if not yours:
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    callbacks = listed(yours.get("callbacks"))
    options: dict[str, Any] = {name: any(isinstance(it, kind) for it in callbacks) for name, kind in OWN.items()}
    options |= {"logger": False, "num_sanity_val_steps": 0, "default_root_dir": run.folder}
    options |= {"inference_mode": supports_inference_mode(run.parts.model), **yours}
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    decided: dict[str, Any] = {
        "accelerator": world.device.type,
        "strategy": _strategy(run.parts),
        "devices": here,
        "num_nodes": world.world_size // here,
        "max_epochs": math.ceil(plan.total_steps / plan.steps_per_epoch),
        "max_steps": plan.total_steps,
        "accumulate_grad_batches": plan.accumulate,
        "val_check_interval": (run.progress.eval_every or plan.total_steps) * plan.accumulate,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": cfg.log.every,
        "benchmark": torch.backends.cudnn.benchmark,
        "detect_anomaly": cfg.debug.anomaly,
        "use_distributed_sampler": False,  # the sample order is the run's
        "callbacks": [Log(), *callbacks],
        "plugins": [*_plugins(run.parts), *listed(yours.get("plugins"))],
    }
    if cfg.optim.schedule == "range":
        decided["limit_val_batches"] = 0
    try:
        trainer = lightning.Trainer(**{**options, **decided})
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise UserError(f"Lightning's Trainer refuses its arguments: {' '.join(str(error).split())}") from error
    _continue_counting(trainer.fit_loop, run.progress.step, plan)
    log_to(trainer, run)
    return trainer


def _strategy(parts: Parts) -> Strategy:
    if parts.world.world_size == 1:
        return SingleDeviceStrategy(parts.world.device)
    cfg = parts.cfg.dist
    return ShardedStrategy() if cfg.strategy == "fsdp" else DDPStrategy(**distributed.ddp_options(cfg, parts.model))


def _plugins(parts: Parts) -> list[Any]:
    """Return the environment that started this process, and the autocast of the precision."""
    environment = TorchElasticEnvironment() if parts.world.world_size > 1 else LightningEnvironment()
    format = parts.precision.format
    if format not in ("bf16", "fp8", "fp16"):
        return [environment]
    name: Literal["16-mixed", "bf16-mixed"] = "16-mixed" if format == "fp16" else "bf16-mixed"
    return [environment, MixedPrecision(name, parts.world.device.type, parts.scaler if format == "fp16" else None)]


def _continue_counting(loop: Any, step: int, plan: Plan) -> None:
    """Set the counters of Lightning's loop for a run that was resumed at a step."""
    for counter in (loop.epoch_progress.total, loop.epoch_progress.current):
        counter.ready = counter.started = counter.processed = counter.completed = step // plan.steps_per_epoch
    loop.epoch_loop.batch_progress.total.ready = step * plan.accumulate
    loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    loop.epoch_loop._batches_that_stepped = step


@techniques.unfreezing
def train(cfg: Config, world: World, hooks: Iterable[Hook] = ()) -> dict[str, float]:
    """Train as configured, write the run's folder, and return the validation metrics; `hooks` of yours act on the way.

    Raises:
        UserError: the config does not fit Lightning, the data, the machine or the checkpoint; the loss is not finite.
    """
    refuse(cfg, UNSUPPORTED)
    if world.device.type == "xpu":
        cfg.run.refuse("device", "Lightning has no accelerator for Intel GPUs; use cpu, or the framework pytorch")
    trainer_options(cfg)  # what is refused is so before the run's folder is created
    start = checkpoint_to_load(cfg)
    with open_run(cfg, world, hooks) as run:
        if not run.progress.done or run.progress.validation_due:
            trainer = make_trainer(run)
            try:
                trainer.fit(Module(run), datamodule=DataModule(run), ckpt_path=start)
            except MisconfigurationException as error:
                raise UserError(f"Lightning cannot train so: {' '.join(str(error).split())}") from error
        run.finish()
    return run.results


if __name__ == "__main__":
    main(train, kind=LightningConfig)
