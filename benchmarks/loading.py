"""Images per second of loaders, for each number of workers: JPEG files in 224 pixels, and data in memory.

    python benchmarks/loading.py [--rounds 3] [--peers PYTHON] [--keep]     # --keep also writes benchmarks/loading.json

PYTHON has torchvision and timm as well; without it, only our loader is measured, and whether `auto`
chooses well. The files have 500 x 375 pixels, as most of ImageNet's have. The loader alone is what
a GPU needs; whole trainings on the CPU are measured in 32 pixels, and with the digits in memory.
Prints median, lowest and highest of interleaved rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import keep
from peers import PROGRAMS, render
from PIL import Image

FILES, CLASSES = 640, 4
RESULT = Path(__file__).with_name("loading.json")


def write_images(folder: Path) -> None:
    """Write JPEG files of smooth noise in a folder per class."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        small = Image.fromarray(random.integers(0, 256, (47, 63, 3), dtype=np.uint8))
        file = folder / str(number % CLASSES) / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        small.resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=90)


def main() -> None:
    """Run the rounds, and print the table."""
    parser = argparse.ArgumentParser(description="Images per second of loaders of JPEG files.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with torchvision and timm")
    parser.add_argument("--keep", action="store_true", help="write the result to loading.json")
    args = parser.parse_args()
    counts = list(dict.fromkeys(["0", "1", str(os.cpu_count())]))
    rows = [
        (kind, workers)
        for kind in ("core", "training, files", "training, memory")
        for workers in [*counts, "auto"]
    ]
    rows += [
        (peer, workers) for peer in ("torchvision", "timm") if args.peers for workers in counts
    ]
    speeds: dict[str, dict[str, list[float]]] = {kind: {} for kind, _ in rows}
    with tempfile.TemporaryDirectory() as folder:
        project, images = render(Path(folder), "resnet", "pytorch"), Path(folder, "images")
        write_images(images)
        for _ in range(args.rounds):
            for kind, workers in rows:
                if kind.startswith("training"):
                    speed = train(project, images if kind.endswith("files") else None, workers)
                else:
                    speed = load(project, images, kind, workers, args.peers)
                speeds[kind].setdefault(workers, []).append(speed)
            rows.append(rows.pop(0))
    found = {
        kind: {workers: summary(row) for workers, row in by.items()} for kind, by in speeds.items()
    }
    for kind, by in found.items():
        for workers, (middle, low, high) in by.items():
            print(f"{kind:18}{workers:>5} workers{middle:8.0f} images/s  ({low:.0f} to {high:.0f})")
        if "auto" in by:
            print(
                f"{kind:18} auto / best: {by['auto'][0] / max(row[0] for row in by.values()):.2f}"
            )
    if args.keep:
        keep(RESULT, {"columns": ["images/s, median", "lowest", "highest"], "loaders": found})


def summary(values: list[float]) -> list[float]:
    """Return median, lowest and highest."""
    return [round(it(values), 1) for it in (statistics.median, min, max)]


def load(project: Path, images: Path, kind: str, workers: str, peers: str) -> float:
    """Return the images per second of a loader alone, with one thread."""
    python = sys.executable if kind == "core" else peers
    command = [python, str(PROGRAMS / "load_images.py"), kind, str(images), workers]
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    found: float = json.loads(
        subprocess.check_output(command, env=environment, text=True).splitlines()[-1]
    )
    return found


def train(project: Path, images: Path | None, workers: str) -> float:
    """Return the images per second of a training on the CPU with torch's own number of threads, without its start."""
    name = str(len(list((project / "runs").glob("*"))))
    own = [
        "--run.device=cpu",
        f"--run.name={name}",
        f"--loader.workers={workers}",
        "--train.micro_batch=32",
    ]
    own += [
        "--train.steps=45",
        "--log.every=15",
        "--train.eval_every=45",
        "--config=configs/default.yaml",
    ]
    own += [f"--data.path={images}", "--data.size=32"] if images else []
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    environment.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, "-m", "proj.train", *own]
    subprocess.run(command, cwd=project, env=environment, check=True, stdout=subprocess.DEVNULL)
    rows = [
        json.loads(line)
        for line in (project / "runs" / name / "metrics.jsonl").read_text().splitlines()
    ]
    found: float = statistics.mean(
        row["samples_per_second"] for row in rows[1:] if row["split"] == "train"
    )
    return found


if __name__ == "__main__":
    main()
