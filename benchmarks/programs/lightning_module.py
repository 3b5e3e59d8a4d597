"""Train a LightningModule written by hand, with the network, data and recipe of a `proj`.

    python lightning_module.py STEPS EVERY BATCH WIDTH LR

The module does what Lightning's documentation shows: it returns the loss, logs it in each step, and
configures AdamW and OneCycleLR. The Trainer has its defaults, but for the number of steps,
clipping, and where the result would differ. Prints JSON: the microseconds per step of each block of
EVERY steps, and the loss of the validation after the last one.
"""

import json
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from peer_setup import module


class ByHand(LightningModule):
    """The network of model.py."""

    def __init__(
        self,
        net: torch.nn.Module,
        prepare: Any,
        lr: float,
    ) -> None:
        super().__init__()
        self.net = net
        self.prepare = prepare
        self.lr = lr

    def training_step(
        self,
        batch: Any,
        batch_idx: int,
    ) -> torch.Tensor:
        """Return the loss, and log it."""
        inputs = self.prepare(batch, True, torch.default_generator)
        loss: torch.Tensor = self.net(*inputs)[0]
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(
        self,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the loss, whose mean over the samples Lightning computes."""
        inputs = self.prepare(batch, False, torch.default_generator)
        loss, _ = self.net(*inputs)
        self.log("val_loss", loss, batch_size=len(inputs[0]))

    def configure_optimizers(self) -> Any:
        """Return AdamW and OneCycleLR."""
        decayed = [parameter for parameter in self.net.parameters() if parameter.ndim >= 2]
        rest = [parameter for parameter in self.net.parameters() if parameter.ndim < 2]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": rest, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            groups,
            lr=self.lr,
            weight_decay=0.5,
            fused=True,
        )
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, total_steps=steps, div_factor=10
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Clock(Callback):
    """Measures blocks of steps."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.times: list[float] = []
        self.begin = 0.0

    def on_train_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
    ) -> None:
        """Start the clock."""
        self.begin = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Note the time of a block."""
        if trainer.global_step % self.every == 0:
            now = time.perf_counter()
            self.times.append((now - self.begin) / self.every * 1e6)
            self.begin = now


def main() -> None:
    """Train, validate, and print."""
    steps, every, batch, width = map(int, sys.argv[1:5])
    data = module("data")
    model = module("model")
    seed_everything(0, verbose=False)
    samples = module("datamodule").Data(data.DataConfig(), batch_size=batch)
    cfg = model.ModelConfig(width=width, depth=1, dropout=0.0)
    net = model.build(cfg, samples.spec)
    prepare = data.Prepare(samples.spec, samples.source)
    clock = Clock(every)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        gradient_clip_val=1e9,
        log_every_n_steps=every,
        val_check_interval=steps,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,  # the samples have an order of their own
        num_sanity_val_steps=0,
        callbacks=[clock],
    )
    trainer.fit(ByHand(net, prepare, lr=float(sys.argv[5])), samples)
    loss = trainer.callback_metrics["val_loss"].item()
    print(json.dumps({"times": clock.times, "loss": loss}))


if __name__ == "__main__":
    main()
