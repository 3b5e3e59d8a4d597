"""Time from the command to the end of step 5, and which imports take it.

    python benchmarks/startup.py [--rounds 15] [--keep]     # --keep also writes benchmarks/startup.json

The mlp of plain PyTorch, and a program that imports the same packages and makes 5 steps, in turn.
Prints the median and the range of both, the ratio with its interval, and the milliseconds of the
largest imports, each with what it imports.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import keep
from peers import PROGRAMS, ratio, render

RESULT = Path(__file__).with_name("startup.json")
LARGEST = (
    "torch",
    "torch._dynamo",
    "pandas",
    "numpy",
    "jsonargparse",
    "sklearn",
    "tqdm",
    "yaml",
    "proj.train",
)


def main() -> None:
    """Run the rounds, and print."""
    parser = argparse.ArgumentParser(description="Time from the command to the end of step 5.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep", action="store_true", help="write the result to startup.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = render(Path(folder), "mlp", "pytorch")
        options = [
            "--config=configs/default.yaml",
            "--train.steps=5",
            "--train.eval_every=5",
            "--log.every=5",
        ]
        core = ["-m", "proj.train", *options, "--run.device=cpu", "--speed.precision=fp32"]
        commands = {"bare program": [str(PROGRAMS / "bare_start.py")], "core": core}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, command in commands.items():
                times[name].append(until_step_5(project, command))
        found: dict[str, Any] = {
            "seconds": {name: summary(seconds) for name, seconds in times.items()}
        }
        found["ratio"] = ratio(times["core"], times["bare program"])
        found["milliseconds of imports"] = imports(project, core)
    print(json.dumps(found, indent=1))
    if args.keep:
        keep(RESULT, {"columns": ["median", "lowest", "highest"], **found})


def summary(values: list[float]) -> list[float]:
    """Return median, lowest and highest."""
    return [round(it(values), 3) for it in (statistics.median, min, max)]


def start(project: Path, command: list[str], *options: str) -> "subprocess.Popen[str]":
    """Start a Python program in a project with one thread."""
    variables = {
        "PYTHONPATH": str(project / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    environment, pipe = os.environ | variables, subprocess.PIPE
    python = [sys.executable, *options, *command]
    return subprocess.Popen(
        python, cwd=project, env=environment, text=True, stdout=pipe, stderr=pipe
    )


def until_step_5(project: Path, command: list[str]) -> float:
    """Return the seconds until the line of step 5."""
    begin = time.perf_counter()
    with start(project, command) as process:
        assert process.stdout
        found = next(
            time.perf_counter() for line in process.stdout if re.match(r"train +5\b", line)
        )
        process.communicate()
    return found - begin


def imports(project: Path, command: list[str]) -> dict[str, float]:
    """Return the milliseconds of the largest imports, from the interpreter's own clock."""
    with start(project, command, "-X", "importtime") as process:
        stderr = process.communicate()[1]
    rows = re.findall(r"import time: +\d+ \| +(\d+) \| +(\S+)", stderr)
    return {module: int(microseconds) / 1000 for microseconds, module in rows if module in LARGEST}


if __name__ == "__main__":
    main()
