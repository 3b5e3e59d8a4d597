"""The comparisons of results of complete runs, which take a CPU minutes."""

from comparison import Comparison

ADAMW = ["--optim.name=adamw", "--optim.lr=8e-3"]  # most gpt rows use the common optimizer instead of its recipe's
WHOLE = {"resnet": [], "gpt": ["--train.steps=1600", *ADAMW]}


def outcome(page: str, what: str, model: str, metric: str, without: list[str], with_it: list[str]) -> Comparison:
    """Compare the results of complete runs over the seeds 0 to rounds - 1."""
    smaller = metric != "accuracy"
    rounds = 3 if model == "resnet" else 1
    sides = [*WHOLE[model], *without], [*WHOLE[model], *with_it]
    return Comparison(page, what, model, *sides, f"val:{metric}", (1, 1), rounds, smaller)


FP32 = ["--speed.precision=fp32"]
BF16 = ["--speed.precision=bf16"]
COMPARISONS = [
    Comparison(
        "normalization",
        "validation accuracy after 30 epochs, `resnet`, inputs from 0 to 255 vs. normalized",
        "resnet",
        [],
        [],
        "val:accuracy",
        changes=("page_changes.raw", ""),
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
    *[
        outcome(
            "batch-size",
            f"validation accuracy after 30 epochs, `resnet`, global batch 64 vs. 512 with `lr_scaling` {rule}",
            "resnet",
            "accuracy",
            [],
            ["--train.micro_batch=512", f"--optim.lr_scaling={rule}"],
        )
        for rule in ("linear", "sqrt", "none")
    ],
    outcome(
        "mixed-precision",
        "validation accuracy after 30 epochs, `resnet`, fp32 vs. bf16",
        "resnet",
        "accuracy",
        FP32,
        BF16,
    ),
    outcome(
        "optimizers",
        "validation accuracy after 30 epochs, `resnet`, Adam vs. AdamW",
        "resnet",
        "accuracy",
        ["--optim.name=adam"],
        ["--optim.name=adamw"],
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
