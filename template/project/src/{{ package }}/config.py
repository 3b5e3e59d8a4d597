"""Every value of a run: a dataclass a section, a docstring under each field, ranges checked.

The command line goes before YAML files, and these before the defaults. A `Config` is made once and never changed.
"""

import dataclasses
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser, set_parsing_settings

from .config_base import Section, within
from .data import DataConfig
from .model import ModelConfig


@dataclass(frozen=True)
class RunConfig(Section):
    """One run, one folder."""

    dir: Path = Path("runs")
    """The folder that holds all runs."""
    name: str | None = None
    """The run's folder inside it; null makes one of the date and time."""
    resume: str | None = None
    """Continue a run: its folder, one of its checkpoints (`checkpoints/best`, say), or `auto` for the newest good one
    of `run.name`, if it has any."""
    seed: int = within("[0, 2147483647]", 0)
    """Seed of weights, sample order and noise."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes the accelerator if there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and (self.name in ("", ".", "..") or Path(self.name).name != self.name):
            self.refuse("name", "it must be a folder's name, without a slash")
        if self.resume == "auto" and self.name is None:
            self.refuse("name", "it must be given, for run.resume=auto")


@dataclass(frozen=True)
class TrainConfig(Section):
    """How long, and in batches of what size."""

    epochs: float = within("(0, inf)", 10.0)
    """Passes over the training data; parts of one are allowed."""
    steps: int | None = within("[1, inf)", None)
    """Optimizer steps; when given, it decides instead of `epochs`."""
    micro_batch: int = within("[1, inf)", 128)
    """Samples in one forward pass of one rank."""
    accumulate: int = within("[1, inf)", 1)
    """Forward passes in one optimizer step: the global batch is ranks x micro_batch x accumulate."""
    global_batch: int | None = within("[1, inf)", None)
    """Samples in one optimizer step over all ranks; when given, it decides instead of `accumulate`."""
    eval_every: int | None = within("[1, inf)", None)
    """Optimizer steps between validations, each of which saves a checkpoint; null: once an epoch."""
    ema: float | None = within("(0, 1)", None)
    """Validate and keep an exponential moving average of the weights, with this decay (0.999, say); null for off."""
    monitor: str = "loss"
    """The held-out metric by which one checkpoint is better than another."""
    monitor_mode: Literal["min", "max"] | None = None
    """Whether a smaller or a larger value of it is better; to be given for any other than loss, of which it is min."""
    patience: int | None = within("[1, inf)", None)
    """Stop after so many validations in a row that are no better than the best before; null: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.monitor != "loss" and self.monitor_mode is None:
            self.refuse("monitor", "train.monitor_mode must say whether its min or its max is best")


@dataclass(frozen=True)
class LoaderConfig(Section):
    """How samples reach the device."""

    workers: int | Literal["auto"] = within("[0, 256]", "auto")
    """Loader processes a rank; auto: none where samples lie in memory already, else by cores and ranks, at most 4."""
    persistent_workers: bool = True
    """Keep validation's loader processes from one validation to the next; those of training live as long as it does."""
    prefetch_factor: int = within("[1, 64]", 2)
    """Batches that each worker holds ready."""
    pin_memory: bool = True
    """Page-locked host memory, so that copies to a CUDA device overlap with work; without one it does nothing."""
    side_stream: bool = True
    """Copy the next batch to a CUDA device on a stream of its own, while the device computes on the present one."""


