"""Measure what a checkpoint costs: how long training waits for it, and the steps that are made while it is written.

    python benchmarks/checkpoints.py                 # --rounds 5, --width 1024: 17 million weights, 200 MB

Trains the mlp on the CPU, alone and sharded over two ranks with FSDP, with `checkpoint.asynchronous` and without. Each
run is a process of its own (one per rank) with one thread; each round has every run once. Prints medians of all rounds
in milliseconds, with the lowest and highest median of a round; `ratio` is of the steps with and without a save in
flight. Let nothing else run on the machine: a save needs a core, the memory and the disk as well.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from frameworks import render

PROGRAM = Path(__file__).parent / "programs" / "checkpoint_run.py"
EVERY = 20
OPTIONS = ["--config=configs/default.yaml", "--run.device=cpu", "--speed.precision=fp32", "--loader.workers=0"]
OPTIONS += [f"--log.every={EVERY}", f"--checkpoint.every={EVERY}", "--train.steps=80"]
OPTIONS += ["--train.eval_every=100000", "--train.micro_batch=64", "--model.depth=4", "--checkpoint.best=false"]
RUNS = {
    "one process, training waits": ["--checkpoint.asynchronous=false"],
    "one process, asynchronous": [],
    "FSDP, two ranks, training waits": ["--dist.strategy=fsdp", "--checkpoint.asynchronous=false"],
    "FSDP, two ranks, asynchronous": ["--dist.strategy=fsdp"],
}


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description="Measure what a checkpoint costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--only", default="", help="only runs with this in their name")
    args = parser.parse_args()
    names = [name for name in RUNS if args.only in name]
    found: dict[str, dict[str, list[float]]] = {name: {"alone": [], "in flight": [], "waits": []} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        project = render(Path(folder), "pytorch")
        for number in range(args.rounds):
            for name in names:
                options = [*OPTIONS, *RUNS[name], f"--model.width={args.width}", f"--run.name={number}-{name[:4]}"]
                measured = run(project, 2 if "two ranks" in name else 1, [*options, f"--run.dir={folder}/{name}"])
                for kind, seconds in {**measured["steps"], "waits": measured["waits"]}.items():
                    if seconds:
                        found[name][kind].append(1000 * statistics.median(seconds))
    print(f"{'':34}{'step':>20}{'with a save in flight':>24}{'ratio':>7}{'wait per save':>20}")
    for name, kinds in found.items():
        alone, flying = (statistics.median(kinds[kind] or [float("nan")]) for kind in ("alone", "in flight"))
        cells = f"{form(kinds['alone']):>20}{form(kinds['in flight']):>24}{flying / alone:7.2f}"
        print(f"{name:34}{cells}{form(kinds['waits']):>20}")


def form(values: list[float]) -> str:
    """Return the median, with the lowest and highest."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" if values else "-"


def run(project: Path, ranks: int, options: list[str]) -> dict[str, Any]:
    """Train on some ranks, and return what rank 0 printed."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launch, str(PROGRAM), *options]
    done = subprocess.run(command, cwd=project, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


if __name__ == "__main__":
    main()
