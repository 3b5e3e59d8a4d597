"""The comparisons that need a GPU. Those of two ranks need two."""

from comparison import Comparison

GENERAL = ["--speed.precision=auto", "--speed.compile=off", "--log.mfu=false"]
SMALL = {
    "resnet": GENERAL,
    "gpt": [*GENERAL, "--optim.name=adamw", "--data.val_fraction=0.001"],
}
"""The recipes, which are bound by Python's overhead on a GPU."""
LARGE = {
    "resnet": [*SMALL["resnet"], "--train.micro_batch=512", "--data.cache=device"],
    "gpt": [
        *SMALL["gpt"],
        *["--model.size=124M", "--data.context=512", "--train.micro_batch=16", "--optim.lr=1e-4"],
    ],
}
"""What keeps a GPU busy: larger batches, and GPT-2 124M, with its vocabulary."""
GPT2 = ("page_changes.gpt2", "page_changes.gpt2")
JPEGS = ["--data.path=jpegs", "--data.size=224", "--train.micro_batch=64"]
FP32, BF16 = ["--speed.precision=fp32"], ["--speed.precision=bf16"]
MUON = ["--optim.name=muon"]
STEP_GRAPH = ["--speed.step_graph=true"]
BLOCKS = ["--speed.compile=blocks"]


def speed(page: str, what: str, model: str, without: list[str], with_it: list[str], **others: object) -> Comparison:
    """Compare samples per second, of the recipe's size."""
    settings = {"steps": 250, "warmup": 50} | others
    return _compare(page, f"samples per second, {what}", model, SMALL[model], without, with_it, **settings)


def large(page: str, what: str, model: str, without: list[str], with_it: list[str], **others: object) -> Comparison:
    """Compare samples per second, of a size that keeps a GPU busy."""
    settings = ({"changes": GPT2, "steps": 40} if model == "gpt" else {"steps": 250, "warmup": 50}) | others
    return _compare(page, f"samples per second, {what}", model, LARGE[model], without, with_it, **settings)


def memory(page: str, what: str, without: list[str], with_it: list[str], **others: object) -> Comparison:
    """Compare the peak of allocated memory of GPT-2 124M."""
    settings: dict[str, object] = {"value": "memory_mb", "smaller_is_better": True, "rounds": 1, "changes": GPT2}
    settings |= {"steps": 2, "warmup": 1} | others
    return _compare(page, f"{what} in MB", "gpt", LARGE["gpt"], without, with_it, **settings)


def _compare(
    page: str, what: str, model: str, shared: list[str], without: list[str], with_it: list[str], **others: object
) -> Comparison:
    return Comparison(page, f"{what}, GPU", model, [*shared, *without], [*shared, *with_it], **others)  # type: ignore[arg-type]


