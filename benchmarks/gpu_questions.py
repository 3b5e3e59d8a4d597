"""What `gpu_smoke.py` asks a GPU: questions, which are short runs, and rows of a table.

A question is answered with yes if its run trains and agrees with another one.
"""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

STEPS = 20
MODELS = ("resnet", "vit", "gpt", "lstm")
SHORT = (
    f"--train.steps={STEPS}",
    f"--train.eval_every={STEPS}",
    "--log.every=1",
    "--loader.num_workers=0",
)
EAGER = (*SHORT, "--speed.compile=off")
FP32 = (*EAGER, "--speed.precision=fp32")
BF16 = (*EAGER, "--speed.precision=bf16")
COMPILED_FP32 = (*SHORT, "--speed.precision=fp32", "--speed.compile=model")
COMPILED_BF16 = (*SHORT, "--speed.precision=bf16", "--speed.compile=model")
FEW = ("--train.steps=10", "--train.eval_every=10")
"""So few that rounding hardly grows: a relative 1e-6 in each product moves losses of `resnet` by
1e-5. In 20 steps, 1e-7 moves them by 4e-4."""
SAME_ON_ALL: dict[str, tuple[str, ...]] = {
    "resnet": ("--data.shift=0",),
    "vit": ("--model.dropout=0",),
    "gpt": (),
    "lstm": (),
}
"""Options without random numbers of the device, so that a CPU and a GPU do the same."""


@dataclass(frozen=True)
class Question:
    """A run, and what must hold: finite losses that fall, and agree with those of the reference."""

    name: str
    model: str
    options: tuple[str, ...]
    reference: tuple[str, ...] | None = None
    """Options of the run whose loss must be the same in each step."""
    tolerance: float = 0.0
    """Largest relative difference of a loss."""
    needs: str = ""
    """CUDA, fp8, 2 GPUs, or torch 2.13 on a GPU."""
    modules: tuple[str, ...] = ()
    """Packages beyond those that each run needs."""
    falls: bool = True
    """Whether the loss must be lower at the end."""
    prints: str = ""
    """What the run must print."""
    memory: float = 1.0
    """Share of the GPU memory that the reference has used which the run may use."""
    launch: str = ""
    """one-rank: in a process group of one rank; two: two processes; stop: stopped and resumed."""
    silent: bool = False
    """Whether nothing may wait for the GPU, from loading a batch to the end of its step."""


@dataclass(frozen=True)
class Row:
    """A measured training run on synthetic data of the size that its model is known for."""

    name: str
    model: str
    options: tuple[str, ...]
    needs: str = "CUDA"
    modules: tuple[str, ...] = ()
    steps: int = 60
    loop: str = ""
    """A loop of `programs/gpu_loops.py`; none for the project's own one."""


def component(name: str, *options: str) -> tuple[str, ...]:
    """Return the options that enable a component."""
    return f"--{name}.enabled=true", *(f"--{name}.{option}" for option in options)


def _agrees(
    name: str, *options: str, model: str = "gpt", base: tuple[str, ...] = FP32, **others: Any
) -> Question:
    """A component that does not change the loss, or not by more than `tolerance`."""
    title = " ".join([name, *options])
    if model != "gpt":
        title = f"{model}: {title}"
    others.setdefault("tolerance", 1e-3)
    return Question(
        title,
        model,
        (*base, *component(name, *options)),
        base,
        **others,
    )


def _trains(name: str, *options: str, model: str = "gpt", **others: Any) -> Question:
    """A component that changes the loss."""
    title = " ".join([name, *options])
    return Question(
        title,
        model,
        (*FP32, *component(name, *options)),
        **others,
    )


def _precisions(model: str) -> list[Question]:
    same = SAME_ON_ALL[model]  # compiled code, and other precisions, draw other dropout masks
    fp32 = (*FP32, *same)
    few = (*fp32, *FEW)
    on_cpu = (*few, "--run.device=cpu")
    found = [
        Question(
            f"{model}: the GPU agrees with the CPU",
            model,
            few,
            on_cpu,
            1e-4,
            "CUDA",
        )
    ]
    wanted = {
        "tf32": (0.02, "CUDA"),
        "bf16": (0.1, ""),
        "fp16": (0.05, "CUDA"),
    }
    for name, (tolerance, needs) in wanted.items():
        options = (*EAGER, *same, f"--speed.precision={name}")
        found.append(
            Question(
                f"{model}: {name} agrees with fp32",
                model,
                options,
                fp32,
                tolerance,
                needs,
            )
        )
    if model != "lstm":  # torch.compile does not trace nn.LSTM
        compiled = (*COMPILED_FP32, *same)
        found.append(
            Question(
                f"{model}: compiled agrees with eager",
                model,
                compiled,
                fp32,
                1e-2,
                "CUDA",
            )
        )
    options = (*BF16, *component("debug", "synchronization=error"), "--log.every=10")
    found.append(
        Question(
            f"{model}: a step does not synchronize",
            model,
            options,
            needs="CUDA",
            silent=True,
        )
    )
    return found


