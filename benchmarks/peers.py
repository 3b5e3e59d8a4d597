"""Time a training step with our loops and with those of others, on the CPU with one thread.

    python benchmarks/peers.py                       # all models, 2 rounds: 10 to 20 minutes
    python benchmarks/peers.py mlp --rounds 2
    python benchmarks/peers.py --keep                # also writes benchmarks/peers.json
    python benchmarks/peers.py vit gpt --compiled    # with torch.compile

All loops of a model have the same initial weights, samples, batches, schedule and steps, and
validate once, after the last step. They must end with the same loss of the validation, within 1e-4;
the bare step does not clip and is left out. Dropout and augmentation are off. The loops of
`programs/loops.py` make a step in turn (the mlp's 50), in one process, so that each pair of blocks
meets the same machine. glibc's malloc keeps freed memory there: otherwise one loop or another has
more page faults, by chance. All of them have the AdamW of `optim.py`. Accelerate, Lightning and
Hugging Face's Trainer are processes of their own.

Prints for each loop the median of all blocks in microseconds of CPU time per step, and the median
of its ratios to the bare step, to the measured step (bare, with clipping and metrics) and to the
tutorial's loop, with the interval that contains 95% of the medians of resampled pairs of blocks.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from machine import keep
from peer_cases import CASES, MLP, Case, lightning_options
from projects import ROOT, one_thread, read_rows, render_project

PROGRAMS = Path(__file__).parent / "programs"
RESULT = Path(__file__).with_name("peers.json")
WARM_UP = 2
"""Blocks of steps to skip."""
TOLERANCE = 1e-4
KEPT = str(2**32)
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": KEPT, "MALLOC_MMAP_THRESHOLD_": KEPT}
"""Settings with which glibc gives no memory back to the system."""
BASES = ("bare", "measured", "tutorial")
FRAMEWORKS = {
    "accelerate": "accelerate",
    "lightning": "lightning",
    "Lightning, all defaults": "lightning",
    "hf": "pytorch",
}
"""The framework of the project in which a peer runs."""
Times = dict[str, list[float]]


def main() -> None:
    """Run the rounds, and print and keep the tables."""
    parser = argparse.ArgumentParser(
        description="Time a training step with our loops and with those of others."
    )
    parser.add_argument(
        "models", nargs="*", help=f"{', '.join(case.model for case in CASES)}; all by default"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--compiled", action="store_true", help="compile the network in the loops of one process"
    )
    parser.add_argument(
        "--keep", action="store_true", help="write the result of these models to peers.json"
    )
    args = parser.parse_args()
    cases = [case for case in CASES if case.model in args.models or not args.models]
    times: dict[str, Times] = {case.model: defaultdict(list) for case in cases}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for case in cases:
                blocks = measure(case, Path(folder), number, args.compiled)
                for peer, values in blocks.items():
                    times[case.model][peer] += values
            loads.append(round(os.getloadavg()[1], 1))
            if args.keep:
                keep_tables(times, loads, args.compiled)
    for model, peers in times.items():
        print_table(model, table(peers))


def print_table(model: str, rows: dict[str, list[Any]]) -> None:
    """Print the loops of a model."""
    for peer, (median, *ratios) in rows.items():
        line = f"{model:10}{peer:24}{median:9.0f} us"
        for middle, low, high in ratios:
            line += f"  {middle:.3f} ({low:.3f} to {high:.3f})"
        print(line)


def keep_tables(
    times: dict[str, Times],
    loads: list[float],
    compiled: bool,
) -> None:
    """Write the tables of these models to peers.json, which keeps the others."""
    before = json.loads(RESULT.read_text())
    results: dict[str, Any] = {
        "columns": before["columns"],
        "models": before["models"],
        "compiled": before["compiled"],
    }
    for model, peers in times.items():
        results["compiled" if compiled else "models"][model] = {
            "load of each round": loads,
            "loops": table(peers),
        }
    keep(RESULT, results)


def measure(
    case: Case,
    folder: Path,
    number: int,
    compiled: bool,
) -> Times:
    """Run each loop of a case once; check that they end with the same loss."""
    options = [
        "--config=configs/default.yaml",
        "--run.device=cpu",
        "--speed.precision=fp32",
        "--loader.num_workers=0",
        f"--log.every={case.every}",
        f"--train.steps={case.steps}",
        f"--train.eval_every={case.steps}",
    ]
    options += [f"--{key}={value}" for key, value in case.options.items()]
    if compiled:
        options.append("--speed.compile=model")
    loops = [*BASES, "core", *case.loops]
    if find_spec("timm") is None and "timm" in loops:
        loops.remove("timm")
    printed = run(
        render(folder, case.model, "pytorch"),
        str(PROGRAMS / "loops.py"),
        ",".join(loops),
        case.model,
        str(case.turn),
        *options,
        f"--run.name={number}",
    )
    times: Times = printed["times"]
    losses: dict[str, float] = printed["losses"]
    if not compiled:
        for peer in case.peers:
            times[peer], losses[peer] = run_peer(case, peer, folder, options, f"{peer}-{number}")

    shown = ", ".join(f"{peer} {loss:.6f}" for peer, loss in losses.items())
    print(f"{case.model}, round {number + 1}: loss {shown}", file=sys.stderr, flush=True)
    del losses["bare"]
    highest = max(losses.values())
    difference = highest - min(losses.values())
    assert difference <= TOLERANCE * abs(highest), f"{case.model}: the losses differ"
    return {peer: blocks[WARM_UP:] for peer, blocks in times.items()}


def run_peer(
    case: Case,
    peer: str,
    folder: Path,
    options: list[str],
    name: str,
) -> tuple[list[float], float]:
    """Train with another framework; return the microseconds per step of each block, and the loss.

    The loss is that of the validation.
    """
    clock = str(ROOT / "generator/fastproj/runs/cpu_clock.py")
    project = render(folder, case.model, FRAMEWORKS[peer])
    if peer == "Lightning, all defaults":
        printed = run(
            project,
            clock,
            str(PROGRAMS / "lightning_module.py"),
            str(case.steps),
            str(case.every),
            str(MLP["train.batch_size"]),
            str(MLP["model.width"]),
            str(MLP["optim.lr"]),
        )
        return printed["times"], printed["loss"]
    if peer == "hf":
        printed = run(
            project,
            clock,
            str(PROGRAMS / "hf_trainer.py"),
            case.model,
            *options,
        )
        return printed["times"], printed["loss"]

    if peer == "lightning":
        options = [*lightning_options(case), f"--trainer.logger.version={name}"]
    else:
        options = [*options, f"--run.name={name}"]
    run(
        project,
        clock,
        "-m",
        "proj.train",
        *options,
        prints_json=False,
    )
    samples = case.options["train.batch_size"]
    times = []
    for row in read_rows(project / "runs" / name, "train"):
        times.append(samples * 1e6 / row["samples_per_second"])
    validation = read_rows(project / "runs" / name, "val")[0]
    return times, validation["loss"]


def render(
    folder: Path,
    model: str,
    framework: str,
) -> Path:
    """Render a model with a framework, once, and return the project's folder."""
    output = folder / model / framework
    if output.exists():
        return output / "proj"
    output.mkdir(parents=True)
    project = render_project(output, "proj", model, "--framework", framework)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:20]
    (project / "text.txt").write_bytes(b"".join(file.read_bytes() for file in files))
    return project


def run(project: Path, *command: str, prints_json: bool = True) -> Any:
    """Run a Python program in a project with one thread, and return what its last line has."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=one_thread(project) | MALLOC,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1]) if prints_json else None


def table(times: Times) -> dict[str, list[Any]]:
    """Return each loop's median and its ratios to the loops in `BASES`, each with an interval."""
    rows = {}
    for peer, blocks in times.items():
        median = round(statistics.median(blocks), 1)
        ratios = [ratio(blocks, times[base]) for base in BASES]
        rows[peer] = [median, *ratios]
    return rows


def ratio(blocks: list[float], base: list[float]) -> list[float]:
    """Return the median of the ratios of pairs of blocks, and its interval of 95%.

    The interval contains 95% of the medians of resampled pairs.
    """
    pairs = [own / other for own, other in zip(blocks, base, strict=True)]
    draw = random.Random(0)  # noqa: S311
    medians = []
    for _ in range(1000):
        sample = draw.choices(pairs, k=len(pairs))
        medians.append(statistics.median(sample))
    medians.sort()
    return [
        round(statistics.median(pairs), 4),
        round(medians[25], 4),
        round(medians[974], 4),
    ]


if __name__ == "__main__":
    main()
