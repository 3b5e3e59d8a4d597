"""The comparisons that a CPU can make."""

from comparison import Comparison

TINY = "--data.val_fraction=0.001"  # keeps validation shorter than training
ADAMW = ["--optim.name=adamw", "--optim.lr=8e-3"]  # most gpt rows use the common optimizer instead of its recipe's
SHORT = {
    "resnet": ["--train.steps=150", "--log.every=15"],
    "gpt": ["--train.steps=60", "--log.every=6", TINY, *ADAMW],
}
WHOLE = {"resnet": [], "gpt": ["--train.steps=1600", *ADAMW]}
DEEP = [*ADAMW, "--model.depth=12", "--train.steps=24", "--log.every=4", TINY]


def speed(page: str, what: str, model: str, without: list[str], with_it: list[str], **others: object) -> Comparison:
    """Compare samples per second in a short run."""
    return Comparison(page, what, model, [*SHORT[model], *without], [*SHORT[model], *with_it], **others)  # type: ignore[arg-type]


def outcome(page: str, what: str, model: str, metric: str, without: list[str], with_it: list[str]) -> Comparison:
    """Compare the results of complete runs over the seeds 0 to rounds - 1."""
    smaller = metric != "accuracy"
    rounds = 3 if model == "resnet" else 1
    sides = [*WHOLE[model], *without], [*WHOLE[model], *with_it]
    return Comparison(page, what, model, *sides, f"val:{metric}", (1, 1), rounds, smaller)


FP32 = ["--speed.precision=fp32"]
BF16 = ["--speed.precision=bf16"]
MUON = ["--optim.name=muon", "--optim.lr=1e-2"]
COMPARISONS = [
    speed(
        "loader-workers",
        "samples per second from a folder of JPEGs of 256 x 256, 0 vs. 1 workers, CPU",
        "resnet",
        ["--data.path=jpegs", "--data.size=32", "--train.steps=20", "--log.every=4", "--loader.workers=0"],
        ["--data.path=jpegs", "--data.size=32", "--train.steps=20", "--log.every=4", "--loader.workers=1"],
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
        ["--train.micro_batch=512", "--train.steps=24", "--log.every=4"],
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
        changes=("torch_muon", ""),
    ),
    speed("optimizers", "samples per second, `gpt`, AdamW vs. Muon, CPU", "gpt", [], MUON),
    speed(
        "synchronization",
        "samples per second, `gpt`, `log.every` 1 vs. 50, CPU",
        "gpt",
        ["--log.every=1"],
        ["--log.every=50", "--train.steps=150"],
    ),
    Comparison(
        "activation-checkpointing",
        "samples per second, `gpt` of depth 12, `none` vs. `blocks`, CPU",
        "gpt",
        DEEP,
        [*DEEP, "--speed.activation_checkpointing=blocks"],
    ),
    Comparison(
        "activation-checkpointing",
        "peak memory of the process in MB, `gpt` of depth 12, micro-batch 64, `none` vs. `blocks`, CPU",
        "gpt",
        [*DEEP, "--train.steps=2", "--train.micro_batch=64"],
        [*DEEP, "--train.steps=2", "--train.micro_batch=64", "--speed.activation_checkpointing=blocks"],
        value="peak_mb",
        rounds=3,
        smaller_is_better=True,
    ),
    speed(
        "gradient-accumulation",
        "samples per second, `resnet`, global batch 256, 4 micro-batches vs. 1, CPU",
        "resnet",
        ["--train.micro_batch=64", "--train.accumulate=4", "--train.steps=40", "--log.every=5"],
        ["--train.micro_batch=256", "--train.steps=40", "--log.every=5"],
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
    Comparison(
        "normalization",
        "validation accuracy after 30 epochs, `resnet`, inputs from 0 to 255 vs. normalized",
        "resnet",
        [],
        [],
        "val:accuracy",
        changes=("raw", ""),
    ),
    outcome(
        "learning-rate-schedule",
        "validation accuracy after 30 epochs, `resnet`, `constant` vs. `onecycle`",
        "resnet",
        "accuracy",
        ["--optim.schedule=constant"],
        [],
    ),
    outcome(
        "learning-rate-schedule",
        "validation bits per byte after 1,600 steps, `gpt`, `constant` vs. `onecycle`",
        "gpt",
        "bits_per_byte",
        ["--optim.schedule=constant", "--optim.warmup_steps=80"],
        [],
    ),
    outcome(
        "gradient-clipping",
        "validation bits per byte after 1,600 steps, `gpt`, `clip` null vs. 1.0",
        "gpt",
        "bits_per_byte",
        ["--optim.clip=null"],
        [],
    ),
    outcome(
        "batch-size",
        "validation accuracy after 30 epochs, `resnet`, global batch 64 vs. 512",
        "resnet",
        "accuracy",
        [],
        ["--train.micro_batch=512"],
    ),
    outcome(
        "regularization",
        "validation accuracy after 30 epochs, `resnet`, `label_smoothing` 0 vs. 0.1",
        "resnet",
        "accuracy",
        [],
        ["--model.label_smoothing=0.1"],
    ),
    outcome(
        "regularization",
        "validation accuracy after 30 epochs, `resnet`, `constant`, `ema` off vs. 0.99",
        "resnet",
        "accuracy",
        ["--optim.schedule=constant"],
        ["--optim.schedule=constant", "--train.ema=0.99"],
    ),
]
