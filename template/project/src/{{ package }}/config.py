"""Every value of a run: a dataclass a section, a docstring under each field, ranges checked.

The command line goes before YAML files, and these before the defaults. A `Config` is made once and never changed.
"""

import dataclasses
import json
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser, set_parsing_settings

from .data import DataConfig
from .errors import UserError
from .model import ModelConfig


def _require(holds: bool, key: str, value: object, allowed: str) -> None:
    if not holds:
        raise UserError(f"{key} is {value!r}: it must be {allowed}")


@dataclass(frozen=True)
class RunConfig:
    """One run, one folder."""

    dir: Path = Path("runs")
    """The folder that holds all runs."""
    name: str | None = None
    """The run's folder inside it; null makes one of the date and time."""
    resume: str | None = None
    """Continue a run: its folder, one of its checkpoints, or `auto` for the newest good one of `run.name`, if any."""
    seed: int = 0
    """Seed of weights, sample order and noise."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes the accelerator if there is one."""

    def __post_init__(self) -> None:
        _require(0 <= self.seed < 2**31, "run.seed", self.seed, "from 0 to 2147483647")
        plain = self.name is None or (self.name not in ("", ".", "..") and Path(self.name).name == self.name)
        _require(plain, "run.name", self.name, "a folder's name, without a slash")
        _require(self.resume != "auto" or self.name is not None, "run.name", self.name, "given, for run.resume=auto")


@dataclass(frozen=True)
class TrainConfig:
    """How long, and in batches of what size."""

    epochs: float = 10.0
    """Passes over the training data; parts of one are allowed."""
    steps: int | None = None
    """Optimizer steps; when given, it decides instead of `epochs`."""
    micro_batch: int = 128
    """Samples in one forward pass of one rank."""
    accumulate: int = 1
    """Forward passes in one optimizer step: the global batch is ranks x micro_batch x accumulate."""
    eval_every: int | None = None
    """Optimizer steps between validations, each of which saves a checkpoint; null: once an epoch."""

    def __post_init__(self) -> None:
        _require(0 < self.epochs < math.inf, "train.epochs", self.epochs, "above 0")
        _require(self.steps is None or self.steps > 0, "train.steps", self.steps, "above 0, or null")
        _require(self.micro_batch > 0, "train.micro_batch", self.micro_batch, "above 0")
        _require(self.accumulate > 0, "train.accumulate", self.accumulate, "above 0")
        _require(self.eval_every is None or self.eval_every > 0, "train.eval_every", self.eval_every, "above 0 or null")


@dataclass(frozen=True)
class LoaderConfig:
    """How samples reach the device."""

    workers: int | Literal["auto"] = "auto"
    """Loader processes a rank; auto: none where samples lie in memory already, else by cores and ranks, at most 4."""
    pin_memory: bool = True
    """Page-locked host memory, so that copies to a CUDA device overlap with work; without one it does nothing."""
    prefetch: int = 2
    """Batches that each worker holds ready."""

    def __post_init__(self) -> None:
        _require(self.workers == "auto" or 0 <= self.workers <= 256, "loader.workers", self.workers, "auto or 0 to 256")
        _require(1 <= self.prefetch <= 64, "loader.prefetch", self.prefetch, "from 1 to 64")