COMPARISONS = [
    large(
        "activation-checkpointing",
        "`gpt` 124M, `none` vs. `blocks`",
        "gpt",
        [],
        ["--speed.activation_checkpointing=blocks"],
    ),
    memory(
        "activation-checkpointing",
        "peak memory, `gpt` 124M, `none` vs. `blocks`",
        [],
        ["--speed.activation_checkpointing=blocks"],
    ),
    large(
        "activation-checkpointing",
        "`gpt` 124M, compiled, `none` vs. `budget:0.5`",
        "gpt",
        ["--speed.compile=model"],
        ["--speed.compile=model", "--speed.activation_checkpointing=budget:0.5"],
    ),
    memory(
        "activation-checkpointing",
        "peak memory, `gpt` 124M, compiled, `none` vs. `budget:0.5`",
        ["--speed.compile=model"],
        ["--speed.compile=model", "--speed.activation_checkpointing=budget:0.5"],
    ),
    speed("batch-size", "`resnet`, micro-batch 64 vs. 512", "resnet", [], ["--train.micro_batch=512"]),
    large(
        "channels-last",
        "`resnet`, micro-batch 512, off vs. on, bf16",
        "resnet",
        [*BF16, "--speed.channels_last=false"],
        [*BF16, "--speed.channels_last=true"],
    ),
    large("compile", "`resnet`, micro-batch 512, `off` vs. `model`", "resnet", [], ["--speed.compile=model"]),
    large("compile", "`gpt` 124M, `off` vs. `model`", "gpt", [], ["--speed.compile=model"]),
    speed("cuda-graphs", "`resnet` on digits, off vs. on", "resnet", [], STEP_GRAPH),
    speed("cuda-graphs", "`gpt` of depth 2, off vs. on", "gpt", [], STEP_GRAPH),
    speed(
        "cuda-graphs",
        "`gpt` of depth 2, `compile_mode` `reduce-overhead` vs. `step_graph`",
        "gpt",
        ["--speed.compile=model", "--speed.compile_mode=reduce-overhead"],
        ["--speed.compile=model", *STEP_GRAPH],
    ),
    large(
        "cudnn-autotuner",
        "`resnet`, micro-batch 512, off vs. on",
        "resnet",
        ["--speed.cudnn_benchmark=false"],
        ["--speed.cudnn_benchmark=true"],
    ),
    Comparison(
        "cudnn-autotuner",
        "seconds of the first 20 steps, `resnet`, off vs. on, GPU",
        "resnet",
        [*SMALL["resnet"], "--speed.cudnn_benchmark=false"],
        [*SMALL["resnet"], "--speed.cudnn_benchmark=true"],
        value="first_seconds",
        smaller_is_better=True,
        steps=20,
        warmup=0,
    ),
    *[
        speed("debugging", f"`resnet`, `debug.{name}` off vs. on", "resnet", [], [f"--debug.{name}=true"])
        for name in ("anomaly", "nan", "deterministic")
    ],
    memory(
        "distributed",
        "peak memory per rank, `gpt` 124M, 2 ranks (NCCL), `ddp` vs. `fsdp`",
        [],
        ["--dist.strategy=fsdp"],
        ranks=(2, 2),
    ),
    large(
        "distributed",
        "`gpt` 124M, 2 ranks (NCCL), `ddp` vs. `fsdp`",
        "gpt",
        [],
        ["--dist.strategy=fsdp"],
        ranks=(2, 2),
    ),
    memory(
        "gradient-accumulation",
        "peak memory, `gpt` 124M, global batch 32, 1 micro-batch vs. 4",
        ["--train.micro_batch=32"],
        ["--train.micro_batch=8", "--train.accumulate=4"],
    ),
    large("gradient-clipping", "`gpt` 124M, `clip` null vs. 1.0", "gpt", ["--optim.clip=null"], ["--optim.clip=1.0"]),
    large(
        "gradients-to-none",
        "`gpt` 124M, `set_to_none` false vs. true",
        "gpt",
        ["--optim.set_to_none=false"],
        ["--optim.set_to_none=true"],
    ),
    memory(
        "inference-mode",
        "peak memory of a validation, `gpt` 124M, with autograd vs. `inference_mode`",
        [],
        [],
        value="validation_memory_mb",
        changes=("page_changes.gpt2+autograd", "page_changes.gpt2"),
    ),
    speed(
        "loader-workers",
        "`resnet` from a folder of JPEGs of 256 x 256, 0 vs. 4 workers",
        "resnet",
        [*JPEGS, "--loader.workers=0"],
        [*JPEGS, "--loader.workers=4"],
        steps=20,
        warmup=5,
    ),
    large("mixed-precision", "`resnet`, micro-batch 512, fp32 vs. bf16", "resnet", FP32, BF16),
    large("mixed-precision", "`gpt` 124M, fp32 vs. bf16", "gpt", FP32, BF16),
    memory("mixed-precision", "peak memory, `gpt` 124M, fp32 vs. bf16", FP32, BF16),
    large(
        "mixed-precision",
        "`gpt` 124M, compiled blocks, bf16 vs. fp8",
        "gpt",
        [*BF16, *BLOCKS],
        ["--speed.precision=fp8", *BLOCKS],
    ),
    large(
        "no-bias-before-batchnorm",
        "`resnet`, micro-batch 512, a bias in each convolution vs. none",
        "resnet",
        [],
        [],
        changes=("bias", ""),
    ),
    large("optimizers", "`gpt` 124M, AdamW, `fused` false vs. true", "gpt", ["--optim.fused=false"], []),
    large(
        "optimizers",
        "`gpt` 124M, torch's Muon vs. batched",
        "gpt",
        MUON,
        MUON,
        changes=("page_changes.gpt2+page_changes.torch_muon", "page_changes.gpt2"),
    ),
    speed(
        "pinned-memory",
        "`resnet`, micro-batch 512, pinned memory and side stream off vs. on",
        "resnet",
        ["--train.micro_batch=512", "--loader.pin_memory=false", "--loader.side_stream=false"],
        ["--train.micro_batch=512"],
    ),
    speed(
        "pinned-memory",
        "`resnet`, micro-batch 512, `data.cache` none vs. device",
        "resnet",
        ["--train.micro_batch=512"],
        ["--train.micro_batch=512", "--data.cache=device"],
    ),
    speed(
        "profiling",
        "`resnet`, of steps 8 to 14, `debug.profile` off vs. on",
        "resnet",
        [],
        ["--debug.profile=true"],
        steps=7,
        warmup=7,
    ),
    speed("regularization", "`resnet`, `ema` off vs. 0.999", "resnet", [], ["--train.ema=0.999"]),
    speed("synchronization", "`gpt`, `log.every` 1 vs. 50", "gpt", ["--log.every=1"], ["--log.every=50"]),
]
