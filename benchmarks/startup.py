"""Time from the command to the end of step 5, and which imports take it.

    python benchmarks/startup.py [--rounds 15] [--keep]

The mlp of plain PyTorch, and a program that imports the same packages and makes 5 steps, in turn.
Prints the median and the range of both, the ratio with its interval, and the milliseconds of the
largest imports, each with what it imports; --keep also writes benchmarks/startup.json.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from machine import keep, summary
from peers import PROGRAMS, ratio, render
from projects import one_thread

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
        core = [
            "-m",
            "proj.train",
            "--config=configs/default.yaml",
            "--train.steps=5",
            "--train.eval_every=5",
            "--log.every=5",
            "--run.device=cpu",
            "--speed.precision=fp32",
        ]
        commands = {"bare program": [str(PROGRAMS / "bare_start.py")], "core": core}
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(args.rounds):
            for name, command in commands.items():
                times[name].append(until_step_5(project, command))
        results = {
            "columns": ["median", "lowest", "highest"],
            "seconds": {name: summary(seconds, digits=3) for name, seconds in times.items()},
            "ratio": ratio(times["core"], times["bare program"]),
            "milliseconds of imports": imports(project, core),
        }
    print(json.dumps(results, indent=1))
    if args.keep:
        keep(RESULT, results)


def start(project: Path, command: list[str], *options: str) -> "subprocess.Popen[str]":
    """Start a Python program in a project with one thread."""
    return subprocess.Popen(
        [sys.executable, *options, *command],
        cwd=project,
        env=one_thread(project) | {"PYTHONUNBUFFERED": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def until_step_5(project: Path, command: list[str]) -> float:
    """Return the seconds until the line of step 5."""
    begin = time.perf_counter()
    with start(project, command) as process:
        assert process.stdout
        for line in process.stdout:
            if re.match(r"train +5\b", line):
                break
        seconds = time.perf_counter() - begin
        process.communicate()
    return seconds


def imports(project: Path, command: list[str]) -> dict[str, float]:
    """Return the milliseconds of the largest imports, from the interpreter's own clock."""
    with start(project, command, "-X", "importtime") as process:
        stderr = process.communicate()[1]
    rows = re.findall(r"import time: +\d+ \| +(\d+) \| +(\S+)", stderr)
    milliseconds = {}
    for microseconds, module in rows:
        if module in LARGEST:
            milliseconds[module] = int(microseconds) / 1000
    return milliseconds


if __name__ == "__main__":
    main()