@dataclass(frozen=True)
class OptimConfig:
    """AdamW on a 1cycle schedule (Smith and Topin 2018, arXiv:1708.07120), counted in optimizer steps."""

    lr: float = 1e-3
    """Peak learning rate, for a global batch of `base_batch` samples."""
    lr_scaling: Literal["linear", "sqrt", "none"] = "sqrt"
    """How the peak follows the global batch: linear, Goyal et al. 2017, arXiv:1706.02677; sqrt, Malladi et al. 2022."""
    base_batch: int = 128
    """The global batch, in samples, for which `lr` was chosen."""
    weight_decay: float = 0.01
    """Decoupled weight decay, on matrices and convolutions alone."""
    beta1: float = 0.9
    """AdamW's momentum where the schedule does not cycle it."""
    beta2: float = 0.999
    """AdamW's decay of squared gradients."""
    eps: float = 1e-8
    """AdamW's floor of the denominator."""
    clip: float | None = 1.0
    """Largest norm of the whole gradient; null for off."""
    schedule: Literal["onecycle", "constant"] = "onecycle"
    """The learning rate over the run."""
    pct_start: float = 0.3
    """1cycle: share of the steps in which the rate rises."""
    div_factor: float = 10.0
    """1cycle: the peak over the first rate."""
    final_div_factor: float = 1e4
    """1cycle: the first rate over the last."""
    cycle_momentum: bool = True
    """1cycle: momentum falls from 0.95 to 0.85 while the rate rises, and comes back."""

    def __post_init__(self) -> None:
        _require(0 < self.lr < math.inf, "optim.lr", self.lr, "above 0")
        _require(self.base_batch > 0, "optim.base_batch", self.base_batch, "above 0")
        _require(0 <= self.weight_decay < math.inf, "optim.weight_decay", self.weight_decay, "0 or above")
        _require(0 <= self.beta1 < 1, "optim.beta1", self.beta1, "from 0 to below 1")
        _require(0 <= self.beta2 < 1, "optim.beta2", self.beta2, "from 0 to below 1")
        _require(0 < self.eps < 1, "optim.eps", self.eps, "between 0 and 1")
        _require(self.clip is None or 0 < self.clip < math.inf, "optim.clip", self.clip, "above 0, or null for off")
        _require(0 < self.pct_start < 1, "optim.pct_start", self.pct_start, "between 0 and 1")
        _require(1 <= self.div_factor < math.inf, "optim.div_factor", self.div_factor, "1 or above")
        _require(1 <= self.final_div_factor < math.inf, "optim.final_div_factor", self.final_div_factor, "1 or above")


@dataclass(frozen=True)
class SpeedConfig:
    """What makes a step fast; each switch leaves the result the same within its precision."""

    precision: Literal["auto", "bf16", "fp16", "tf32", "fp32"] = "auto"
    """Number format of matrix products. auto: bf16 where the device has it, fp16 on older Tensor Cores, else fp32."""
    compile: Literal["off", "model"] = "off"
    """torch.compile: fused kernels, for a wait of some seconds to a minute at the start."""
    channels_last: bool = True
    """Convolution weights in channels-last memory order, which Tensor Cores read without a transpose."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its convolution kernels once a shape and keep the fastest."""


@dataclass(frozen=True)
class LogConfig:
    """What is written down while training."""

    every: int = 10
    """Optimizer steps between rows; each row waits for the device once."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    progress: bool = True
    """Show a progress bar where the output is a terminal."""

    def __post_init__(self) -> None:
        _require(self.every > 0, "log.every", self.every, "above 0")


@dataclass(frozen=True)
class CheckpointConfig:
    """Saved states of a run."""

    every: int | None = None
    """Optimizer steps between checkpoints, beside one at each validation; null: only those."""
    keep: int = 2
    """How many of the newest stay on disk."""

    def __post_init__(self) -> None:
        _require(self.every is None or self.every > 0, "checkpoint.every", self.every, "above 0, or null")
        _require(self.keep > 0, "checkpoint.keep", self.keep, "above 0")


@dataclass(frozen=True)
class Config:
    """All sections of a run."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


set_parsing_settings(docstring_parse_attribute_docstrings=True)


class Parser(ArgumentParser):
    """jsonargparse's parser, with errors of one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        line = re.sub(
            r"<class '(\w+)'>|typing\.(?=Literal)|Parser key \"([\w.]+)\"", r"\1\2", " ".join(message.split())
        )
        print(f"{self.prog}: error: {line} (--help lists what is accepted)", file=sys.stderr)
        sys.exit(2)


def parse(module: str, description: str, argv: list[str] | None = None) -> Config:
    """Read a `Config` from the command line of `python -m module` and the YAML files that it names.

    Raises:
        UserError: a value is out of its range.
        SystemExit: an unknown key, a wrong type, an unreadable file; or --help and --print_config, after printing.
    """
    parser = Parser(prog=f"python -m {module}", description=description, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="A YAML file of values; what follows it overrides it.")
    parser.add_class_arguments(Config, None)
    values = parser.instantiate(parser.parse_args(argv))
    return Config(**{name: value for name, value in vars(values).items() if name != "config"})


def from_dict(values: dict[str, Any]) -> Config:
    """Make a `Config` of what `as_dict` gave, from a checkpoint's manifest, say."""
    parser = Parser(prog="config")
    parser.add_class_arguments(Config, None)
    return Config(**vars(parser.instantiate(parser.parse_object(values))))


def as_dict(cfg: Config) -> dict[str, dict[str, Any]]:
    """Plain values by section and key, fit for JSON and for YAML."""
    return dict(json.loads(json.dumps(dataclasses.asdict(cfg), default=str)))
