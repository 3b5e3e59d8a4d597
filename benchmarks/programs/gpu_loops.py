"""Train the network of a rendered `proj` with the loops of others, on a GPU.

All have the data, network, AdamW, precision, batch size and compilation of a row of `gpu_smoke.py`.
The loop and the loading differ.
"""

import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import torch
from peer_setup import NamedSamples, Samples, module
from torch import Tensor, nn
from torch.utils.data import DataLoader

WORKERS = 8
"""Processes that load samples, for loops that have such."""


class Setup:
    """What all loops share, and the clock."""

    def __init__(
        self,
        options: list[str],
        load: Callable[[Any], Any],
        every: int,
    ) -> None:
        loader = module("loader")
        distributed = module("distributed")
        precision = module("precision")
        cfg = module("config").parse(module("components").Config, options)
        self.cfg = cfg
        torch.manual_seed(cfg.run.seed)
        self.device: torch.device = distributed.find_device(cfg.run.device)
        self.cuda = self.device.type == "cuda"
        _, autocast, _ = precision.setup(cfg.speed, self.device)
        self.autocast: Callable[[], AbstractContextManager[Any]] = autocast

        self.train_set, _, self.spec = load(cfg.data)
        self.plan = loader.BatchPlan.make(cfg.train, len(self.train_set), 1)
        world = distributed.World(0, 1, self.device)
        batches = loader.train_batches(self.plan, world, cfg.run.seed, 0)
        self.order: list[list[int]] = list(batches)
        self.prepare = module("data").Prepare(self.spec, cfg.data).to(self.device)

        self.net: nn.Module = module("model").build(cfg.model, self.spec)
        self.channels_last = precision.use_channels_last(cfg.speed, self.device)
        if self.channels_last:
            self.net.to(memory_format=torch.channels_last)
        self.net.to(self.device)
        if cfg.speed.compile == "model":
            self.net.compile(dynamic=False, mode=cfg.speed.compile_mode)
        self.optimizer: torch.optim.Optimizer = module("optim").adamw(self.net, cfg.optim)

        self.every = every
        self.step = 0
        self.begin = 0.0
        self.seconds: list[float] = []
        """Time of each block of steps."""

    def start(self) -> None:
        """Start the clock."""
        self.begin = time.perf_counter()

    def tick(self) -> None:
        """Count a step; the device has ended the last one of a block."""
        self.step += 1
        if self.step % self.every == 0:
            if self.cuda:
                torch.cuda.synchronize()
            now = time.perf_counter()
            self.seconds.append(now - self.begin)
            self.begin = now

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a loaded batch."""
        inputs = self.prepare(tuple(batch), True, torch.default_generator)
        return self.loss_of(inputs)

    def loss_of(self, inputs: Any) -> Tensor:
        """Return the loss of prepared inputs."""
        loss: Tensor = module("loss").compute_loss(self.net, inputs)[0]
        return loss

    def clip(self) -> None:
        """Clip the gradients as the recipe does."""
        nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.optim.max_grad_norm)

    def schedule(self) -> torch.optim.lr_scheduler.OneCycleLR:
        """Return torch's 1cycle schedule."""
        steps = self.plan.total_steps + 1
        return torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, self.cfg.optim.lr, total_steps=steps
        )

    def samples(self) -> DataLoader[Any]:
        """Return a DataLoader of single samples in the order of the run."""
        return DataLoader(
            Samples(self.train_set),
            self.plan.batch_size,
            sampler=list(chain.from_iterable(self.order)),
            num_workers=WORKERS if self.cuda else 0,
            pin_memory=self.cuda,
            drop_last=True,
        )


def bare(setup: Setup) -> None:
    """Do what no loop can leave out, on one batch that is on the device already."""
    loaded = module("contracts").load_batch(setup.train_set, setup.order[0])
    batch = tuple(part.to(setup.device) for part in loaded)
    inputs = setup.prepare(batch, True, torch.default_generator)
    setup.start()
    for _ in setup.order:
        with setup.autocast():
            loss = setup.loss_of(inputs)
        loss.backward()
        setup.optimizer.step()
        setup.optimizer.zero_grad()
        setup.tick()


