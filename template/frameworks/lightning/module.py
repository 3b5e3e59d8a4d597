"""The LightningModule around model.py: loss, metrics, AdamW and 1cycle."""

import math
from inspect import signature
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from .contracts import no_weight_decay
from .data import DataConfig, Prepare, Spec
from .errors import UserError
from .metrics import Means, compute_loss
from .model import ModelConfig, build


class Model(LightningModule):
    """Trains the network of model.py."""

    def __init__(
        self,
        net: ModelConfig,
        spec: Spec,
        source: DataConfig,
        lr: float = 1e-3,
        lr_scaling: Literal["none", "sqrt", "linear"] = "none",
        weight_decay: float = 0.01,
        beta2: float = 0.999,
        pct_start: float = 0.3,
        div_factor: float = 10.0,
        compile_mode: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off",
        channels_last: bool = False,
        matmul_precision: Literal["highest", "high", "medium"] = "high",
        seed: int = 0,
    ) -> None:
        """Build the network.

        Args:
            net: Architecture and regularization: the options of model.py.
            spec: Shapes and statistics of the data; from the data module.
            source: The options of data.py; from the data module.
            lr: Peak learning rate.
            lr_scaling: Multiply `lr` by (the square root of) the micro-batches per step: ranks x accumulated ones.
            weight_decay: Decoupled weight decay of matrices and convolutions; none for biases and norms.
            beta2: AdamW's beta2; 1cycle moves beta1 between 0.85 and 0.95.
            pct_start: 1cycle: fraction of the steps in which the learning rate rises.
            div_factor: 1cycle: peak learning rate divided by the initial one.
            compile_mode: Mode of torch.compile for the network.
            channels_last: Keep convolution weights and activations in NHWC, which Tensor Cores prefer.
            matmul_precision: Precision of fp32 matrix products; high: TF32 on GPUs that have it.
            seed: Seed of dropout and augmentation; it is `seed_everything`.
        """
        super().__init__()
        self.lr, self.lr_scaling, self.seed = lr, lr_scaling, seed  # lr_find sets `lr`
        self.adamw: dict[str, Any] = {"weight_decay": weight_decay, "betas": (0.9, beta2)}
        self.cycle: dict[str, Any] = {"pct_start": pct_start, "div_factor": div_factor}
        torch.set_float32_matmul_precision(matmul_precision)
        self.net: nn.Module = build(net, spec)
        if channels_last:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.compile_mode = compile_mode
        if compile_mode != "off":
            # in place: the names of parameters stay the same
            self.net.compile(dynamic=False, mode=compile_mode)
        self.prepare = Prepare(spec, source)  # on the device
        self.train_means, self.val_means = Means(), Means()

    def on_fit_start(self) -> None:
        if (
            self.compile_mode in ("reduce-overhead", "max-autotune")
            and self.trainer.accumulate_grad_batches > 1
        ):
            other = "use default, or trainer.accumulate_grad_batches=1"
            raise UserError(
                f"model.compile_mode is {self.compile_mode}: its CUDA graphs overwrite gradients that are kept: {other}"
            )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss.

        Random numbers follow from the step: a resumed run draws the same ones.
        """
        trainer = self.trainer
        micro = (
            batch_idx % trainer.accumulate_grad_batches * trainer.world_size + trainer.global_rank
        )
        generator = self.seeded((self.seed * 1_000_003 + trainer.global_step) * 65_537 + micro)
        loss, metrics = compute_loss(self.net, self.prepare(batch, True, generator))
        self.train_means.add(metrics)
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log every `log_every_n_steps`: on a tiny model, `self.log` in each step costs a third of it."""
        trainer: Any = self.trainer
        if (self.global_step + 1) % trainer.log_every_n_steps == 0:
            means = self.train_means.read(self.all_gather)
            self.log("train/loss", means.pop("loss"), prog_bar=True)
            norm: Any = nn.utils.get_total_norm(
                [it.grad for it in self.parameters() if it.grad is not None]
            )
            # of sharded gradients
            means["grad_norm"] = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            means["lr"] = optimizer.param_groups[0]["lr"]
            self.log_dict({f"train/{name}": value for name, value in means.items()})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, metrics = compute_loss(self.net, self.prepare(batch, False, self.seeded(batch_idx)))
        self.val_means.add(metrics)

    test_step = validation_step

    def on_validation_epoch_end(self, split: str = "val") -> None:
        """Log sums over counts of all ranks; `self.log(..., sync_dist=True)` gives means of the means of batches."""
        means = self.val_means.read(self.all_gather)
        self.log_dict({f"{split}/{name}": value for name, value in means.items()}, prog_bar=True)

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end("test")

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the network's predictions for a batch."""
        net: Any = self.net
        inputs = self.prepare(batch, False, self.seeded(batch_idx))
        if not isinstance(inputs, dict):
            inputs = dict(zip(signature(net.forward).parameters, inputs, strict=False))
        found: Tensor = net.predict(
            **{name: inputs[name] for name in signature(net.predict).parameters}
        )
        return found

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        exempt = no_weight_decay(self.net)
        trained = [
            (name, parameter)
            for name, parameter in self.net.named_parameters()
            if parameter.requires_grad
        ]
        decayed = [
            parameter for name, parameter in trained if parameter.ndim >= 2 and name not in exempt
        ]
        rest = [parameter for name, parameter in trained if parameter.ndim < 2 or name in exempt]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
        ratio = self.trainer.world_size * self.trainer.accumulate_grad_batches
        lr = self.lr * {"none": 1.0, "sqrt": math.sqrt(ratio), "linear": ratio}[self.lr_scaling]
        # there, a fused optimizer unscales after the clipping
        fused = self.trainer.precision != "16-mixed"
        optimizer = torch.optim.AdamW(
            [it for it in groups if it["params"]], lr=lr, fused=fused, **self.adamw
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self.one_cycle(optimizer), "interval": "step"},
        }

    def one_cycle(self, optimizer: Optimizer) -> OneCycleLR:
        """Return the 1cycle schedule up to the optimizer's rates: Smith and Topin 2018 (arXiv:1708.07120)."""
        rates, steps = (
            [group["lr"] for group in optimizer.param_groups],
            int(self.trainer.estimated_stepping_batches),
        )
        has_momentum = "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum"))
        return OneCycleLR(
            optimizer, rates, total_steps=steps, cycle_momentum=has_momentum, **self.cycle
        )

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip here, as Lightning refuses to clip with a fused optimizer under bf16-mixed, where nothing is scaled."""
        if gradient_clip_val is None or isinstance(
            self.trainer.strategy, FSDPStrategy | DeepSpeedStrategy
        ):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(self.parameters(), gradient_clip_val)
        else:
            nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def seeded(self, number: int) -> torch.Generator:
        """Seed the device's default generator, from which dropout draws as well, and return it."""
        if self.device.type == "cpu":
            return torch.default_generator.manual_seed(number % 2**63)
        if self.device.index is None:  # mps, whose default generator is not public
            torch.manual_seed(number % 2**63)
            return torch.Generator(self.device).manual_seed(number % 2**63)
        generator: torch.Generator = torch.get_device_module(self.device).default_generators[
            self.device.index
        ]
        return generator.manual_seed(number % 2**63)
