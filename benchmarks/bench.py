"""Measure the rows of docs/techniques/ with `tools/bench.py` of rendered projects, and write tables and charts.

    python benchmarks/bench.py                                 all pages, about 40 minutes on 2 cores
    python benchmarks/bench.py channels-last                   one page
    python benchmarks/bench.py --missing                       the rows without a measurement
    python benchmarks/bench.py --device cuda channels-last     its rows for GPUs

The rows are in comparisons_cpu.py and comparisons_gpu.py. Each run is a process with one thread per rank, in a project
rendered for this machine, and runs without and with a technique are interleaved in rounds. A cell is the median, with
the lowest and highest. Rows that this machine cannot measure are not written.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pages
import torch
from comparison import Comparison
from PIL import Image

PROGRAMS = Path(__file__).parent / "programs"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="Measure techniques, and write their tables.")
    parser.add_argument("pages", nargs="*", help="names of pages; none for all")
    parser.add_argument("--device", choices=list(pages.COMPARISONS), default="cpu")
    parser.add_argument("--missing", action="store_true", help="only the rows that have not been measured")
    args = parser.parse_args()
    listed = pages.COMPARISONS[args.device]
    unknown = set(args.pages) - {comparison.page for comparison in listed}
    if unknown:
        sys.exit(f"unknown page {', '.join(sorted(unknown))}: choose from those in comparisons_{args.device}.py")
    gpus = torch.cuda.device_count() if args.device == "cuda" else 0
    if args.device == "cuda" and not gpus:
        sys.exit(f"torch {torch.__version__} finds no CUDA device")
    done = {row.what for rows in pages.measured().values() for row in rows} if args.missing else set()
    with tempfile.TemporaryDirectory() as folder:
        for row in listed:
            if row.what in done or (args.pages and row.page not in args.pages):
                continue
            if args.device == "cuda" and max(row.ranks) > gpus:
                print(f"skipped, as it needs {max(row.ranks)} GPUs: {row.what}")
                continue
            measured = _measure(row, _project(Path(folder), row.model), args.device)
            pages.keep(row.page, measured)
            print(f"{row.what}: {pages.cell(measured.without)}, {pages.cell(measured.with_it)}, {measured.ratio}")


def _measure(row: Comparison, project: Path, device: str) -> pages.Measured:
    """Let the project's own bench measure a row."""
    sides = [
        [*options, *([f"--run.processes={ranks}"] if ranks > 1 else [])]
        for options, ranks in zip((row.without, row.with_it), row.ranks, strict=True)
    ]
    wanted: dict[str, object] = {"what": row.what, "without": sides[0], "with": sides[1], "changes": row.changes}
    wanted |= {"value": row.value, "steps": row.steps, "warmup": row.warmup, "rounds": row.rounds}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "comparisons.json").write_text(json.dumps([wanted]))
        command = [sys.executable, "-m", f"{project.name.replace('-', '_')}.tools.bench", "--pages", folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", str(PROGRAMS)])}
        done = subprocess.run([*command, f"--run.device={device}"], cwd=project, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{row.what}: not measured")
        found = json.loads(Path(folder, "measured.json").read_text())[0]
    return pages.Measured(
        row.what,
        found["machine"],
        found["versions"],
        found["without"],
        found["with_it"],
        row.smaller_is_better,
        row.value.startswith("val:"),
    )


def _project(folder: Path, model: str) -> Path:
    """Render a project for this machine, once."""
    project = folder / f"bench-{model}"
    if not project.exists():
        new = [sys.executable, "-m", "fastproj", "new", project.name, "--framework", "pytorch", "--model", model]
        answers = ["--gpus", "0", "--yes", "--no-git", "--output", str(folder)]
        subprocess.run([*new, *answers], check=True, stdout=subprocess.DEVNULL)
        if model == "resnet":
            _write_images(project / "jpegs")
    return project


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


if __name__ == "__main__":
    main()
