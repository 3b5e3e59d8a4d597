"""Measure in how many seconds the launcher notices a rank that was killed or hangs, and until the run trains again.

    python benchmarks/restarts.py                 # --rounds 5

Two ranks of the mlp on the CPU, started by the project's launcher. Between two checkpoints one rank gets SIGKILL, or
SIGSTOP with `run.hang_minutes=0.1`. Counts from the signal to the line that names the rank, and to the first row of
metrics after the restart. Prints medians of all rounds, with the lowest and highest. Let nothing else run on the
machine.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from frameworks import render

OPTIONS = ["--config=configs/default.yaml", "--run.device=cpu", "--log.every=20"]
OPTIONS += ["--train.steps=1000000", "--train.eval_every=1000", "--checkpoint.every=100", "--run.hang_minutes=0.1"]
FAULTS = {signal.SIGKILL: r"error: rank 1 ended by SIGKILL", signal.SIGSTOP: r"error: no progress .* rank 1 is stopped"}
"""What the launcher or the other rank says of rank 1."""


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description="Measure the seconds until a run is restarted.")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, tuple[list[float], list[float]]] = {number.name: ([], []) for number in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        project = render(Path(folder), "pytorch")
        for turn in range(args.rounds):
            for number in FAULTS:
                noticed, again = measure(project, number, [f"--run.dir={folder}", f"--run.name={number.name}-{turn}"])
                found[number.name][0].append(noticed)
                found[number.name][1].append(again)
                print(f"{number.name}: {noticed:.1f} s, {again:.1f} s", file=sys.stderr, flush=True)
    print(f"{'':10}{'noticed':>24}{'trains again':>24}")
    for name, columns in found.items():
        print(f"{name:10}{form(columns[0]):>24}{form(columns[1]):>24}")


def measure(project: Path, number: signal.Signals, options: list[str]) -> tuple[float, float]:
    """Return the seconds until rank 1, which gets a signal, is named, and until the run trains again."""
    environment = os.environ | {"PYTHONPATH": str(project / "src"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "proj.tools.launch", "--restarts=1", "--nproc-per-node=2", "-m", "proj.train"]
    process = subprocess.Popen(
        [*command, *OPTIONS, *options],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(process, r"val ")
        os.kill(rank_one(process.pid), number)
        begin = time.perf_counter()
        wait_for(process, FAULTS[number])
        noticed = time.perf_counter() - begin
        wait_for(process, r"resumed +at step")
        wait_for(process, r"train ")
        return noticed, time.perf_counter() - begin
    finally:
        process.kill()  # its ranks end with it
        process.communicate()


def wait_for(process: "subprocess.Popen[str]", pattern: str) -> None:
    """Read the output up to a line that begins with a pattern.

    Raises:
        RuntimeError: it ends before.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(pattern, line):
            return
    raise RuntimeError(f"the run ended without {pattern!r}")


def rank_one(launcher: int) -> int:
    """Return the process of rank 1."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent = int(file.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"\0RANK=1\0" in (file.parent / "environ").read_bytes():
                return int(file.parent.name)
    raise RuntimeError("rank 1 was not found")


def form(values: list[float]) -> str:
    """Return the median, with the lowest and highest."""
    return f"{statistics.median(values):.1f} s ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
