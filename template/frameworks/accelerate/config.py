"""The config of a run: one dataclass per section, a docstring under each field, ranges checked.

The command line overrides YAML files, which override the defaults; see config_files.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .config_base import Section, is_folder_name, within
from .config_files import parse as parse
from .data import DataConfig
from .model import ModelConfig

Device = Literal["auto", "accelerator", "cpu"]


@dataclass(frozen=True)
class RunConfig(Section):
    """The run, and the folder of its files."""

    dir: Path = Path("runs")
    """Parent folder of all runs."""
    name: str | None = None
    """Name of the run's folder, null for the date and time. A run of this name is resumed."""
    seed: int = within("[0, 2147483647]", 0)
    """Seed of the initial weights, sample order, augmentation and dropout."""
    device: Device = "auto"
    """Device to train on.

    auto: the accelerator if there is one, else the CPU; accelerator: an error without one.
    """
    hours: float | None = within("(0, inf)", None)
    """Hours after which the run saves a checkpoint and exits with status 75; null for no limit."""
    keep: int = within("[1, inf)", 2)
    """Newest checkpoints to keep, besides the best weights."""
    allow_changes: bool = False
    """Resume a run with other options or samples than it was trained with, such as more steps; the
    schedule is then that of the new options."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not is_folder_name(self.name):
            self.refuse("name", "it must be the name of a folder in run.dir")


@dataclass(frozen=True)
class TrainConfig(Section):
    """Length of the run, batch size, validation."""

    epochs: float = within("(0, inf)", 10.0, overridden_by="train.steps")
    """Passes over the training data; may be a fraction."""
    steps: int | None = within("[1, inf)", None)
    """Optimizer steps; overrides `epochs`."""
    batch_size: int = within("[1, inf)", 128)
    """Samples per forward pass and process."""
    gradient_accumulation_steps: int = within("[1, inf)", 1)
    """Micro-batches per optimizer step: `gradient_accumulation_steps` of Accelerate."""
    eval_every: int | None = within("[1, inf)", None)
    """Optimizer steps between validations, with a checkpoint each; null for once per epoch."""
    monitor: str = "loss"
    """Validation metric that decides which weights are the best."""
    monitor_mode: Literal["min", "max"] | None = None
    """Whether a lower or a higher value of `monitor` is better; null: min, for the loss only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.monitor_mode is None and self.monitor != "loss":
            self.refuse("monitor", "set train.monitor_mode, min or max, as well")
        if self.monitor_mode == "max" and self.monitor == "loss":
            self.refuse("monitor_mode", "a lower loss is better, so set it to min")


@dataclass(frozen=True)
class LoaderConfig(Section):
    """Options of torch's DataLoader."""

    num_workers: int | Literal["auto"] = within("[0, 256]", "auto")
    """Loader processes per process.

    auto: 0 for data in memory and on CPUs, else one per core, at most 8.
    """
    prefetch_factor: int = within("[1, 64]", 2)
    """Batches prefetched per worker."""
    pin_memory: bool = True
    """Use page-locked host memory, so that copies to a GPU are asynchronous."""
    timeout: float = within("(0, inf)", 600.0)
    """Seconds to wait for a batch, after which the run ends with an error."""


@dataclass(frozen=True)
class OptimConfig(Section):
    """AdamW, clipping and the 1cycle learning-rate schedule."""

    lr: float = within("(0, inf)", 1e-3)
    """Peak learning rate."""
    weight_decay: float = within("[0, inf)", 0.01)
    """Decoupled weight decay of matrices and convolutions."""
    beta2: float = within("[0, 1)", 0.999)
    """AdamW's beta2; 1cycle moves beta1 between 0.85 and 0.95."""
    eps: float = within("(0, 1)", 1e-8)
    """AdamW's epsilon."""
    max_grad_norm: float | None = within("(0, inf)", 1.0)
    """Maximum global gradient norm; null for off."""
    pct_start: float = within("(0, 1)", 0.3)
    """1cycle: fraction of the steps in which the learning rate rises."""
    div_factor: float = within("[1, inf)", 10.0)
    """1cycle: peak learning rate divided by the initial one."""


@dataclass(frozen=True)
class SpeedConfig(Section):
    """Precision, kernels and compilation."""

    precision: Literal["auto", "bf16", "fp16", "tf32", "fp32"] = "auto"
    """Precision of matrix products.

    auto: `mixed_precision` of `accelerate launch`; without a launcher, bf16 or fp16 on a CUDA GPU
    with Tensor Cores, else fp32. tf32: fp32 with products in TF32.
    """
    compile: Literal["off", "model"] = "off"
    """torch.compile: fused kernels, for a longer start."""
    channels_last: bool | Literal["auto"] = "auto"
    """Keep convolutions' weights and activations in NHWC, for Tensor Cores; auto: on CUDA."""
    cudnn_benchmark: bool = True
    """Let cuDNN benchmark its convolution algorithms for each new shape, and use the fastest."""


@dataclass(frozen=True)
class LogConfig(Section):
    """Logging."""

    every: int = within("[1, inf)", 10)
    """Optimizer steps between rows of training metrics, and between checks for a stop."""


@dataclass(frozen=True)
class AccelerateConfig(Section):
    """What Accelerate does beside training."""

    tracker: str | None = None
    """Experiment tracker (`log_with`), such as tensorboard, wandb or mlflow; null for none.

    Install its package.
    """


@dataclass(frozen=True)
class Config:
    """All sections."""

    run: RunConfig
    data: DataConfig
    model: ModelConfig
    train: TrainConfig
    loader: LoaderConfig
    optim: OptimConfig
    speed: SpeedConfig
    log: LogConfig
    accelerate: AccelerateConfig
