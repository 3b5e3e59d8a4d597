"""Images per second of loaders: JPEG files in 224 pixels, and data in memory.

    python benchmarks/loading.py [--rounds 3] [--peers PYTHON] [--keep]

Each is measured with several numbers of workers; --keep also writes benchmarks/loading.json.
PYTHON has torchvision, timm and SPDL as well, which needs FFmpeg's libraries. Without it, our
loader is measured beside torch's DataLoader with Pillow, and whether `auto` chooses well. Other
work on the machine changes images per second, but hardly those per second of CPU time.

The files have 500 x 375 pixels, as most of ImageNet's have. The loader alone is what a GPU needs;
whole trainings on the CPU are measured in 32 pixels, and with the digits in memory.
Prints median, lowest and highest of interleaved rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
from machine import keep, summary
from peers import PROGRAMS, render
from PIL import Image
from projects import one_thread, read_rows

FILES = 640
CLASSES = 4
CORE = ("core", "training, files", "training, memory")
ALWAYS = ("pillow",)
PEERS = ("torchvision", "timm", "spdl")
SPEED = "images/s"
Table = dict[str, dict[str, dict[str, list[float]]]]
"""Median, lowest and highest for each loader, number of workers and quantity."""
RESULT = Path(__file__).with_name("loading.json")


def write_images(folder: Path) -> None:
    """Write JPEG files of smooth noise in a folder per class."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        noise = random.integers(0, 256, (47, 63, 3), dtype=np.uint8)
        small = Image.fromarray(noise)
        file = folder / str(number % CLASSES) / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        large = small.resize((500, 375), Image.Resampling.BICUBIC)
        large.save(file, quality=90)


def main() -> None:
    """Run the rounds, and print the table."""
    parser = argparse.ArgumentParser(description="Images per second of loaders of JPEG files.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with torchvision and timm")
    parser.add_argument("--keep", action="store_true", help="write the result to loading.json")
    args = parser.parse_args()
    table = measure(args.rounds, args.peers)
    print_table(table)
    if args.keep:
        keep(RESULT, {"columns": ["median", "lowest", "highest"], "loaders": table})


def measure(rounds: int, peers: str | None) -> Table:
    """Measure each loader with each number of workers, in turn."""
    counts = list(dict.fromkeys(["0", "1", str(os.cpu_count())]))
    cases = list(product(CORE, [*counts, "auto"]))
    cases += product(ALWAYS, counts)
    if peers:
        cases += product(PEERS, counts)
    rounds_of: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        project = render(Path(folder), "resnet", "pytorch")
        images = Path(folder, "images")
        write_images(images)
        for _ in range(rounds):
            for kind, workers in cases:
                if kind == "training, files":
                    result = {SPEED: train(project, images, workers)}
                elif kind == "training, memory":
                    result = {SPEED: train(project, None, workers)}
                else:
                    result = load(project, images, kind, workers, peers)
                rounds_of[kind, workers].append(result)
            cases.append(cases.pop(0))
    table: Table = {}
    for (kind, workers), results in rounds_of.items():
        row = table.setdefault(kind, {}).setdefault(workers, {})
        for quantity in results[0]:
            values = [result[quantity] for result in results]
            row[quantity] = summary(values, digits=1)
    return table


def print_table(table: Table) -> None:
    """Print the results, and whether `auto` chooses well."""
    for kind, rows in table.items():
        for workers, row in rows.items():
            for quantity, (middle, low, high) in row.items():
                spread = f"({low:.0f} to {high:.0f})"
                print(f"{kind:18}{workers:>5} workers{middle:8.0f} {quantity}  {spread}")
        if "auto" in rows:
            best = max(row[SPEED][0] for row in rows.values())
            print(f"{kind:18} auto / best: {rows['auto'][SPEED][0] / best:.2f}")


def load(
    project: Path,
    images: Path,
    kind: str,
    workers: str,
    peers: str | None,
) -> dict[str, float]:
    """Return what `load_images.py` measures of a loader alone, with one thread."""
    python = peers if peers and kind in PEERS else sys.executable
    command = [python, str(PROGRAMS / "load_images.py"), kind, str(images), workers]
    printed = subprocess.check_output(command, env=one_thread(project), text=True)
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    return result


def train(
    project: Path,
    images: Path | None,
    workers: str,
) -> float:
    """Return the images per second of a training on the CPU, without its start.

    It has torch's own number of threads.
    """
    name = str(len(list((project / "runs").glob("*"))))
    command = [
        sys.executable,
        "-m",
        "proj.train",
        "--config=configs/default.yaml",
        "--run.device=cpu",
        f"--run.name={name}",
        f"--loader.num_workers={workers}",
        "--train.batch_size=32",
        "--train.steps=45",
        "--log.every=15",
        "--train.eval_every=45",
    ]
    if images:
        command += [f"--data.path={images}", "--data.size=32"]
    environment = one_thread(project)
    del environment["OMP_NUM_THREADS"]
    subprocess.run(
        command,
        cwd=project,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    rows = read_rows(project / "runs" / name, "train")
    speeds: list[float] = [row["samples_per_second"] for row in rows[1:]]
    return statistics.mean(speeds)


if __name__ == "__main__":
    main()
