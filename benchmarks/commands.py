"""Time the installed commands: `make bench`.

Each round runs every command once, so that a slow phase of the machine affects all of them. Prints the median, lowest
and highest in milliseconds. `python -c pass` is the start of the interpreter alone, and `copier copy` renders the same
template without fastproj.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 15


def main() -> None:
    """Run the rounds and print the table."""
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"HOME": folder, "XDG_CONFIG_HOME": folder}
        new = [str(programs / "fastproj"), "new", "proj", "--yes"]
        subprocess.run([*new, "--output", folder], env=environment, check=True, stdout=subprocess.DEVNULL)
        bundle = f"{folder}/.fastproj/template.bundle"
        copier = [
            str(programs / "copier"),
            "copy",
            "--quiet",
            "--defaults",
            "--data",
            "project_name=proj",
            "--vcs-ref",
            "HEAD",
        ]
        commands: dict[str, Callable[[str], list[str]]] = {
            "python -c pass": lambda output: [sys.executable, "-c", "pass"],
            "fastproj --help": lambda output: [new[0], "--help"],
            "fastproj --version": lambda output: [new[0], "--version"],
            "fastproj detect": lambda output: [new[0], "detect"],
            "fastproj new": lambda output: [*new, "--output", output],
            "fastproj new --no-git": lambda output: [*new, "--no-git", "--output", output],
            "copier copy": lambda output: [*copier, bundle, f"{output}/proj"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                with tempfile.TemporaryDirectory() as output:
                    started = time.perf_counter()
                    subprocess.run(command(output), env=environment, check=True, capture_output=True)
                    taken[name].append((time.perf_counter() - started) * 1000)
    for name, times in taken.items():
        print(f"{name:24}{statistics.median(times):7.0f} ms  ({min(times):.0f} to {max(times):.0f})")


if __name__ == "__main__":
    main()
