"""The LightningModule around model.py: loss, metrics, AdamW and 1cycle."""

import math
from inspect import signature
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from .contracts import parameter_groups
from .data import Prepare
from .datamodule import Data
from .errors import UserError
from .log import RunLog
from .loss import Count, StepMean, check_names, compute_loss
from .metrics import Means
from .model import ModelConfig, build


class Model(LightningModule):
    """Trains the network of model.py."""

    def __init__(
        self,
        data: Data,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        beta2: float = 0.999,
        pct_start: float = 0.3,
        div_factor: float = 10.0,
        compile_mode: Literal["off", "default", "max-autotune-no-cudagraphs"] = "off",
        channels_last: bool = False,
        **network: Any,
    ) -> None:
        """Build the network.

        Args:
            data: The data module, whose `Spec` the network needs.
            lr: Peak learning rate.
            weight_decay: Decoupled weight decay of matrices and convolutions.
            beta2: AdamW's beta2; 1cycle moves beta1 between 0.85 and 0.95.
            pct_start: 1cycle: fraction of the steps in which the learning rate rises.
            div_factor: 1cycle: peak learning rate divided by the initial one.
            compile_mode: Mode of torch.compile for the network.
            channels_last: Keep convolutions in NHWC, which Tensor Cores prefer.
            **network: The options of model.py.
        """
        super().__init__()
        self.lr = lr  # LearningRateFinder sets it
        self.weight_decay = weight_decay
        self.beta2 = beta2
        self.pct_start = pct_start
        self.div_factor = div_factor
        self.seed = torch.initial_seed()  # that of `seed_everything`

        self.net: nn.Module = build(ModelConfig(**network), data.spec)
        if channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compile_mode != "off":
            # in place: the names of parameters stay the same
            self.net.compile(dynamic=False, mode=compile_mode)
        self.prepare = Prepare(data.spec, data.source)
        self.train_means = Means(loss_of_none=0.0)
        self.val_means = Means()
        self.step_mean = StepMean(self.mean_over_ranks)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss.

        Random numbers follow from the step: a resumed run draws the same ones.
        """
        trainer = self.trainer
        micro = batch_idx % trainer.accumulate_grad_batches
        seed = (self.seed * 1_000_003 + self.global_step) * 65_537
        generator = self.seeded(seed + micro * trainer.world_size + trainer.global_rank)
        prepared = self.prepare(batch, True, generator)
        loss, metrics = compute_loss(self.net, prepared)
        self.train_means.update(metrics)
        return loss * self.step_mean.weight(metrics, micro == 0)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Make the gradients those of the mean over all that counts, before Lightning clips them.

        Log every `log_every_n_steps`: `self.log` in each step is slow on a tiny model.
        """
        trainer: Any = self.trainer
        self.step_mean.scale(self.parameters(), trainer.accumulate_grad_batches)
        if (self.global_step + 1) % trainer.log_every_n_steps:
            return
        gradients = [value.grad for value in self.parameters() if value.grad is not None]
        self.log_means("train", self.train_means)
        self.log("train/grad_norm", nn.utils.get_total_norm(gradients))
        self.log("train/lr", optimizer.param_groups[0]["lr"])

    def mean_over_ranks(self, count: Count) -> Count:
        """Return the mean of a count, on the device; on one rank, the count itself."""
        if self.trainer.world_size == 1:
            return count
        total = torch.zeros((), device=self.device, dtype=torch.float32)
        total += count
        dist.all_reduce(total)
        return total / self.trainer.world_size

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        prepared = self.prepare(batch, False, self.seeded(batch_idx))
        _, metrics = compute_loss(self.net, prepared)
        self.val_means.update(metrics)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self.log_means("val", self.val_means)

    def on_test_epoch_end(self) -> None:
        self.log_means("test", self.val_means)

    def log_means(self, split: str, means: Means) -> None:
        """Log exact means: `self.log(..., sync_dist=True)` logs means of the batches' means."""
        check_names(means.names, self.mean_over_ranks)
        for name, value in means.compute().items():
            self.log(f"{split}/{name}", value, prog_bar=True)
        means.reset()

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the network's predictions for a batch."""
        net: Any = self.net
        inputs = self.prepare(batch, False, self.seeded(batch_idx))
        if not isinstance(inputs, dict):
            inputs = dict(zip(signature(net.forward).parameters, inputs, strict=False))
        names = signature(net.predict).parameters
        predictions: Tensor = net.predict(**{name: inputs[name] for name in names})
        return predictions

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW, without weight decay for biases and norms, and 1cycle."""
        optimizer = torch.optim.AdamW(
            parameter_groups(self.net, self.weight_decay),
            lr=self.lr,
            betas=(0.9, self.beta2),
            # Lightning cannot clip before a fused optimizer in mixed precision
            fused="mixed" not in self.trainer.precision,
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": self.one_cycle(optimizer),
                "interval": "step",
            },
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume a run with other options, or other steps than its schedule has.

        Lightning loads the weights after this.
        """
        trainer: Any = self.trainer
        if not trainer.training:
            return
        for callback in trainer.callbacks:
            if isinstance(callback, RunLog):
                callback.compare(trainer)
        steps = trainer.estimated_stepping_batches
        for schedule in checkpoint.get("lr_schedulers", []):
            planned = schedule.get("total_steps", steps)
            if planned != steps:
                raise UserError(
                    f"the checkpoint is of a run of {planned:,} steps, and not {steps:,}: put "
                    "trainer.max_epochs and trainer.max_steps back, as 1cycle spans the whole run, "
                    "or start a new run, without --ckpt_path"
                )
        if checkpoint["global_step"] >= steps:
            rank_zero_info(f"the run of this checkpoint is finished, after {steps:,} steps")

    def one_cycle(self, optimizer: Optimizer) -> OneCycleLR:
        """Return the 1cycle schedule: Smith and Topin 2018 (arXiv:1708.07120)."""
        defaults = optimizer.defaults
        steps = self.trainer.estimated_stepping_batches
        if steps < 1:
            raise UserError("no steps: trainer.max_steps and trainer.max_epochs must not be 0")
        if steps == math.inf:
            raise UserError("no last step: set trainer.max_steps or trainer.max_epochs")
        return OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=int(steps),
            cycle_momentum="betas" in defaults or bool(defaults.get("momentum")),
            pct_start=self.pct_start,
            div_factor=self.div_factor,
        )

    def seeded(self, number: int) -> torch.Generator:
        """Seed the random numbers of a batch: dropout, and the returned ones for augmentation."""
        number %= 2**63
        default = torch.manual_seed(number)
        on_cpu = self.device.type == "cpu"
        return default if on_cpu else torch.Generator(self.device).manual_seed(number)
