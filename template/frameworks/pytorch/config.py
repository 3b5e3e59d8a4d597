"""The config of a run: one dataclass per section, a docstring under each field, ranges checked.

The command line overrides YAML files, which override the defaults; see config_files.py. Components
add sections: see components/__init__.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .config_base import Section, is_folder_name, within
from .config_files import parse as parse
from .data import DataConfig
from .model import ModelConfig


@dataclass(frozen=True)
class RunConfig(Section):
    """The run, and the folder of its files."""

    dir: Path = Path("runs")
    """Parent folder of all runs."""
    name: str | None = None
    """Name of the run's folder, null for the date and time. A run of this name is resumed."""
    seed: int = within("[0, 2147483647]", 0)
    """Seed of the initial weights, sample order, augmentation and dropout."""
    device: Literal["auto", "accelerator", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Device to train on.

    auto: the accelerator if there is one, else the CPU; accelerator: an error without one.
    """
    hours: float | None = within("(0, inf)", None)
    """Hours after which the run saves a checkpoint and exits with status 75; null for no limit."""
    keep: int = within("[1, inf)", 2)
    """Newest checkpoints to keep, besides the best one."""
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
    """Samples per forward pass and rank."""
    gradient_accumulation_steps: int = within(
        "[1, inf)", 1, overridden_by="train.global_batch_size"
    )
    """Micro-batches per optimizer step; the global batch is ranks x batch_size x this."""
    global_batch_size: int | None = within("[1, inf)", None)
    """Samples per optimizer step over all ranks; overrides `gradient_accumulation_steps`."""
    eval_every: int | None = within("[1, inf)", None)
    """Optimizer steps between validations, with a checkpoint each; null for once per epoch."""
    monitor: str = "loss"
    """Validation metric that decides which checkpoint is the best."""
    monitor_mode: Literal["min", "max"] | None = None
    """Whether a lower or a higher value of `monitor` is better; null: min, for the loss only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.monitor_mode is None and self.monitor != "loss":
            self.refuse("monitor", "set train.monitor_mode, min or max, as well")
        if self.monitor_mode == "max" and self.monitor == "loss":
            self.refuse("monitor_mode", "a lower loss is better, so set it to min")

    def accumulation_steps(self, ranks: int) -> int:
        """Return the micro-batches of a rank per optimizer step."""
        if self.global_batch_size is None:
            return self.gradient_accumulation_steps
        at_once = self.batch_size * ranks
        if self.global_batch_size % at_once:
            self.refuse(
                "global_batch_size",
                f"it must be a multiple of batch_size x ranks = {at_once}",
            )
        return self.global_batch_size // at_once

    def samples_per_step(self, ranks: int) -> int:
        """Return the global batch."""
        return self.batch_size * ranks * self.accumulation_steps(ranks)


@dataclass(frozen=True)
class LoaderConfig(Section):
    """Loading samples and copying them to the device."""

    num_workers: int | Literal["auto"] = within("[0, 256]", "auto")
    """Loader processes per rank for training, and as many again for validation.

    auto: 0 for data in memory, else one per core of the rank, at most 32.
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
    lr_scaling: Literal["none", "sqrt", "linear"] = "none"
    """Multiply `lr` by (the square root of) the global batch divided by `base_batch`."""
    base_batch: int = within("[1, inf)", 128)
    """Global batch, in samples, that `lr` was tuned for; used by `lr_scaling` only."""
    weight_decay: float = within("[0, inf)", 0.01)
    """Decoupled weight decay of matrices and convolutions."""
    beta1: float = within("[0, 1)", 0.9, overridden_by="optim.cycle_momentum")
    """AdamW's beta1, if you give it: else 1cycle moves it, unless `cycle_momentum` is false."""
    beta2: float = within("[0, 1)", 0.999)
    """AdamW's beta2."""
    eps: float = within("(0, 1)", 1e-8)
    """AdamW's epsilon."""
    max_grad_norm: float | None = within("(0, inf)", 1.0)
    """Maximum global gradient norm; null for off."""
    pct_start: float = within("(0, 1)", 0.3)
    """1cycle: fraction of the steps in which the learning rate rises."""
    div_factor: float = within("[1, inf)", 10.0)
    """1cycle: peak learning rate divided by the initial one."""
    final_div_factor: float = within("[1, inf)", 1e4)
    """1cycle: initial learning rate divided by the final one."""
    cycle_momentum: bool = True
    """1cycle: lower beta1 from 0.95 to 0.85 while the learning rate rises, and raise it again."""


@dataclass(frozen=True)
class SpeedConfig(Section):
    """Precision, kernels and compilation."""

    precision: Literal["auto", "bf16", "fp16", "tf32", "fp32"] = "auto"
    """Precision of matrix products.

    auto: bf16 if the device supports it, fp16 on older Tensor Cores, else fp32; tf32: fp32 with
    products in TF32, on GPUs that have it. With bf16 and fp16, products that stay in fp32 use TF32.
    """
    compile: Literal["off", "model"] = "off"
    """torch.compile: fused kernels, for a longer start."""
    compile_mode: Literal[
        "default",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
    ] = "default"
    """Mode of torch.compile.

    reduce-overhead uses CUDA graphs, max-autotune benchmarks kernels at the start.
    """
    channels_last: bool | Literal["auto"] = "auto"
    """Keep convolutions' weights and activations in NHWC, for Tensor Cores; auto: on CUDA."""
    cudnn_benchmark: bool = True
    """Let cuDNN benchmark its convolution algorithms for each new shape, and use the fastest."""

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether torch.compile uses CUDA graphs: the next step overwrites what they return."""
        return self.compile == "model" and self.compile_mode in (
            "reduce-overhead",
            "max-autotune",
        )


@dataclass(frozen=True)
class LogConfig(Section):
    """Logging."""

    every: int = within("[1, inf)", 10)
    """Optimizer steps between rows of training metrics; a row synchronizes with the device."""


@dataclass(frozen=True)
class BaseConfig:
    """The sections of every project."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def check_cuda_graphs(self, ranks: int) -> None:
        """Refuse CUDA graphs of torch.compile where gradients are kept for the next micro-batch."""
        if self.speed.has_cuda_graphs and self.train.accumulation_steps(ranks) > 1:
            problem = "its CUDA graphs overwrite gradients that are kept"
            other = "default or max-autotune-no-cudagraphs"
            fix = f"use {other}, or train.gradient_accumulation_steps=1"
            self.speed.refuse("compile_mode", f"{problem}: {fix}")