def nanogpt(setup: Setup) -> None:
    """Train as nanoGPT does: windows of one array, which are copied while the GPU computes."""
    tokens = setup.train_set.tensors[0].flatten()
    context = setup.spec.context

    def get_batch() -> Tensor:
        starts = torch.randint(len(tokens) - context, (setup.plan.batch_size,))
        rows = torch.stack([tokens[start : start + context + 1] for start in starts])
        if not setup.cuda:
            return rows
        return rows.pin_memory().to(setup.device, non_blocking=True)

    schedule = setup.schedule()
    setup.start()
    batch = get_batch()
    for _ in setup.order:
        with setup.autocast():
            loss = setup.loss((batch,))
        batch = get_batch()
        loss.backward()
        setup.clip()
        setup.optimizer.step()
        setup.optimizer.zero_grad(set_to_none=True)
        schedule.step()
        setup.tick()
        if setup.step % setup.every == 0:
            loss.item()


def timm(setup: Setup) -> None:
    """Train as timm's train.py does, with its clipping and its average of the losses."""
    utils = importlib.import_module("timm.utils")
    schedule = setup.schedule()
    losses = utils.AverageMeter()
    setup.start()
    for loaded in setup.samples():
        batch = [part.to(setup.device, non_blocking=True) for part in loaded]
        if setup.channels_last and batch[0].ndim == 4:
            batch[0] = batch[0].contiguous(memory_format=torch.channels_last)
        with setup.autocast():
            loss = setup.loss(batch)
        loss.backward()
        utils.dispatch_clip_grad(setup.net.parameters(), setup.cfg.optim.max_grad_norm, mode="norm")
        setup.optimizer.step()
        losses.update(loss.item(), len(batch[0]))
        setup.optimizer.zero_grad()
        schedule.step()
        setup.tick()


def lightning(setup: Setup) -> None:
    """Train a module that does what Lightning's documentation shows."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = setup.net
            self.prepare = setup.prepare

        def training_step(
            self,
            batch: Any,
            batch_idx: int,
        ) -> Tensor:
            loss = setup.loss(batch)
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return {
                "optimizer": setup.optimizer,
                "lr_scheduler": {"scheduler": setup.schedule(), "interval": "step"},
            }

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            setup.clip()  # Lightning refuses to clip with a fused optimizer under bf16-mixed

    class Clock(Callback):
        def on_train_start(self, *_: Any) -> None:
            setup.start()

        def on_train_batch_end(self, *_: Any) -> None:
            setup.tick()

    trainer = Trainer(
        accelerator="gpu" if setup.cuda else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=setup.plan.total_steps,
        callbacks=[Clock()],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,  # the samples have an order of their own
    )
    trainer.fit(Module(), setup.samples())


def hugging_face(setup: Setup) -> None:
    """Train with Hugging Face's Trainer, with its defaults if they do not change the result."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = setup.net
            self.prepare = setup.prepare

        def forward(self, **batch: Tensor) -> dict[str, Tensor]:
            return {"loss": setup.loss(batch.values())}

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            setup.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            setup.tick()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=not setup.cuda,
            bf16=True,
            max_steps=setup.plan.total_steps,
            per_device_train_batch_size=setup.plan.batch_size,
            max_grad_norm=setup.cfg.optim.max_grad_norm,
            dataloader_num_workers=WORKERS if setup.cuda else 0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        optimizers: Any = (setup.optimizer, setup.schedule())
        trainer = Trainer(
            Net(),
            arguments,
            train_dataset=NamedSamples(setup.train_set),
            optimizers=optimizers,
            callbacks=[Clock()],
        )
        trainer.train()


LOOPS: dict[str, Callable[[Setup], None]] = {
    "bare": bare,
    "nanogpt": nanogpt,
    "timm": timm,
    "lightning": lightning,
    "hugging_face": hugging_face,
}


def measure(
    loop: str,
    options: list[str],
    load: Callable[[Any], Any],
    every: int,
) -> list[float]:
    """Train with a loop; return the samples per second of each block of steps."""
    setup = Setup(options, load, every)
    LOOPS[loop](setup)
    return [every * setup.plan.global_batch_size / seconds for seconds in setup.seconds]


def ceiling() -> dict[str, float]:
    """Return TFLOP/s of a large product in bf16, and TB/s of a copy: what this GPU can do."""
    size = 128
    device = "cpu"
    if torch.cuda.is_available():
        size = 8192
        device = "cuda"
    square = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(square)
    product = min(_times(lambda: torch.mm(square, square, out=target)))
    copy = min(_times(lambda: target.copy_(square)))
    operations = 2 * size**3
    copied_bytes = 2 * square.nbytes
    return {"tflops": operations / product / 1e12, "copy_tb": copied_bytes / copy / 1e12}


def _times(work: Callable[[], object]) -> Iterator[float]:
    """Yield the seconds of a call in each of some blocks."""
    for _ in range(6):
        begin = time.perf_counter()
        for _ in range(20):
            work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        yield (time.perf_counter() - begin) / 20