def _parts() -> list[Question]:
    def resnet(
        name: str,
        option: str,
        reference: str,
        tolerance: float = 1e-3,
        needs: str = "",
    ) -> Question:
        return Question(
            name,
            "resnet",
            (*FP32, f"--{option}"),
            (*FP32, f"--{reference}"),
            tolerance,
            needs,
        )

    smaller = (*FP32, "--train.batch_size=4", "--train.gradient_accumulation_steps=2")
    graphs = (*COMPILED_BF16, "--speed.compile_mode=reduce-overhead")
    pinned = ("loader.pin_memory=true", "loader.pin_memory=false")
    return [
        resnet("pinned copies agree with pageable ones", *pinned, needs="CUDA"),
        resnet("two workers agree with none", "loader.num_workers=2", "loader.num_workers=0"),
        resnet(
            "channels_last agrees with NCHW",
            "speed.channels_last=true",
            "speed.channels_last=false",
            1e-2,
        ),
        Question(
            "micro-batches agree with one batch",
            "gpt",
            smaller,
            FP32,
            1e-3,
        ),
        Question(
            "a resumed run agrees",
            "gpt",
            FP32,
            FP32,
            1e-3,
            launch="stop",
        ),
        Question(
            "compiled with CUDA graphs agrees with eager",
            "gpt",
            graphs,
            BF16,
            0.05,
            "CUDA",
        ),
    ]


def _components() -> list[Question]:
    """Each component that acts in training, on one GPU."""
    large = (*FP32, "--train.batch_size=512")
    oom = (*large, *component("oom"))
    budget = (*COMPILED_FP32, *component("activation_checkpointing", "mode=budget"))
    layerwise: dict[str, Any] = {"modules": ("pytorch_optimizer",), "falls": False}
    return [
        _agrees("regional_compile", tolerance=1e-2, needs="CUDA"),
        _agrees("fp8", base=BF16, tolerance=0.1, needs="fp8", modules=("torchao",)),
        Question(
            "oom",
            "gpt",
            oom,
            large,
            1e-3,
            "CUDA",
            prints="out of memory at step",
            memory=0.6,
        ),
        *[_agrees("activation_checkpointing", f"mode={mode}") for mode in ("blocks", "ops")],
        Question(
            "activation_checkpointing mode=budget",
            "gpt",
            budget,
            FP32,
            1e-2,
            "torch 2.13",
        ),
        _agrees("fsdp", launch="one-rank"),
        *[
            _agrees(name)
            for name in ("ema", "mfu", "async_checkpoint", "watchdog", "early_stopping")
        ],
        _agrees("safetensors", modules=("safetensors",)),
        _agrees("nonfinite"),
        *[_agrees("debug", f"{tool}=true") for tool in ("nan", "anomaly")],
        _trains("debug", "deterministic=true", model="resnet"),
        *[_agrees("profiler", f"kind={kind}", "skip=2") for kind in ("basic", "advanced", "torch")],
        _agrees("profiler", "kind=nvtx", "skip=2", needs="CUDA"),
        *[
            _agrees("cache", f"where={where}", model="resnet")
            for where in ("device", "memory", "disk")
        ],
        _agrees("metrics", model="resnet", modules=("torchmetrics",)),
        *[_trains("optimizers", f"name={name}") for name in ("sgd", "adam", "muon")],
        *[
            _trains("optimizers", f"name={name}", **layerwise)
            for name in ("lamb", "lars", "novograd")
        ],
        *[
            _trains("schedules", f"name={name}")
            for name in ("cosine", "cyclical", "wsd", "constant")
        ],
        _trains("lr_range_test", modules=("matplotlib",), falls=False),
        _trains("lora", modules=("peft",)),
        _trains("finetune", 'freeze=["blocks.0*"]'),
    ]


def _two_ranks() -> list[Question]:
    ways = {
        "DDP": (),
        "fsdp": component("fsdp"),
        "ddp_options": component("ddp_options", "static_graph=true"),
    }
    halves = (*FP32, "--train.batch_size=4")
    return [
        Question(
            f"{way}, 2 ranks",
            "gpt",
            (*halves, *options),
            FP32,
            1e-2,
            "2 GPUs",
            launch="two",
        )
        for way, options in ways.items()
    ]


