"""Measure the effect of each technique with the real training command, and write the tables in docs/techniques/.

    python benchmarks/techniques.py                 all pages, about 30 minutes on 2 cores
    python benchmarks/techniques.py channels-last   one page

Each run is a separate process with one thread per rank, in a project rendered for this machine. Runs with and without
a technique are interleaved in rounds, so that a slow phase of the machine affects both; a cell is the median over the
rounds, with the lowest and highest. Speeds exclude the first log entry of each run (warm-up). Rows that this machine
cannot measure are not written.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "techniques"
ROUNDS = 3
TINY = "--data.val_fraction=0.001"  # keeps validation shorter than training
ADAMW = ["--optim.name=adamw", "--optim.lr=8e-3"]  # most gpt rows use the common optimizer instead of its recipe's
SHORT = {
    "resnet": ["--train.steps=150", "--log.every=15"],
    "gpt": ["--train.steps=60", "--log.every=6", TINY, *ADAMW],
}
WHOLE = {"resnet": [], "gpt": ["--train.steps=1600", *ADAMW]}
DEEP = [*ADAMW, "--model.depth=12", "--train.steps=24", "--log.every=4", TINY]


@dataclass(frozen=True)
class Comparison:
    """One row of a page: the same run without and with a technique."""

    page: str
    what: str
    model: str
    without: list[str]
    with_it: list[str]
    value: str = "samples_per_second"
    """A column of metrics.jsonl, `peak_mb` of the process, or a validation metric as `val:name`."""
    ranks: tuple[int, int] = (1, 1)
    rounds: int = ROUNDS
    smaller_is_better: bool = False


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


def main(pages: list[str]) -> None:
    """Measure and write."""
    unknown = set(pages) - {comparison.page for comparison in COMPARISONS}
    if unknown:
        sys.exit(f"unknown page {', '.join(sorted(unknown))}: choose from those in COMPARISONS")
    chosen = [comparison for comparison in COMPARISONS if not pages or comparison.page in pages]
    with tempfile.TemporaryDirectory() as folder:
        for model in {comparison.model for comparison in chosen}:
            new = [sys.executable, "-m", "fastproj", "new", model, "--model", model, "--gpus", "0"]
            subprocess.run([*new, "--yes", "--no-git", "--output", folder], check=True, stdout=subprocess.DEVNULL)
        _write_images(Path(folder) / "resnet" / "jpegs")
        for comparison in chosen:
            _write(comparison, *_measure(comparison, Path(folder)))


def _measure(comparison: Comparison, folder: Path) -> tuple[list[float], list[float]]:
    """Return the values of all rounds, without and with the technique."""
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(comparison.rounds):
        turns = [(0, comparison.without), (1, comparison.with_it)]
        for side, options in turns if number % 2 == 0 else reversed(turns):
            seeded = [*options, f"--run.seed={number}"]
            values[side].append(_run(comparison, folder / comparison.model, seeded, comparison.ranks[side]))
    return values


def _run(comparison: Comparison, project: Path, options: Iterable[str], ranks: int) -> float:
    with tempfile.TemporaryDirectory(dir=project) as runs:
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"] if ranks > 1 else []
        command = [sys.executable, "-m", *torchrun, f"{project.name}.train", "--config=configs/default.yaml"]
        fixed = ["--run.device=cpu", "--log.tensorboard=false", f"--run.dir={runs}", "--run.name=a", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "src"}
        child = subprocess.Popen(
            [*command, *fixed], cwd=project, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert child.stderr is not None
        errors = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            sys.exit(f"{comparison.what}: {errors[-2000:]}")
        if comparison.value == "peak_mb":
            return usage.ru_maxrss / 1024
        rows = [json.loads(line) for line in Path(runs, "a", "metrics.jsonl").read_text().splitlines()]
    if comparison.value.startswith("val:"):
        return float([row for row in rows if row["split"] == "val"][-1][comparison.value[4:]])
    return float(statistics.median([row[comparison.value] for row in rows if row["split"] == "train"][1:]))


def _write_images(folder: Path) -> None:
    """Write JPEGs of noise over gradients, in two classes."""
    random = np.random.default_rng(0)
    slope = np.linspace(0, 127, 256, dtype=np.uint8)
    for name in ("rows", "columns"):
        (folder / name).mkdir(parents=True)
        for number in range(900):
            image = random.integers(0, 127, (256, 256, 3), dtype=np.uint8)
            image += (slope[:, None] if name == "rows" else slope)[..., None]
            Image.fromarray(image).save(folder / name / f"{number:04d}.jpg")


def _write(comparison: Comparison, without: list[float], with_it: list[float]) -> None:
    """Replace the row on the page, or add it at the top of the table."""
    before, after = statistics.median(without), statistics.median(with_it)
    ratio = before / after if comparison.smaller_is_better else after / before
    shown = f"{ratio:.2f}" if not comparison.value.startswith("val:") else "-"
    cells = [comparison.what, machine(), f"torch {version('torch')}, Python {platform.python_version()}"]
    row = f"| {' | '.join([*cells, _cell(without), _cell(with_it), shown])} |"
    page = PAGES / f"{comparison.page}.md"
    text = page.read_text()
    old = re.search(rf"^\| {re.escape(comparison.what)} \|.*$", text, re.MULTILINE)
    if old:
        text = text.replace(old[0], row)
    else:
        text = re.sub(r"(\| comparison \|.*\n\|[-|]+\|\n)", lambda head: f"{head[1]}{row}\n", text, count=1)
    text = text.replace("Not measured yet.", "Medians of interleaved rounds, lowest and highest in parentheses.")
    page.write_text(text)
    print(row, flush=True)


def _cell(values: list[float]) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    digits = 0 if middle >= 100 else 4 if middle < 10 else 1
    spread = f" ({low:,.{digits}f} to {high:,.{digits}f})" if len(values) > 1 else ""
    return f"{middle:,.{digits}f}{spread}"


def machine() -> str:
    """Return the processor name and the number of usable cores."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main(sys.argv[1:])
