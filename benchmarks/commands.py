"""Time the program's commands as they are installed from a wheel: `make bench`.

Each round runs every command once, in turn, so that a slow phase of the machine affects all of
them. Prints the median and the range in milliseconds, and the ratio to `copier copy`, which renders
the same template. `python -c pass` is the time that the interpreter takes; `fastproj update`
updates a project from the oldest release.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from fastproj.template.embedded import entries
from template_bundle import build

ROOT = Path(__file__).parents[1]
ROUNDS = 15
PYTHON = sys.executable


def main() -> None:
    """Run the rounds and print the table."""
    rounds = ROUNDS
    if len(sys.argv) > 1:
        rounds = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environment = _install(work)
        commands = _commands(work, environment)
        taken: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(_run(command, work, environment))
    base = statistics.median(taken["copier copy"])
    for name, times in taken.items():
        middle = statistics.median(times)
        limits = f"({min(times):.0f} to {max(times):.0f})"
        print(f"{name:24}{middle:7.0f} ms  {limits}  {middle / base:.2f}")


def _install(work: Path) -> dict[str, str]:
    """Install the program in `work` as a wheel contains it; return the environment that runs it."""
    site = work / "site"
    without_cache = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "generator/fastproj", site / "fastproj", ignore=without_cache)
    build(ROOT, site / "fastproj/_template.bundle")
    (work / ".gitconfig").write_text("[user]\nname = a\nemail = a@example.org\n")
    return os.environ | {
        "HOME": str(work),
        "XDG_CONFIG_HOME": str(work),
        "PYTHONPATH": str(site),
    }


def _commands(work: Path, environment: dict[str, str]) -> dict[str, list[str]]:
    fastproj = [PYTHON, "-m", "fastproj"]
    new = [*fastproj, "new", "proj", "--yes", "--output", str(work / "output")]
    copier = [
        PYTHON,
        "-m",
        "copier",
        "copy",
        "--quiet",
        "--defaults",
        "--data",
        "project_name=proj",
        "--vcs-ref",
    ]
    output = str(work / "output/proj")
    (work / "output").mkdir()
    _run(new, work, environment)  # copies the bundle to the home folder, and compiles the modules
    bundle = work / ".fastproj/template.bundle"
    releases = list(entries(bundle))
    _run([*copier, f"v{releases[0]}", str(bundle), str(work / "old")], work, environment)
    for command in (["init"], ["add", "--all"], ["commit", "--message", "Old"]):
        _run(["git", *command], work, environment, work / "old")
    return {
        "python -c pass": [PYTHON, "-c", "pass"],
        "fastproj --help": [*fastproj, "--help"],
        "fastproj --version": [*fastproj, "--version"],
        "fastproj detect": [*fastproj, "detect"],
        "fastproj new": new,
        "fastproj new --no-git": [*new, "--no-git"],
        "copier copy": [*copier, f"v{releases[-1]}", str(bundle), output],
        "copier copy, 0.3.0": [*copier, "v0.3.0", str(bundle), output],
        "fastproj update": [*fastproj, "update", str(work / "output/old")],
    }


def _run(
    command: list[str],
    work: Path,
    environment: dict[str, str],
    folder: Path | None = None,
) -> float:
    """Return the milliseconds of a command; the output folder is empty, but for what it updates."""
    shutil.rmtree(work / "output")
    (work / "output").mkdir()
    if "update" in command:
        shutil.copytree(work / "old", work / "output/old", symlinks=True)
    started = time.perf_counter()
    subprocess.run(
        command,
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
