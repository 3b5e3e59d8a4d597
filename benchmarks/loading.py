"""Images per second of loaders of JPEG files, in 224 pixels, for each number of workers.

    python benchmarks/loading.py [--rounds 3] [--peers PYTHON]

PYTHON has torchvision and timm as well; without it, only our loader is measured, and whether `auto` chooses well. The
files have 500 x 375 pixels, as most of ImageNet's have. Prints the median and the range of interleaved rounds.
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
from machine import machine
from peers import PROGRAMS, render
from PIL import Image

FILES, CLASSES = 640, 4


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
    args = parser.parse_args()
    counts = list(dict.fromkeys(["0", "1", str(os.cpu_count())]))
    rows = [("core", workers, sys.executable) for workers in [*counts, "auto"]]
    if args.peers:
        rows += [(peer, workers, args.peers) for peer in ("torchvision", "timm") for workers in counts]
    speeds: dict[tuple[str, str], list[float]] = {row[:2]: [] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        project, images = render(Path(folder), "resnet", "pytorch"), Path(folder, "images")
        write_images(images)
        environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
        for _ in range(args.rounds):
            for kind, workers, python in rows:
                command = [python, str(PROGRAMS / "load_images.py"), kind, str(images), workers]
                printed = subprocess.check_output(command, env=environment, text=True)
                speeds[kind, workers].append(json.loads(printed.splitlines()[-1]))
    print(f"{machine()}; load {os.getloadavg()[1]:.1f}")
    for (kind, workers), found in speeds.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        print(f"{kind:14}{workers:>5} workers{middle:8.0f} images/s  ({low:.0f} to {high:.0f})")


if __name__ == "__main__":
    main()
