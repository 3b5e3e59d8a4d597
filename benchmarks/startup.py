"""Time from the command to the end of step 5, and which imports take it.

python benchmarks/startup.py [ROUNDS]

The mlp of plain PyTorch, and a program that imports the same packages and makes 5 steps, in turn. Prints the median and
the range of both, the ratio, and the milliseconds of the largest imports, each with what it imports.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import PROGRAMS, render

ROUNDS = 15
LARGEST = ("torch", "torch._dynamo", "pandas", "numpy", "jsonargparse", "sklearn", "tqdm", "yaml", "proj.train")


def main() -> None:
    """Run the rounds, and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        project = render(Path(folder), "mlp", "pytorch")
        options = ["--config=configs/default.yaml", "--train.steps=5", "--train.eval_every=5", "--log.every=5"]
        core = ["-m", "proj.train", *options, "--run.device=cpu", "--speed.precision=fp32"]
        commands = {"bare program": [str(PROGRAMS / "bare_start.py")], "core": core}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(until_step_5(project, command))
        for name, found in times.items():
            print(f"{name:14}{statistics.median(found):7.2f} s  ({min(found):.2f} to {max(found):.2f})")
        ratios = [core / bare for bare, core in zip(*times.values(), strict=True)]
        print(f"ratio, median of the rounds: {statistics.median(ratios):.2f}; load {os.getloadavg()[1]:.1f}")
        for module, milliseconds in imports(project, core).items():
            print(f"import {module:20}{milliseconds:7.0f} ms")


def start(project: Path, command: list[str], *options: str) -> "subprocess.Popen[str]":
    """Start a Python program in a project with one thread."""
    variables = {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment, pipe = os.environ | variables, subprocess.PIPE
    python = [sys.executable, *options, *command]
    return subprocess.Popen(python, cwd=project, env=environment, text=True, stdout=pipe, stderr=pipe)


def until_step_5(project: Path, command: list[str]) -> float:
    """Return the seconds until the line of step 5."""
    begin = time.perf_counter()
    with start(project, command) as process:
        assert process.stdout
        found = next(time.perf_counter() for line in process.stdout if re.match(r"train +5\b", line))
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