QUESTIONS: list[Question] = [
    *chain.from_iterable(map(_precisions, MODELS)),
    *_parts(),
    *_components(),
    *_two_ranks(),
]

FAST = ("--speed.precision=bf16",)
COMPILED = (*FAST, "--speed.compile=model")
SIZES: dict[str, tuple[str, ...]] = {
    "resnet": ("--model.size=50", "--train.batch_size=256"),
    "vit": ("--model.size=S/16", "--model.dropout=0", "--train.batch_size=256"),
    "gpt": ("--model.size=124M", "--data.context=1024", "--train.batch_size=16"),
    "lstm": ("--model.size=base", "--data.context=256", "--train.batch_size=256"),
}
NAMES = {
    "resnet": "ResNet-50, 224 pixels",
    "vit": "ViT-S/16, 224 pixels",
    "gpt": "GPT-2 124M, context 1024",
    "lstm": "LSTM, 3 x 640, context 256",
}
LADDER = {
    "fp32, NCHW, nothing else": "--speed.precision=fp32",
    "+ TF32": "--speed.precision=tf32",
    "+ bf16": "--speed.precision=bf16",
    "+ channels_last": "--speed.channels_last=true",
    "+ cuDNN's autotuner": "--speed.cudnn_benchmark=true",
    "+ pinned memory": "--loader.pin_memory=true",
    "+ batch of 256": "--train.batch_size=256",
}
"""One technique after the other."""
WITHOUT = (
    "--speed.channels_last=false",
    "--speed.cudnn_benchmark=false",
    "--loader.pin_memory=false",
    "--train.batch_size=64",
)
"""Options without the techniques."""
OTHERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bare": ("the bare step", ()),
    "nanogpt": ("nanoGPT's loop", ()),
    "timm": ("timm's loop", ("timm",)),
    "lightning": ("Lightning", ("lightning",)),
    "hugging_face": ("Hugging Face's Trainer", ("transformers",)),
}
"""Names of the loops of `programs/gpu_loops.py`, and the packages that they need."""


def other(
    loop: str,
    model: str,
    compiled: bool = False,
) -> Row:
    """Return the row of another loop."""
    label, modules = OTHERS[loop]
    row = core(model, compiled)
    return replace(row, name=f"{row.name}: {label}", modules=modules, loop=loop)


def core(model: str, compiled: bool = False) -> Row:
    """Return the row of the project's own loop."""
    if compiled:
        return Row("bf16, compiled", model, (*SIZES[model], *COMPILED))
    return Row(
        "bf16",
        model,
        (*SIZES[model], *FAST),
        needs="",
    )


def _ladder() -> list[Row]:
    rows = []
    options = (*SIZES["resnet"], *WITHOUT)
    for name, technique in LADDER.items():
        options = (*options, technique)
        needs = "CUDA" if "tf32" in technique else ""
        rows.append(Row(name, "resnet", options, needs))
    return rows


CEILING = Row(
    "product and copy",
    "gpt",
    (),
    needs="",
    loop="ceiling",
)
ROWS: list[Row] = [
    CEILING,
    other("bare", "gpt"),
    core("gpt"),
    other("nanogpt", "gpt"),
    other("lightning", "gpt"),
    other("hugging_face", "gpt"),
    other("bare", "gpt", compiled=True),
    core("gpt", compiled=True),
    other("bare", "resnet"),
    core("resnet"),
    other("timm", "resnet"),
    other("lightning", "resnet"),
    *_ladder(),
    core("resnet", compiled=True),
    core("vit"),
    core("vit", compiled=True),
    core("lstm"),
    Row(
        "bf16, compiled, fp8",
        "gpt",
        (*SIZES["gpt"], *COMPILED, *component("fp8")),
        "fp8",
        ("torchao",),
    ),
    Row("bf16, compiled by block", "gpt", (*SIZES["gpt"], *FAST, *component("regional_compile"))),
    Row(
        "bf16, activation checkpointing",
        "gpt",
        (*SIZES["gpt"], *FAST, *component("activation_checkpointing")),
    ),
    Row("fp16", "vit", (*SIZES["vit"], "--speed.precision=fp16")),
    Row("TF32", "gpt", (*SIZES["gpt"], "--speed.precision=tf32")),
]
"""In the order of measurement: others' loops in the same minutes as the project's own one."""
COLD = [
    replace(row, name="first start, compiled", steps=3)
    for row in ROWS
    if row.name == "bf16, compiled"
]
"""Asked beside the questions: these fill the compiler's cache, so that the rows start sooner."""


def compiles(asked: Question | Row) -> bool:
    """Whether it starts with a compilation."""
    compiling = {"--speed.compile=model", "--regional_compile.enabled=true"}
    return not compiling.isdisjoint(asked.options)