@dataclass(frozen=True)
class OptimConfig(Section):
    """The update of the weights, and its learning rate over the run, counted in optimizer steps."""

    name: Literal["adamw", "sgd", "muon", "lamb", "lars", "novograd"] = "adamw"
    """The optimizer: adamw, sgd (Nesterov), muon (2-D weights of blocks; adamw for the rest), or, for very large
    batches, lamb, lars, novograd."""
    lr: float = within("(0, inf)", 1e-3)
    """Peak learning rate, for a global batch of `base_batch` samples."""
    lr_scaling: Literal["linear", "sqrt", "none"] = "sqrt"
    """How the peak follows the global batch: linear, Goyal et al. 2017, arXiv:1706.02677; sqrt, Malladi et al. 2022."""
    base_batch: int = within("[1, inf)", 128)
    """The global batch, in samples, for which `lr` was chosen."""
    weight_decay: float = within("[0, inf)", 0.01)
    """Weight decay, on matrices and convolutions alone: decoupled, but in sgd and lars added to the gradient."""
    beta1: float = within("[0, 1)", 0.9)
    """Momentum (beta1 of the Adam family), unless `cycle_momentum` sets it, as it does with 1cycle by default."""
    beta2: float = within("[0, 1)", 0.999)
    """Decay of squared gradients, in the Adam family."""
    eps: float = within("(0, 1)", 1e-8)
    """Floor of the denominator, in the Adam family."""
    fused: bool = True
    """The update of all weights in one kernel, where the optimizer has one (adamw, sgd)."""
    set_to_none: bool = True
    """Drop the gradients after a step; false fills them with zeros, which costs a write and a read of each."""
    clip: float | None = within("(0, inf)", 1.0)
    """Largest norm of the whole gradient; null for off."""
    schedule: Literal["onecycle", "cyclic", "cosine", "wsd", "constant", "range"] = "onecycle"
    """The rate over the run: 1cycle; triangular cycles; a half cosine; warm-up, stable, decay; constant; or the range
    test, a short run whose rate sweeps from `range_low` to `range_high` and which suggests a peak."""
    warmup_steps: int | None = within("[0, inf)", None)
    """cosine, wsd and constant: steps of linear rise; null: a twentieth of the run, none for constant."""
    pct_start: float = within("(0, 1)", 0.3)
    """1cycle: share of the steps in which the rate rises."""
    div_factor: float = within("[1, inf)", 10.0)
    """1cycle and cyclic: the peak over the first rate."""
    final_div_factor: float = within("[1, inf)", 1e4)
    """1cycle: the first rate over the last; cosine and wsd: the peak over the last."""
    cycle_momentum: bool = True
    """1cycle and cyclic: momentum falls from 0.95 to 0.85 while the rate rises, and comes back."""
    cycle_steps: int | None = within("[2, inf)", None)
    """cyclic: steps of one rise and fall; null: a quarter of the run."""
    decay_fraction: float = within("(0, 1]", 0.2)
    """wsd: share of the steps, at the end, in which the rate falls."""
    range_low: float = within("(0, inf)", 1e-6)
    """range: the first rate."""
    range_high: float = within("(0, inf)", 10.0)
    """range: the last rate, unless the loss diverges before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range_low >= self.range_high:
            self.refuse("range_low", f"it must be below optim.range_high={self.range_high}")


@dataclass(frozen=True)
class DistConfig(Section):
    """How the ranks of a run work together."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each rank holds the whole model. fsdp: each holds a share of weights, gradients and optimizer state, for
    models that outgrow one GPU (FSDP2)."""
    static_graph: bool = False
    """ddp: promise that every step uses the same weights, which saves a search for others; without accumulation."""
    bf16_gradients: bool = False
    """ddp: send gradients in bf16, half the bytes, for some of their precision."""
    sync_batchnorm: bool = False
    """BatchNorm's statistics over the batch of all ranks, for micro-batches too small to normalise alone; on GPUs."""


