"""Measure the effect of each technique with the real training command, and write tables and charts in docs/techniques/.

    python benchmarks/techniques.py                                 all pages, about 30 minutes on 2 cores
    python benchmarks/techniques.py channels-last                   one page
    python benchmarks/techniques.py --device cuda channels-last     its rows for GPUs

Each run is a separate process with one thread per rank, in a project rendered for this machine. Runs with and without
a technique are interleaved in rounds, so that a slow phase of the machine affects both; a cell is the median over the
rounds, with the lowest and highest. Speeds exclude the first log entry of each run (warm-up). Rows that this machine
cannot measure are not written.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pages
import torch
from comparison import Comparison
from PIL import Image

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "programs" / "technique_run.py"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Measure techniques, and write their tables.")
    parser.add_argument("pages", nargs="*", help="names of pages; none for all")
    parser.add_argument("--device", choices=list(pages.COMPARISONS), default="cpu")
    args = parser.parse_args()
    listed = pages.COMPARISONS[args.device]
    unknown = set(args.pages) - {comparison.page for comparison in listed}
    if unknown:
        sys.exit(f"unknown page {', '.join(sorted(unknown))}: choose from those in comparisons_{args.device}.py")
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if args.device == "cuda" and not gpus:
        sys.exit(f"torch {torch.__version__} finds no CUDA device")
    with tempfile.TemporaryDirectory() as folder:
        for comparison in listed:
            if args.pages and comparison.page not in args.pages:
                continue
            if args.device == "cuda" and max(comparison.ranks) > gpus:
                print(f"skipped, as it needs {max(comparison.ranks)} GPUs: {comparison.what}")
                continue
            _write(comparison, args.device, *_measure(comparison, Path(folder), args.device))


def _measure(comparison: Comparison, folder: Path, device: str) -> tuple[list[float], list[float]]:
    """Return the values of all rounds, without and with the technique."""
    values: tuple[list[float], list[float]] = ([], [])
    for number in range(comparison.rounds):
        turns = [(0, comparison.without), (1, comparison.with_it)]
        for side, options in turns if number % 2 == 0 else reversed(turns):
            project = _project(folder, comparison.frameworks[side], comparison.model)
            values[side].append(_run(comparison, side, project, [*options, f"--run.seed={number}"], device))
    return values


def _project(folder: Path, framework: str, model: str) -> Path:
    """Render a project for this machine, once."""
    project = folder / f"{framework}-{model}"
    if not project.exists():
        new = [sys.executable, "-m", "fastproj", "new", project.name, "--framework", framework, "--model", model]
        answers = ["--gpus", "0", "--yes", "--no-git", "--output", str(folder)]
        subprocess.run([*new, *answers], check=True, stdout=subprocess.DEVNULL)
        if model == "resnet":
            _write_images(project / "jpegs")
    return project


def _run(comparison: Comparison, side: int, project: Path, options: Iterable[str], device: str) -> float:
    """Train once, and return the value."""
    ranks, package = comparison.ranks[side], project.name.replace("-", "_")
    with tempfile.TemporaryDirectory(dir=project) as runs:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        program = [str(PROGRAM), package, comparison.changes[side], "--config=configs/default.yaml"]
        fixed = [f"--run.device={device}", "--log.tensorboard=false", f"--run.dir={runs}", "--run.name=a", *options]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "src"}
        child = subprocess.Popen(
            [sys.executable, *torchrun, *program, *fixed],
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = (stream.decode() for stream in child.communicate())
        if child.returncode:
            sys.exit(f"{comparison.what}: {errors[-2000:]}")
        if comparison.value.endswith("_mb"):
            return float(json.loads(output.splitlines()[-1])[comparison.value])
        rows = [json.loads(line) for line in Path(runs, "a", "metrics.jsonl").read_text().splitlines()]
    if comparison.value.startswith("val:"):
        return float([row for row in rows if row["split"] == "val"][-1][comparison.value[4:]])
    trained = [row for row in rows if row["split"] == "train"]
    if comparison.value == "first_seconds":
        return float(trained[0]["seconds"])
    return float(statistics.median([row[comparison.value] for row in trained][1:]))


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


def _write(comparison: Comparison, device: str, without: list[float], with_it: list[float]) -> None:
    """Keep the values in techniques.json, in place of earlier ones, and write the pages."""
    row = pages.Measured(
        comparison.what,
        machine(device),
        f"torch {version('torch')}, Python {platform.python_version()}",
        [float(f"{value:.5g}") for value in without],
        [float(f"{value:.5g}") for value in with_it],
        comparison.smaller_is_better,
        comparison.value.startswith("val:"),
    )
    pages.keep(comparison.page, row)
    print(f"{row.what}: {pages.cell(row.without)}, {pages.cell(row.with_it)}, {row.ratio}", flush=True)


def machine(device: str) -> str:
    """Return the GPU's name, or that of the processor and the number of usable cores."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.processor()}, {len(os.sched_getaffinity(0))} cores"


if __name__ == "__main__":
    main()
