"""What this project adds to Accelerate: options, the order of the samples, checkpoints by `save_state`, trackers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    DynamoBackend,
)
from safetensors import SafetensorError
from torch.utils.data import DataLoader

from . import checkpoint, loader, precision
from .config import BaseConfig
from .config_base import Section
from .contracts import collate_fn
from .distributed import World
from .errors import UserError
from .loader import BatchPlan


@dataclass(frozen=True)
class AccelerateConfig(Section):
    """What Accelerate does beside training."""

    tracker: str | None = None
    """Experiment tracker (`log_with`), such as tensorboard, wandb or mlflow; null for none.

    Install its package.
    """


@dataclass(frozen=True)
class Config(BaseConfig):
    """All sections of the config."""

    accelerate: AccelerateConfig = field(default_factory=AccelerateConfig)


def create(cfg: Config, world: World, plan: BatchPlan, folder: Path) -> tuple[Accelerator, str]:
    """Return the Accelerator and the precision; refuse what it would ignore or do otherwise than the config says."""
    available = [tracker.value for tracker in get_available_trackers()]
    if cfg.accelerate.tracker not in (None, *available):
        cfg.accelerate.refuse(
            "tracker", f"the installed trackers are {', '.join(available) or 'none'}"
        )
    # by `accelerate launch`
    speed, asked = (
        cfg.speed,
        os.environ.get("ACCELERATE_MIXED_PRECISION", "no"),
    )
    if speed.precision == "auto" and asked != "no":
        if asked not in ("bf16", "fp16"):
            raise UserError(f"mixed_precision of Accelerate is {asked}: choose no, bf16 or fp16")
        speed = replace(speed, precision="fp16" if asked == "fp16" else "bf16")
    name, _, _ = precision.setup(speed, world.device)
    if name == "fp16" and world.device.type == "cpu":
        speed.refuse("precision", "Accelerate has fp16 on GPUs only: use bf16")
    accelerator = Accelerator(
        cpu=world.device.type == "cpu",
        mixed_precision=name if name in ("bf16", "fp16") else "no",
        gradient_accumulation_steps=plan.accumulate,
        dataloader_config=DataLoaderConfiguration(non_blocking=True),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        log_with=cfg.accelerate.tracker,
        project_dir=folder,
    )
    if is_sharded := accelerator.distributed_type == DistributedType.FSDP:
        # It would untie shared weights, and saves no memory, as each rank builds the model.
        accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = False
    if accelerator.device.type != world.device.type:
        cfg.run.refuse("device", f"Accelerate is configured for {accelerator.device.type}")
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        raise UserError("dynamo_backend of Accelerate is set: use speed.compile instead")
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and not is_sharded:
        raise UserError("Accelerate has FSDP on GPUs only: start without it")
    if cfg.optim.clip_value is not None and (name == "fp16" or is_sharded):
        cfg.optim.refuse(
            "clip_value", "Accelerate cannot combine it with fp16 or FSDP: use optim.clip"
        )
    return accelerator, name


def torch_loader(core: loader.Loader, order: "GlobalBatches") -> DataLoader[Any]:
    """Return torch's loader, with the core's workers and pinned memory."""
    if isinstance(core.loader, DataLoader):
        return core.loader
    dataset: Any = core.dataset
    collate = collate_fn(dataset) or loader.collate
    return DataLoader(dataset, batch_sampler=order, collate_fn=collate, pin_memory=core.pin_memory)


class GlobalBatches:
    """A batch sampler of the micro-batches of all ranks, to the end of the run; Accelerate deals them out in turn."""

    drop_last = True  # there are whole global batches only

    def __init__(self, plan: BatchPlan, world: World, seed: int) -> None:
        self.plan = replace(plan, accumulate=plan.accumulate * world.size)
        self.batch_size, self.seed, self.first_step = plan.micro_batch, seed, 0

    def __len__(self) -> int:
        return (self.plan.total_steps - self.first_step) * self.plan.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        return loader.train_batches(
            self.plan, World(0, 1, torch.device("cpu")), self.seed, self.first_step
        )


class Checkpoints(checkpoint.Checkpoints):
    """Checkpoints of `accelerator.save_state`, beside `state.pt` with the counters of the run."""

    def __init__(
        self, run_folder: Path, keep: int, world: World, accelerator: Accelerator, net: Any
    ) -> None:
        super().__init__(run_folder, keep, world)
        self.accelerator, self.net = accelerator, net
        # Weights that inference mode has gathered cannot be trained.
        self.is_sharded = accelerator.distributed_type == DistributedType.FSDP

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the files of all ranks, and flush them to disk; an error of one rank is one of all."""
        super().write(folder, state)
        problem = ""
        try:
            if self.is_sharded:  # the whole weights, in one file beside the shards
                for buffer in self.net.buffers():  # such as BatchNorm's running statistics
                    dist.broadcast(buffer, src=0)
                self.accelerator.save_model(self.net, str(folder), max_shard_size="1000TB")
            self.accelerator.save_state(str(folder))
        except (OSError, RuntimeError, SafetensorError) as error:  # such as a full disk
            problem = (str(error) or type(error).__name__).splitlines()[0]
        if self.world.all_reduce(torch.tensor(float(bool(problem)))):
            raise UserError(f"cannot write {folder}: {problem or 'another rank has an error'}")
        self.world.run_on_rank_zero(lambda: _flush(folder))

    def read(self, folder: Path, state: dict[str, Any]) -> dict[str, Any]:
        """Load the state of the model, the optimizer and the scaler; return the counters."""
        counters = super().read(folder, state)
        self.accelerator.load_state(str(folder))
        # its micro-batches, of which a step may have another number now
        self.accelerator.step = 0
        return counters


def _flush(folder: Path) -> None:
    for file in folder.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)  # of a file or a folder
        os.fsync(descriptor)
        os.close(descriptor)


@contextmanager
def trackers(accelerator: Accelerator, cfg: Config) -> Iterator[None]:
    """Start the tracker with the config, and finish it in the end, after an error too."""
    sections: dict[str, dict[str, Any]] = asdict(cfg)
    options = {
        f"{name}.{key}": str(value)
        for name, section in sections.items()
        for key, value in section.items()
    }
    accelerator.init_trackers(str(__package__), options)
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()
