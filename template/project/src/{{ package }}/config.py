"""All options of a run: one dataclass per section, a docstring under each field, ranges checked.

The command line overrides YAML files, which override the defaults. A `Config` never changes.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

import yaml  # type: ignore[import-untyped,unused-ignore]
from jsonargparse import ArgumentParser, Namespace, get_loader, set_loader, set_parsing_settings

from .config_base import Section, within
from .data import DataConfig
from .errors import UsageError, UserError
from .model import ModelConfig


@dataclass(frozen=True)
class RunConfig(Section):
    """The run, and the folder of its files."""

    dir: Path = Path("runs")
    """Parent folder of all runs."""
    name: str | None = None
    """Name of the run's folder; null for the date and time."""
    resume: str | None = None
    """Resume a run: its folder, one of its checkpoints (such as `checkpoints/best`), or `auto` for the newest good
    checkpoint of `run.name`, if there is one. null: as auto, but a run with other settings is refused."""
    max_minutes: float | None = within("(0, inf)", None)
    """Minutes after which the run saves a checkpoint and stops with exit status 75; null: two minutes before the time
    limit of a SLURM job, and elsewhere never."""
    seed: int = within("[0, 2147483647]", 0)
    """Seed of the initial weights, sample order, augmentation and dropout."""
    device: Literal["auto", "accelerator", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Device to train on; auto uses the accelerator, such as a GPU, if there is one, and accelerator requires it."""
    processes: int | Literal["auto"] | None = within("[1, 256]", None)
    """Processes to start on this machine, one per GPU; auto: as many as it has GPUs; null: this process alone. What a
    launcher such as torchrun has started counts instead."""
    cpu_affinity: bool = False
    """Run each rank, with its loader workers, on CPU cores of its own: an equal share of those that the ranks of a
    machine have in common. No effect on what a scheduler has divided already, on one rank, and on macOS."""
    hang_minutes: float | None = within("(0, 100000]", 30.0)
    """Minutes without progress of this process after which it ends, for a restart, and keeps the stacks of its threads;
    null for no limit. The first step and the start of a validation, which may compile, have four times as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and (self.name in ("", ".", "..") or Path(self.name).name != self.name):
            self.refuse("name", "it must be the name of a folder, without a slash")
        if self.name is not None and not self.name.isprintable():
            self.refuse("name", "it must be the name of a folder, of printable characters")
        if self.resume == "auto" and self.name is None:
            self.refuse("name", "run.resume=auto needs it")


@dataclass(frozen=True)
class TrainConfig(Section):
    """Length of the run, batch size, validation."""

    epochs: float = within("(0, inf)", 10.0)
    """Passes over the training data; may be a fraction."""
    steps: int | None = within("[1, inf)", None)
    """Optimizer steps; overrides `epochs`."""
    micro_batch: int = within("[1, inf)", 128)
    """Samples per forward pass and rank."""
    accumulate: int = within("[1, inf)", 1)
    """Micro-batches per optimizer step: the global batch is ranks x micro_batch x accumulate."""
    global_batch: int | None = within("[1, inf)", None)
    """Samples per optimizer step over all ranks; overrides `accumulate`."""
    eval_every: int | None = within("[1, inf)", None)
    """Optimizer steps between validations, each of which saves a checkpoint; null for once per epoch."""
    ema: float | None = within("(0, 1)", None)
    """Decay of an exponential moving average of the weights, used for validation, such as 0.999; null for off."""
    monitor: str = "loss"
    """Validation metric that decides which checkpoint is the best."""
    monitor_mode: Literal["min", "max"] | None = None
    """Whether lower or higher values of `monitor` are better; required for metrics other than loss."""
    patience: int | None = within("[1, inf)", None)
    """Early stopping: validations in a row without improvement after which the run ends; null for off."""
    init_from: str | None = None
    """Fine-tuning: weights to start from, matched by name and shape: a file of them (.safetensors or .pt), a run or a
    checkpoint of this project, or a local folder of Hugging Face. null: random weights."""
    init_map: dict[str, str] | None = None
    """Names in `init_from` begin otherwise than the model's: what they begin with there, and here, as in
    `{"bert.": "encoder."}`; an empty prefix is in front of every name."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained: names as in `named_parameters`, modules, or patterns, such as `[encoder]` or
    `["blocks.[0-5]"]`; with `!`, what stays trained: `["*", "!head"]`. BatchNorm in there keeps its statistics."""
    unfreeze_step: int | None = within("[1, inf)", None)
    """Optimizer step after which all that `freeze` names is trained as well; null for never."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """When the loss or the gradient is not finite: stop at the next row of metrics; skip the update of the step; or
    roll back to the newest checkpoint, and leave the step out when it comes again. The latter two check each step,
    which synchronizes with the device."""
    max_nonfinite: int = within("[1, inf)", 10)
    """skip: steps skipped in a row, and rollback: returns to the same checkpoint, after which the run stops."""
    spike_factor: float | None = within("(1, inf)", None)
    """Act as `on_nonfinite` says, in the same step, on a loss above this many times its running mean, of about the
    last 50 steps; null for off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.monitor != "loss" and self.monitor_mode is None:
            self.refuse("monitor", "train.monitor_mode must be min or max for it")
        if self.unfreeze_step is not None and not self.freeze:
            self.refuse("unfreeze_step", "train.freeze names nothing that is frozen before; set it, or use null")
        if self.init_map is not None and self.init_from is None:
            self.refuse("init_map", "it renames what train.init_from has, which is null; set it, or use null")


@dataclass(frozen=True)
class LoraConfig(Section):
    """Low-rank adaptation of linear layers, Hu et al. 2021, arXiv:2106.09685, by the package peft."""

    rank: int | None = within("[1, inf)", None)
    """Rank of the matrices that are trained instead of each layer's weight; null for off."""
    alpha: float = within("(0, inf)", 16.0)
    """Their product counts alpha / rank times."""
    dropout: float = within("[0, 1)", 0.0)
    """Dropout before them."""
    target_modules: tuple[str, ...] = ()
    """The layers: names as in `named_modules`, or patterns such as `["*.query", "*.value"]`; empty for all linear
    layers in `blocks` of the model."""
    modules_to_save: tuple[str, ...] = ()
    """What else is trained, as in `train.freeze`, such as `[head]`; all the rest is frozen."""


MOST_WORKERS = 32
"""Of `auto`: an estimate, not measured, of what decodes JPEGs as fast as an H100 trains ResNet-50; more take memory."""


@dataclass(frozen=True)
class LoaderConfig(Section):
    """Loading samples and copying them to the device."""

    workers: int | Literal["auto"] = within("[0, 256]", "auto")
    """Loader processes per rank; auto: none for data in memory, otherwise the cores per rank less one, at most 32; but
    none if that is one and torch computes on all cores of a CPU."""
    persistent_workers: bool = True
    """Keep the loader processes of validation alive between validations."""
    prefetch_factor: int = within("[1, 64]", 2)
    """Batches prefetched per worker."""
    pin_memory: bool = True
    """Use page-locked host memory, so that copies to a GPU are asynchronous; no effect on the CPU and Apple's GPUs.
    Workers' batches are copied there by a thread, without workers by the training loop."""
    side_stream: bool = True
    """Prefetch the next batch to a GPU on a separate stream, while the present one is in use; not on Apple's GPUs."""


@dataclass(frozen=True)
class OptimConfig(Section):
    """Optimizer, clipping and learning-rate schedule, which counts optimizer steps."""

    name: Literal["adamw", "adam", "sgd", "muon", "lamb", "lars", "novograd"] = "adamw"
    """Optimizer: adamw, adam, sgd (Nesterov), muon (2-D weights of blocks; adamw for the rest), or, for very large
    batches, lamb, lars, novograd."""
    lr: float = within("(0, inf)", 1e-3)
    """Peak learning rate, for a global batch of `base_batch` samples."""
    lr_scaling: Literal["linear", "sqrt", "none"] = "sqrt"
    """Scaling of `lr` with the global batch: linear, Goyal et al. 2017, arXiv:1706.02677; sqrt, Malladi et al. 2022."""
    base_batch: int = within("[1, inf)", 128)
    """Global batch, in samples, that `lr` is for."""
    weight_decay: float = within("[0, inf)", 0.01)
    """Weight decay of matrices and convolutions: decoupled; in adam, sgd and lars added to the gradient."""
    beta1: float = within("[0, 1)", 0.9)
    """Momentum, or beta1 of the Adam family; 1cycle overrides it unless `cycle_momentum` is false."""
    beta2: float = within("[0, 1)", 0.999)
    """beta2 of the Adam family."""
    eps: float = within("(0, 1)", 1e-8)
    """Epsilon of the Adam family."""
    fused: bool = True
    """Use the fused implementation, which updates all weights in one kernel (adamw, adam, sgd)."""
    set_to_none: bool = True
    """Set gradients to None after a step; false fills them with zeros, which costs memory bandwidth."""
    clip: float | None = within("(0, inf)", 1.0)
    """Maximum global gradient norm for clipping; null for off."""
    clip_value: float | None = within("(0, inf)", None)
    """Maximum absolute value of each number of the gradient, instead of `clip`; null for off."""
    schedule: Literal["onecycle", "cyclic", "cosine", "wsd", "constant", "range"] = "onecycle"
    """Learning-rate schedule: 1cycle; triangular cycles; cosine annealing; warm-up, stable, decay; constant; or the
    range test, a short run that raises it from `range_low` to `range_high` and suggests a peak."""
    warmup_steps: int | None = within("[0, inf)", None)
    """cosine, wsd and constant: steps of linear warm-up; null for 5% of the run, none for constant."""
    pct_start: float = within("(0, 1)", 0.3)
    """1cycle: fraction of the steps in which the learning rate rises."""
    div_factor: float = within("[1, inf)", 10.0)
    """1cycle and cyclic: peak learning rate divided by the initial one."""
    final_div_factor: float = within("[1, inf)", 1e4)
    """1cycle: initial learning rate divided by the final one; cosine and wsd: peak divided by the final one."""
    three_phase: bool = False
    """1cycle: fall to the initial learning rate in as many steps as it rose, and to the final one in the rest."""
    anneal_strategy: Literal["cos", "linear"] = "cos"
    """1cycle: rise and fall along half a cosine, or along a straight line."""
    cycle_momentum: bool = True
    """1cycle and cyclic: lower momentum from 0.95 to 0.85 while the learning rate rises, and raise it again."""
    cycle_steps: int | None = within("[2, inf)", None)
    """cyclic: steps per cycle; null for a quarter of the run."""
    decay_fraction: float = within("(0, 1]", 0.2)
    """wsd: fraction of the steps, at the end, in which the learning rate decays."""
    range_low: float = within("(0, inf)", 1e-6)
    """range: first learning rate."""
    range_high: float = within("(0, inf)", 10.0)
    """range: last learning rate, unless the loss diverges before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range_low >= self.range_high:
            self.refuse("range_low", f"it must be below optim.range_high={self.range_high}")
        if self.clip_value is not None and self.clip is not None:
            self.refuse("clip_value", f"it is used instead of optim.clip, which is {self.clip:g}; set that to null")
        if self.three_phase and self.pct_start > 0.5:
            self.refuse(
                "pct_start", "with optim.three_phase, the rise and an equal fall must fit: it must be at most 0.5"
            )


@dataclass(frozen=True)
class DistConfig(Section):
    """Distributed training."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: DistributedDataParallel, the whole model on each rank. fsdp: FSDP2, weights, gradients and optimizer state
    sharded over the ranks, for models larger than one GPU's memory."""
    static_graph: bool = False
    """ddp: every step uses the same parameters, so that DDP searches no unused ones; not with accumulation."""
    bf16_gradients: bool = False
    """ddp: all-reduce gradients in bf16, which halves communication and loses precision."""
    sync_batchnorm: bool = False
    """Convert BatchNorm to SyncBatchNorm, with statistics over all ranks, for small micro-batches; GPUs only. Each of
    these layers synchronizes with the other ranks, and with the host."""


@dataclass(frozen=True)
class SpeedConfig(Section):
    """Speed and memory. All options but `precision` change results by rounding only."""

    precision: Literal["auto", "bf16", "fp16", "tf32", "fp32", "fp8"] = "auto"
    """Number format of matrix products. auto: bf16 if the device supports it, fp16 on older Tensor Cores, else fp32."""
    compile: Literal["off", "model", "blocks"] = "off"
    """torch.compile: fused kernels, for a longer start; blocks: compile each block separately, for deep models."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """Mode of torch.compile: reduce-overhead uses CUDA graphs, max-autotune benchmarks kernels at the start."""
    compile_cache: Literal["user", "run"] = "user"
    """Where compiled kernels are cached: the user's cache folder, or `run.dir`."""
    channels_last: bool | Literal["auto"] = "auto"
    """Use the channels_last memory format for convolutions, which Tensor Cores prefer; auto: on CUDA."""
    cudnn_benchmark: bool = True
    """Use the cuDNN autotuner, which benchmarks convolution kernels once per shape."""
    activation_checkpointing: str = "none"
    """Recompute activations in backward instead of storing them: none, blocks, every:n (every n-th block), ops (in
    blocks, all but matrix products, convolutions and attention), or budget:x (with compile: the fraction of activation
    memory, from 0 to 1, that the compiler may use)."""
    step_graph: bool = False
    """Capture each step in CUDA graphs, for small models bound by Python's overhead: one GPU, adamw, no fp16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, _, number = self.activation_checkpointing.partition(":")
        plain = self.activation_checkpointing in ("none", "blocks", "ops")
        every = kind == "every" and number.isdecimal() and int(number) > 0
        if not (plain or every or (kind == "budget" and re.fullmatch(r"[01]|0?\.\d+|[01]\.0*", number))):
            self.refuse(
                "activation_checkpointing",
                "it must be none, blocks, ops, every:n with n above 0, or budget:x such as budget:0.5",
            )


@dataclass(frozen=True)
class LogConfig(Section):
    """Logging."""

    every: int = within("[1, inf)", 10)
    """Optimizer steps between rows of training metrics; each row is a host-device synchronization, on
    several ranks two."""
    tracker: Literal["none", "tensorboard", "trackio", "wandb", "mlflow"] = "none"
    """Experiment tracker that gets each row of metrics.jsonl as well, in a process of its own; it needs the extra of
    this name. Nothing is sent to other machines, unless the tracker's own environment variables say so."""
    tensorboard: bool | None = None
    """Former name of `tracker: tensorboard`, for older configs; false for another, or none."""
    progress: bool = True
    """Show a progress bar if the output is a terminal."""
    mfu: bool | Literal["auto"] = "auto"
    """Log TFLOP per second, and model FLOPs utilization where the device's peak is known; auto: on accelerators."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tensorboard:
            if self.tracker not in ("none", "tensorboard"):
                self.refuse(
                    "tensorboard", f"log.tracker is {self.tracker}, and a run has one tracker; drop one of them"
                )
            object.__setattr__(self, "tracker", "tensorboard")
        object.__setattr__(self, "tensorboard", None)


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """Checkpoints."""

    every: int | None = within("[1, inf)", None)
    """Optimizer steps between checkpoints, in addition to one at each validation; null for only those."""
    minutes: float | None = within("(0, inf)", None)
    """Minutes between checkpoints, in addition to these; null for off."""
    asynchronous: bool = True
    """Write a checkpoint in a thread, from a copy in host memory, while training goes on."""
    keep: int = within("[1, inf)", 2)
    """Number of newest checkpoints to keep."""
    best: bool = True
    """Also keep the best one by `train.monitor`, named in `checkpoints/best`."""


@dataclass(frozen=True)
class DebugConfig(Section):
    """Debugging tools; each slows training down."""

    anomaly: bool = False
    """Autograd anomaly detection: an error in backward shows the forward operation that caused it."""
    gradcheck: bool = False
    """Before training, compare the model's gradients with finite differences, in float64, on two samples."""
    deterministic: bool = False
    """Use deterministic algorithms; an operation without one is an error."""
    sync: Literal["off", "warn", "error"] = "off"
    """Report host-device synchronizations on CUDA, from the fourth step on and outside logging."""
    nan: bool = False
    """Check the output of every module and its gradient, and report the first that is not finite."""
    profile: bool | Literal["simple", "advanced", "trace", "nvtx"] = False
    """Profile some steps, with files in the run's folder; tools/profile.py says more. true is trace: operators, and a
    trace for ui.perfetto.dev. simple: operators. advanced: Python functions. nvtx: ranges for nsys."""
    profile_start: int = within("[4, inf)", 8)
    """The first step to profile."""
    profile_steps: int = within("[1, inf)", 5)
    """How many steps to profile."""


@dataclass(frozen=True)
class Config:
    """All sections of a run."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        for item in dataclasses.fields(Config):
            value: Any = getattr(self, item.name)
            if isinstance(value, Mapping):
                object.__setattr__(self, item.name, getattr(self.load(None, **{item.name: value}), item.name))
            elif not dataclasses.is_dataclass(value):  # that of your model or data need not be a Section
                raise UserError(f"{item.name} of the config is {value!r}: give a dict of its options")

    @classmethod
    def load(cls, file: str | Path | None = None, **sections: Mapping[str, Any]) -> Self:
        """Return the config of a YAML file, with other values for some options: `load(file, train={"steps": 60})`.

        Raises:
            UserError: an unknown key, a wrong type, a value out of range, an unreadable file.
        """
        given = [(name, values) for name, values in sections.items() if not isinstance(values, Mapping)]
        if given:
            raise UserError(f"{given[0][0]} of the config is {given[0][1]!r}: give a dict of its options")
        options = [f"--{name}.{key}={_written(it)}" for name, values in sections.items() for key, it in values.items()]
        found = read(make_parser("config", "", cls), [*([f"--config={file}"] if file else []), *options])
        assert isinstance(found, cls)
        return found


set_parsing_settings(docstring_parse_attribute_docstrings=True)
load_yaml = get_loader("yaml")


def _load(text: str) -> Any:
    """Read YAML; `off`, `on`, `yes` and `no` in a mapping are text, which an option takes as its type says.

    Raises:
        yaml.YAMLError: it is not valid, or a mapping has a key twice.
    """
    values = load_yaml(text)
    if isinstance(values, dict):
        _keep_words(yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), values)
    return values


def _keep_words(node: Any, values: dict[Any, Any]) -> None:
    names = [str(key.value) for key, _ in node.value]
    if len(set(names)) < len(names):
        raise yaml.YAMLError("a mapping has a key twice")
    for name, (_, part) in zip(names, node.value, strict=True):
        if isinstance(part, yaml.MappingNode) and isinstance(values.get(name), dict):
            _keep_words(part, values[name])
        elif isinstance(values.get(name), bool) and part.value.lower() in ("off", "on", "yes", "no"):
            values[name] = part.value  # YAML 1.1 makes it a bool


set_loader("yaml", _load, (yaml.YAMLError,))


class Parser(ArgumentParser):
    """jsonargparse's parser, with one-line errors."""

    kind: type[Config] = Config
    """What `read` returns."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        from .config_errors import explain

        raise UsageError(explain(message, getattr(self, "args", []))) from None


def _written(value: object) -> str:
    """Return a value of an option as the command line has it."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value, default=str)


def parse(module: str, description: str, argv: list[str] | None = None, kind: type[Config] = Config) -> Config:
    """Read a config of a `kind` from the command line of `python -m module` and the YAML files that it names.

    Raises:
        UserError: an unknown key, a wrong type, a value out of range, an unreadable file.
        SystemExit: after printing for --help and --print_config.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & {word.partition("=")[0] for word in argv}:
        from .config_help import show

        show(module, description, argv)
    return read(make_parser(module, description, kind), argv)


def make_parser(module: str, description: str, kind: type[Config] = Config) -> Parser:
    """Build the parser of `python -m module`, which takes some time; `read` may use it any number of times."""
    parser = Parser(prog=f"python -m {module}", description=description, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="A YAML file of options; later options override it.")
    _add_sections(parser, kind)
    return parser


def read(parser: Parser, argv: list[str] | None = None) -> Config:
    """Parse the command line, or `argv`, and the YAML files that it names."""
    try:
        parsed = parser.parse_args(argv)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # of a file: encoding, tags, aliases
        parser.error(str(error))
    if not all(isinstance(parsed[name], Namespace) for name in _sections()):
        parser.error("a section without options")  # jsonargparse accepts it in a file
    values = parser.instantiate(parsed)
    return parser.kind(**{name: value for name, value in vars(values).items() if name != "config"})


def _add_sections(parser: Parser, kind: type[Config]) -> None:
    """Add an option for every field, with the field's default: an instance has filled some from others."""
    parser.kind = kind
    parser.add_class_arguments(kind, None)
    for section in dataclasses.fields(Config):
        keys = dataclasses.fields(section.type)  # type: ignore[arg-type]
        parser.set_defaults({f"{section.name}.{key.name}": key.default for key in keys})


def _sections() -> set[str]:
    """Return the names of the sections that have options; your data or model may have none."""
    return {it.name for it in dataclasses.fields(Config) if dataclasses.fields(it.type)}  # type: ignore[arg-type]


def from_dict(values: dict[str, Any]) -> Config:
    """Return the `Config` of values from `as_dict`, such as those in a checkpoint's manifest."""
    parser = Parser(prog="config")
    _add_sections(parser, Config)
    known = _sections()  # Lightning's projects have one more
    found = parser.parse_object({name: keys for name, keys in values.items() if name in known})
    return Config(**vars(parser.instantiate(found)))


def as_dict(cfg: Config) -> dict[str, dict[str, Any]]:
    """Return the values by section and key, as JSON and YAML have them; without empty sections."""
    values = json.loads(json.dumps(dataclasses.asdict(cfg), default=str))
    return {name: keys for name, keys in values.items() if keys}
