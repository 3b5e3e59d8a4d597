"""What `gpu_smoke.py` asks a GPU: questions, each a short run that must agree with another one, and rows of a table."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

STEPS = 20
MODELS = ("resnet", "vit", "gpt", "lstm")
SHORT = (f"--train.steps={STEPS}", f"--train.eval_every={STEPS}", "--log.every=1", "--loader.workers=0")
EAGER = (*SHORT, "--speed.compile=off")
FP32 = (*EAGER, "--speed.precision=fp32")
BF16 = (*EAGER, "--speed.precision=bf16")
COMPILED_FP32 = (*SHORT, "--speed.precision=fp32", "--speed.compile=model")
COMPILED_BF16 = (*SHORT, "--speed.precision=bf16", "--speed.compile=model")
SAME_ON_ALL = {"resnet": ("--data.shift=0",), "vit": ("--model.dropout=0",), "gpt": (), "lstm": ()}
"""Options without random numbers of the device, so that a CPU and a GPU do the same."""


@dataclass(frozen=True)
class Question:
    """A run with `options`, and what must hold: finite losses that fall, and agree with those of the reference."""

    name: str
    model: str
    options: tuple[str, ...]
    reference: tuple[str, ...] | None = None
    """Options of the run whose loss must be the same in each step."""
    tolerance: float = 0.0
    """Largest relative difference of a loss."""
    needs: str = ""
    """CUDA, fp8, or 2 GPUs."""
    modules: tuple[str, ...] = ()
    """Packages beyond those that each run needs."""
    falls: bool = True
    """Whether the loss must be lower at the end."""
    prints: str = ""
    """What the run must print."""
    memory: float = 1.0
    """Share of the GPU memory that the reference has used which the run may use."""
    launch: str = ""
    """one-rank: in a process group of one rank; two: two processes; stop: stopped after its first step, and resumed."""


@dataclass(frozen=True)
class Row:
    """A measured training run on synthetic data of the size that its model is known for."""

    name: str
    model: str
    options: tuple[str, ...]
    needs: str = "CUDA"
    modules: tuple[str, ...] = ()
    steps: int = 60


def component(name: str, *options: str) -> tuple[str, ...]:
    """Return the options that enable a component."""
    return f"--{name}.enabled=true", *(f"--{name}.{option}" for option in options)


def _agrees(name: str, *options: str, model: str = "gpt", base: tuple[str, ...] = FP32, **others: Any) -> Question:
    """A component that does not change the loss, or not by more than `tolerance`."""
    what = " ".join([*[f"{model}:"] * (model != "gpt"), name, *options])
    return Question(what, model, (*base, *component(name, *options)), base, **{"tolerance": 1e-3, **others})


def _trains(name: str, *options: str, model: str = "gpt", **others: Any) -> Question:
    """A component that changes the loss."""
    what = " ".join([name, *options])
    return Question(what, model, (*FP32, *component(name, *options)), **others)


def _precisions(model: str) -> list[Question]:
    same = SAME_ON_ALL[model]
    on_cpu = (*FP32, *same, "--run.device=cpu")
    found = [Question(f"{model}: the GPU agrees with the CPU", model, (*FP32, *same), on_cpu, 1e-2, "CUDA")]
    wanted = {"tf32": (0.02, "CUDA"), "bf16": (0.1, ""), "fp16": (0.05, "CUDA")}
    for name, (tolerance, needs) in wanted.items():
        options = (*EAGER, f"--speed.precision={name}")
        found.append(Question(f"{model}: {name} agrees with fp32", model, options, FP32, tolerance, needs))
    if model != "lstm":  # torch.compile does not trace nn.LSTM
        found.append(Question(f"{model}: compiled agrees with eager", model, COMPILED_FP32, FP32, 1e-2, "CUDA"))
    silent = (*BF16, *component("debug", "synchronization=error"), "--log.every=10")
    found.append(Question(f"{model}: a step does not synchronize", model, silent, needs="CUDA"))
    return found


def _core() -> list[Question]:
    def resnet(name: str, option: str, reference: str, tolerance: float = 1e-3, needs: str = "") -> Question:
        return Question(name, "resnet", (*FP32, f"--{option}"), (*FP32, f"--{reference}"), tolerance, needs)

    smaller = (*FP32, "--train.micro_batch=4", "--train.accumulate=2")
    graphs = (*COMPILED_BF16, "--speed.compile_mode=reduce-overhead")
    pinned = ("loader.pin_memory=true", "loader.pin_memory=false")
    return [
        resnet("pinned copies agree with pageable ones", *pinned, needs="CUDA"),
        resnet("two workers agree with none", "loader.workers=2", "loader.workers=0"),
        resnet("channels_last agrees with NCHW", "speed.channels_last=true", "speed.channels_last=false", 1e-2),
        Question("micro-batches agree with one batch", "gpt", smaller, FP32, 1e-3),
        Question("a resumed run agrees", "gpt", FP32, FP32, 1e-3, launch="stop"),
        Question("compiled with CUDA graphs agrees with eager", "gpt", graphs, BF16, 0.05, "CUDA"),
    ]


def _components() -> list[Question]:
    """Each component that acts in training, on one GPU."""
    large = (*FP32, "--train.micro_batch=512")
    oom = (*large, *component("oom"))
    graphs = (*COMPILED_BF16, *component("cuda_graphs"))
    budget = (*COMPILED_FP32, *component("activation_checkpointing", "mode=budget"))
    layerwise: dict[str, Any] = {"modules": ("pytorch_optimizer",), "falls": False}
    return [
        _agrees("cuda_graphs", needs="CUDA"),
        _agrees("cuda_graphs", model="resnet", needs="CUDA"),
        Question("cuda_graphs, compiled, bf16", "gpt", graphs, BF16, 0.05, "CUDA"),
        _agrees("regional_compile", tolerance=1e-2, needs="CUDA"),
        _agrees("fp8", base=BF16, tolerance=0.1, needs="fp8", modules=("torchao",)),
        Question("oom", "gpt", oom, large, 1e-3, "CUDA", prints="out of memory at step", memory=0.6),
        *[_agrees("activation_checkpointing", f"mode={mode}") for mode in ("blocks", "ops")],
        Question("activation_checkpointing mode=budget", "gpt", budget, FP32, 1e-2, "CUDA"),
        _agrees("fsdp", launch="one-rank"),
        *[_agrees(name) for name in ("ema", "mfu", "async_checkpoint", "restart", "early_stopping")],
        _agrees("safetensors", modules=("safetensors",)),
        *[_agrees("nonfinite", f"action={action}") for action in ("skip", "rollback")],
        *[_agrees("debug", f"{tool}=true") for tool in ("nan", "anomaly")],
        _trains("debug", "deterministic=true", model="resnet"),
        *[_agrees("profiler", f"kind={kind}", "skip=2") for kind in ("basic", "advanced", "torch")],
        _agrees("profiler", "kind=nvtx", "skip=2", needs="CUDA"),
        *[_agrees("cache", f"where={where}", model="resnet") for where in ("device", "memory", "disk")],
        _agrees("metrics", model="resnet", modules=("torchmetrics",)),
        *[_trains("optimizers", f"name={name}") for name in ("sgd", "adam", "muon")],
        *[_trains("optimizers", f"name={name}", **layerwise) for name in ("lamb", "lars", "novograd")],
        *[_trains("schedules", f"name={name}") for name in ("cosine", "cyclical", "wsd", "constant")],
        _trains("lr_range_test", modules=("matplotlib",), falls=False),
        _trains("lora", modules=("peft",)),
        _trains("finetune", 'freeze=["blocks.0*"]'),
    ]


def _two_ranks() -> list[Question]:
    ways = {"DDP": (), "fsdp": component("fsdp"), "ddp_options": component("ddp_options", "static_graph=true")}
    halves = (*FP32, "--train.micro_batch=4")
    return [
        Question(f"{way}, 2 ranks", "gpt", (*halves, *options), FP32, 1e-2, "2 GPUs", launch="two")
        for way, options in ways.items()
    ]


QUESTIONS: list[Question] = [*chain(*map(_precisions, MODELS)), *_core(), *_components(), *_two_ranks()]

FAST = ("--speed.precision=bf16",)
COMPILED = (*FAST, "--speed.compile=model")
SIZES: dict[str, tuple[str, ...]] = {
    "resnet": ("--model.size=50", "--train.micro_batch=256"),
    "vit": ("--model.size=S/16", "--model.dropout=0", "--train.micro_batch=256"),
    "gpt": ("--model.size=124M", "--data.context=1024", "--train.micro_batch=16"),
    "lstm": ("--model.size=base", "--data.context=256", "--train.micro_batch=256"),
}
NAMES = {
    "resnet": "ResNet-50, 224 pixels",
    "vit": "ViT-S/16, 224 pixels",
    "gpt": "GPT-2 124M, context 1024",
    "lstm": "LSTM, 3 x 640, context 256",
}
ROWS: list[Row] = [
    *[Row("bf16", model, (*SIZES[model], *FAST), needs="") for model in MODELS],
    *[Row("bf16, compiled", model, (*SIZES[model], *COMPILED)) for model in ("gpt", "resnet", "vit")],
    Row("bf16, compiled, fp8", "gpt", (*SIZES["gpt"], *COMPILED, *component("fp8")), "fp8", ("torchao",)),
    Row("bf16, CUDA graphs", "resnet", (*SIZES["resnet"], *FAST, *component("cuda_graphs"))),
    Row("bf16, CUDA graphs", "lstm", (*SIZES["lstm"], *FAST, *component("cuda_graphs"))),
    Row("bf16, compiled by block", "gpt", (*SIZES["gpt"], *FAST, *component("regional_compile"))),
    Row("bf16, activation checkpointing", "gpt", (*SIZES["gpt"], *FAST, *component("activation_checkpointing"))),
    Row("TF32", "resnet", (*SIZES["resnet"], "--speed.precision=tf32")),
    Row("bf16, NCHW", "resnet", (*SIZES["resnet"], *FAST, "--speed.channels_last=false")),
    Row("fp16", "vit", (*SIZES["vit"], "--speed.precision=fp16")),
    Row("TF32", "gpt", (*SIZES["gpt"], "--speed.precision=tf32"), steps=30),
]