@dataclass(frozen=True)
class SpeedConfig(Section):
    """What makes a step fast or small. But for `precision`, a switch changes the result by rounding alone."""

    precision: Literal["auto", "bf16", "fp16", "tf32", "fp32", "fp8"] = "auto"
    """Number format of matrix products. auto: bf16 where the device has it, fp16 on older Tensor Cores, else fp32."""
    compile: Literal["off", "model", "blocks"] = "off"
    """torch.compile: fused kernels, for a wait at the start; blocks: each by itself, a shorter wait for deep models."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """How hard torch.compile tries: reduce-overhead replays CUDA graphs, max-autotune times kernels at the start."""
    compile_cache: Literal["user", "run"] = "user"
    """Where compiled kernels stay for the next start: the user's cache folder, or the folder of all runs."""
    channels_last: bool | Literal["auto"] = "auto"
    """Convolution weights in channels-last memory order, which Tensor Cores read without a transpose; auto: on CUDA."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its convolution kernels once a shape and keep the fastest."""
    activation_checkpointing: str = "none"
    """Compute activations again in backward instead of keeping them: none, blocks, every:n (each n-th block), or
    budget:x (the share, from 0 to 1, of what it would keep that the compiler may keep; with compile)."""
    step_graph: bool = False
    """Replay each step as CUDA graphs, for small models that wait for Python: one GPU, adamw, no fp16, and
    optim.cycle_momentum=false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, _, number = self.activation_checkpointing.partition(":")
        plain = kind in ("none", "blocks") and not number
        every = kind == "every" and number.isdecimal() and int(number) > 0
        if not (plain or every or (kind == "budget" and re.fullmatch(r"[01]|0?\.\d+|[01]\.0*", number))):
            self.refuse(
                "activation_checkpointing", "it must be none, blocks, every:n with n above 0, or budget:0.5, say"
            )


@dataclass(frozen=True)
class LogConfig(Section):
    """What is written down while training."""

    every: int = within("[1, inf)", 10)
    """Optimizer steps between rows; each row waits for the device once."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    progress: bool = True
    """Show a progress bar where the output is a terminal."""
    mfu: bool | Literal["auto"] = "auto"
    """Log the work done, in TFLOP a second, and its share of the device's peak where that is known; auto: on CUDA."""


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """Saved states of a run."""

    every: int | None = within("[1, inf)", None)
    """Optimizer steps between checkpoints, beside one at each validation; null: only those."""
    keep: int = within("[1, inf)", 2)
    """How many of the newest stay on disk."""
    best: bool = True
    """Keep the best one by `train.monitor` too, and name it in `checkpoints/best`."""


@dataclass(frozen=True)
class DebugConfig(Section):
    """Instruments for a run that goes wrong; each makes it slow, so all are off."""

    anomaly: bool = False
    """torch's anomaly detection: an error in backward shows the forward operation that it belongs to."""
    gradcheck: bool = False
    """Before training, hold the model's gradients against differences, in float64, on two samples."""
    deterministic: bool = False
    """Only kernels that give the same bits each time; an operation without one is an error."""
    sync: Literal["off", "warn", "error"] = "off"
    """What to do where training waits for a CUDA device, from its fourth step on and outside the log's rows."""
    nan: bool = False
    """Check every module's output and its gradient, and name the first that is not finite."""
    profile: bool = False
    """Write a trace of steps 8 to 12 into the run's folder, for ui.perfetto.dev, and a table beside it."""


@dataclass(frozen=True)
class Config:
    """All sections of a run."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)


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
    return read(make_parser(module, description), argv)


def make_parser(module: str, description: str) -> Parser:
    """Build the parser of `python -m module`, which takes some time; `read` may use it any number of times."""
    parser = Parser(prog=f"python -m {module}", description=description, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="A YAML file of values; what follows it overrides it.")
    _add_sections(parser)
    return parser


def read(parser: Parser, argv: list[str] | None = None) -> Config:
    """Parse the command line, or `argv`, and the YAML files that it names."""
    values = parser.instantiate(parser.parse_args(argv))
    return Config(**{name: value for name, value in vars(values).items() if name != "config"})


def _add_sections(parser: Parser) -> None:
    """Make every key an option, with the default that stands at the field: a made section has filled some by others."""
    parser.add_class_arguments(Config, None)
    for section in dataclasses.fields(Config):
        keys = dataclasses.fields(section.type)  # type: ignore[arg-type]
        parser.set_defaults({f"{section.name}.{key.name}": key.default for key in keys})


def from_dict(values: dict[str, Any]) -> Config:
    """Make a `Config` of what `as_dict` gave, from a checkpoint's manifest, say."""
    parser = Parser(prog="config")
    _add_sections(parser)
    return Config(**vars(parser.instantiate(parser.parse_object(values))))


def as_dict(cfg: Config) -> dict[str, dict[str, Any]]:
    """Plain values by section and key, fit for JSON and for YAML."""
    return dict(json.loads(json.dumps(dataclasses.asdict(cfg), default=str)))
