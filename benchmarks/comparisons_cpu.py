"""The comparisons that a CPU can make."""

import comparisons_outcomes
from comparison import Comparison
from comparisons_outcomes import ADAMW

TINY = "--data.val_fraction=0.001"  # keeps validation shorter than training
SHORT: dict[str, list[str]] = {"resnet": [], "gpt": [TINY, *ADAMW]}
STEPS = {"resnet": 135, "gpt": 50}
DEEP = [*ADAMW, "--model.depth=12", TINY]


def speed(page: str, what: str, model: str, without: list[str], with_it: list[str], **others: object) -> Comparison:
    """Compare samples per second in a short run."""
    settings = {"steps": STEPS[model]} | others
    return Comparison(page, what, model, [*SHORT[model], *without], [*SHORT[model], *with_it], **settings)  # type: ignore[arg-type]


FP32 = ["--speed.precision=fp32"]
BF16 = ["--speed.precision=bf16"]
MUON = ["--optim.name=muon", "--optim.lr=1e-2"]
COMPARISONS = [
    speed(
        "loader-workers",
        "samples per second from a folder of JPEGs of 256 x 256, 0 vs. 1 workers, CPU",
        "resnet",
        ["--data.path=jpegs", "--data.size=32", "--loader.workers=0"],
        ["--data.path=jpegs", "--data.size=32", "--loader.workers=1"],
        steps=16,
        warmup=4,
    ),
    speed(
        "loader-workers",
        "samples per second from memory, `resnet`, 0 vs. 1 workers, CPU",
        "resnet",
        ["--loader.workers=0"],
        ["--loader.workers=1"],
    ),
    speed(
        "pinned-memory",
        "samples per second, `resnet` on digits, `data.cache` none vs. device, CPU",
        "resnet",
        [],
        ["--data.cache=device"],
    ),
    speed(
        "batch-size",
        "samples per second, `resnet`, micro-batch 64 vs. 512, CPU",
        "resnet",
        [],
        ["--train.micro_batch=512"],
        steps=20,
    ),
    speed("mixed-precision", "samples per second, `resnet`, fp32 vs. bf16, CPU", "resnet", FP32, BF16),
    speed("mixed-precision", "samples per second, `gpt`, fp32 vs. bf16, CPU", "gpt", FP32, BF16),
    speed(
        "optimizers",
        "samples per second, `gpt`, AdamW, `fused` false vs. true, CPU",
        "gpt",
        ["--optim.fused=false"],
        ["--optim.fused=true"],
    ),
    speed(
        "optimizers",
        "samples per second, `gpt`, torch's Muon vs. batched in fp32, CPU",
        "gpt",
        MUON,
        MUON,
        changes=("page_changes.torch_muon", ""),
    ),
    speed("optimizers", "samples per second, `gpt`, AdamW vs. Muon, CPU", "gpt", [], MUON),
    speed(
        "synchronization",
        "samples per second, `gpt`, `log.every` 1 vs. 50, CPU",
        "gpt",
        ["--log.every=1"],
        ["--log.every=50"],
        steps=250,
    ),
    Comparison(
        "activation-checkpointing",
        "samples per second, `gpt` of depth 12, `none` vs. `blocks`, CPU",
        "gpt",
        DEEP,
        [*DEEP, "--speed.activation_checkpointing=blocks"],
        steps=20,
        warmup=4,
    ),
    Comparison(
        "activation-checkpointing",
        "peak memory of the process in MB, `gpt` of depth 12, micro-batch 64, `none` vs. `blocks`, CPU",
        "gpt",
        [*DEEP, "--train.micro_batch=64"],
        [*DEEP, "--train.micro_batch=64", "--speed.activation_checkpointing=blocks"],
        value="memory_mb",
        smaller_is_better=True,
        steps=1,
        warmup=1,
    ),
    speed(
        "gradient-accumulation",
        "samples per second, `resnet`, global batch 256, 4 micro-batches vs. 1, CPU",
        "resnet",
        ["--train.micro_batch=64", "--train.accumulate=4"],
        ["--train.micro_batch=256"],
    ),
    speed(
        "distributed",
        "samples per second, `resnet`, 1 vs. 2 ranks (gloo, one thread each), CPU",
        "resnet",
        [],
        [],
        ranks=(1, 2),
    ),
    speed(
        "distributed",
        "samples per second, `gpt`, 2 ranks (gloo), `bf16_gradients` off vs. on, CPU",
        "gpt",
        [],
        ["--dist.bf16_gradients=true"],
        ranks=(2, 2),
    ),
    speed(
        "distributed",
        "samples per second, `gpt`, 2 ranks (gloo), `static_graph` off vs. on, CPU",
        "gpt",
        [],
        ["--dist.static_graph=true"],
        ranks=(2, 2),
    ),
    speed(
        "distributed",
        "samples per second, `gpt`, 2 ranks (gloo), `ddp` vs. `fsdp`, CPU",
        "gpt",
        [],
        ["--dist.strategy=fsdp"],
        ranks=(2, 2),
    ),
    speed(
        "gradients-to-none",
        "samples per second, `gpt`, `set_to_none` false vs. true, CPU",
        "gpt",
        ["--optim.set_to_none=false"],
        ["--optim.set_to_none=true"],
    ),
    *[
        speed("debugging", f"samples per second, `resnet`, `debug.{name}` off vs. on, CPU", "resnet", [], [option])
        for name, option in (
            ("anomaly", "--debug.anomaly=true"),
            ("nan", "--debug.nan=true"),
            ("deterministic", "--debug.deterministic=true"),
        )
    ],
    speed(
        "gradient-clipping",
        "samples per second, `gpt`, `clip` null vs. 1.0, CPU",
        "gpt",
        ["--optim.clip=null"],
        ["--optim.clip=1.0"],
    ),
    speed(
        "compile",
        "samples per second after warm-up, `resnet`, `off` vs. `model`, fp32, CPU",
        "resnet",
        FP32,
        [*FP32, "--speed.compile=model"],
    ),
    speed(
        "compile",
        "samples per second after warm-up, `gpt`, `off` vs. `model`, fp32, CPU",
        "gpt",
        FP32,
        [*FP32, "--speed.compile=model"],
    ),
    *[
        speed(
            "channels-last",
            f"samples per second, `resnet`, off vs. on, {name}, CPU",
            "resnet",
            [*options, "--speed.channels_last=false"],
            [*options, "--speed.channels_last=true"],
        )
        for name, options in (("fp32", FP32), ("bf16", BF16))
    ],
    speed(
        "regularization",
        "samples per second, `resnet`, `ema` off vs. 0.999, CPU",
        "resnet",
        [],
        ["--train.ema=0.999"],
    ),
    speed(
        "no-bias-before-batchnorm",
        "samples per second, `resnet`, a bias in each convolution vs. none, CPU",
        "resnet",
        [],
        [],
        changes=("bias", ""),
    ),
    Comparison(
        "inference-mode",
        "seconds of a validation of 1,617 digits, `resnet`, with autograd vs. `inference_mode`, CPU",
        "resnet",
        ["--data.val_fraction=0.9"],
        ["--data.val_fraction=0.9"],
        value="validation_seconds",
        smaller_is_better=True,
        changes=("autograd", ""),
        steps=5,
    ),
    Comparison(
        "inference-mode",
        "peak memory of the process in MB, training with a micro-batch of 8 and validating, `gpt` of depth 12, with "
        "autograd vs. `inference_mode`, CPU",
        "gpt",
        [*DEEP, "--train.micro_batch=8"],
        [*DEEP, "--train.micro_batch=8"],
        value="validation_memory_mb",
        smaller_is_better=True,
        changes=("autograd", ""),
        steps=1,
        warmup=1,
    ),
    speed(
        "profiling",
        "samples per second, `resnet`, of steps 8 to 14, `debug.profile` off vs. on, CPU",
        "resnet",
        [],
        ["--debug.profile=true"],
        steps=7,
        warmup=7,
    ),
    Comparison(
        "activation-checkpointing",
        "largest micro-batch within 1 GiB of the process, `gpt` of depth 12, `none` vs. `blocks`, CPU",
        "gpt",
        DEEP,
        [*DEEP, "--speed.activation_checkpointing=blocks"],
        value="largest_batch",
        rounds=1,
    ),
    *comparisons_outcomes.COMPARISONS,
]
